"""A dump runs no code: hostile records through every suite, in a process of its own under an audit hook.

The names here are a few that were seen to run code, or could; the operator audit of quality/ tries all names of both
frameworks. What is promised stands in docs/security.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from slow_parameters import slow

TESTS = Path(__file__).parents[1]
X = np.full((2, 2), 0.5, np.float32)
OVERFLOWED = np.full((2, 2), np.inf, np.float32)
HOSTILE = {
    "mindspore": """
        Mint.os.system Mint.builtins.exec Mint.builtins.eval Mint.ops.load_library Mint.hub.load Mint.save Mint.load
        Mint.from_file Mint.hub.os.system MintFunctional.torch.os.system MintFunctional.os.system Mint.__class__
        Functional.operations.custom_ops.os.system Functional.tensordump Functional.print_ Functional.torch.os.system
        Tensor.tofile Tensor.__reduce_ex__ Tensor.__init_subclass__ Tensor.offload Primitive.p.TensorDump
        Primitive.p.Custom Primitive.p.PyFunc Primitive.os.system __class__.abs __init__.os.system os.system
    """.split(),
    "pytorch": """
        Torch.os.system Torch.hub.os.system Torch.hub.load Torch.save Torch.load Torch.from_file Torch.compile
        Torch.set_default_dtype Torch.ops.load_library Torch.classes.load_library Torch.builtins.exec
        Functional.torch.os.system Functional.os.system Tensor.share_memory_ Tensor.__reduce_ex__ Tensor.apply_
        Aten.from_file VF.from_file NPU.os.system __class__.abs
    """.split(),
}
#: Loads the frameworks, then watches to the end of the run: the tables of a run and pytest itself write files.
PLUGIN = (
    f"import sys\nsys.path.append({str(TESTS)!r})\n"
    + """
import pytest
import mindspore, ml_dtypes, torch
from audit_watch import Watch
from pytest_msprobe.engines import adapters

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.Tensor(1.0) + 1.0
watch = Watch()

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.add_cleanup(report)
    watch.armed().__enter__()

def report():
    events = [event for event in watch.take() if not event.startswith(("exec ", "compile ")) or "canary" in event]
    with open("events.txt", "w") as file:
        file.writelines(event + chr(10) for event in events)
"""
)
#: What a run may do: write its reports and evidence.
OWN_FILES = re.compile(
    r"open \('[^']*(?:accuracy_checking_|overflow_|compare_result_|advisor_|evidence/|reproducers/|lock|tmp)[^']*'"
    r"|(?:os\.mkdir|os\.chmod|os\.rename|os\.remove|tempfile\.\w+|shutil\.\w+) "
)
CONFTEST = """
import numpy as np
def pytest_msprobe_reference(api):
    return lambda *arguments, **keywords: np.full((2, 2), 7.0)
"""


def hostile_dump(folder: Path, framework: str, *, output: np.ndarray[Any, Any] = X, real: bool = True) -> Path:
    """A dump whose records call what is not an operator, with commands, paths, integers and tensors."""
    builder = DumpBuilder(folder, framework=framework, real=real)
    canary = str(folder / "canary")
    arguments: list[tuple[list[Any], dict[str, Any]]] = [
        ([f"touch {canary}"], {}),
        ([f"open({canary!r}, 'w')"], {}),
        ([X, canary], {"f": canary, "weights_only": False}),
        ([3, X], {"file_name": canary}),
    ]
    for name in HOSTILE[framework]:
        for number, (given, keywords) in enumerate(arguments):
            builder.call(f"{name}.{number}", given, [output], keywords=keywords)
    return builder.write()


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str) -> pytest.RunResult:
    """A run under the audit hook. Fails when something was done that a run does not do, or the canary is there."""
    pytester.makepyfile(audit_plugin=PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    result = pytester.runpytest_subprocess("-p", "audit_plugin", "-p", "no:cacheprovider", *options)
    events = (pytester.path / "events.txt").read_text().splitlines()
    assert [event for event in events if "canary" in event or not OWN_FILES.match(event)] == []
    assert not list(pytester.path.rglob("*canary*"))
    return result


def hostile_dumps(pytester: pytest.Pytester, **more: Any) -> list[str]:
    """The options that name a hostile dump of each framework."""
    dumps = [hostile_dump(pytester.mkdir(framework), framework, **more) for framework in HOSTILE]
    return [f"--msprobe-dump={dump}" for dump in dumps]


@pytest.mark.parametrize("device", ["torch:cpu", *slow("auto", "mindspore:cpu")])
def test_precheck_skips_what_is_no_operator(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    result = run(pytester, monkeypatch, *hostile_dumps(pytester), f"--msprobe-device={device}", "-rs")
    result.assert_outcomes(skipped=sum(4 * len(names) for names in HOSTILE.values()))
    result.stdout.fnmatch_lines(["*Mint.os.system: not a known operator of mindspore.mint; *"])


@pytest.mark.slow
def test_overflow_computes_nothing_again_that_is_no_operator(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = hostile_dumps(pytester, output=OVERFLOWED)
    result = run(pytester, monkeypatch, *dumps, "--msprobe-suite=overflow")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "not a known operator of" in result.stdout.str()


def test_comparison_calls_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [hostile_dump(pytester.mkdir(name), "mindspore") for name in ("a", "b")]
    result = run(pytester, monkeypatch, f"--msprobe-dump={sides[0].parent}", f"--msprobe-golden={sides[1].parent}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # the canary's path differs


@pytest.mark.slow
def test_evidence_of_a_hostile_record_calls_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeconftest(CONFTEST)  # a reference of the user's, against which each record fails
    dump = hostile_dump(pytester.path, "mindspore")
    options = ("--msprobe-error-data=evidence", "--msprobe-reproducers=reproducers")
    result = run(pytester, monkeypatch, f"--msprobe-dump={dump}", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert list(pytester.path.glob("reproducers/**/*.py")) == []
    result.stdout.fnmatch_lines(["*reproducer: none, Mint.os.system is not a known operator of mindspore.mint*"])


def test_a_child_process_calls_no_more_than_the_engine(tmp_path: Path) -> None:
    from msprobe_collector.dump_format import ApiName
    from pytest_msprobe.engines.child import ChildEngine
    from pytest_msprobe.engines.protocol import Call, Unsupported
    from pytest_msprobe.engines.torch_engine import TorchEngine

    engine = ChildEngine(TorchEngine(is_raised=True))
    try:
        call = Call(ApiName("Mint", "os.system", 0), "mindspore", (f"touch {tmp_path / 'canary'}",), {})
        with pytest.raises(Unsupported, match=r"not a known operator of mindspore\.mint"):
            engine.forward(call, differentiate=())
        call = Call(ApiName("Mint", "exp", 0), "mindspore", (str(tmp_path / "canary"),), {})
        with pytest.raises(Unsupported, match="is not passed to exp, which takes no string"):
            engine.forward(call, differentiate=())
    finally:
        engine.close()
    assert list(tmp_path.iterdir()) == []


def test_the_watch_sees_deeds(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
from audit_watch import Watch
watch = Watch()
with watch.armed():
    open(sys.argv[1], "w").close()
    os.system("true")
    subprocess.run(["true"])
    exec("1")
    import json.tool
    open(sys.argv[1]).close()
print([event.split()[0] for event in watch.take()])
"""
    command = [sys.executable, "-c", script, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(TESTS)})
    found = eval(done.stdout)  # a list of our own child
    assert found[:2] == ["open", "os.system"]
    assert {"subprocess.Popen", "compile", "exec"} <= set(found)
    assert found[-1] != "import"
