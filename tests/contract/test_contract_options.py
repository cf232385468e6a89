"""An option that a suite cannot honour is refused, by name; one that it can is taken."""

from __future__ import annotations

import sys

import pytest
from contract_runs import Run, Workspace, assert_whole

from msprobe_collector.dump_format import DIRECTIONS
from pytest_msprobe.run.settings import CONFIG, DUMP, all_options, help_of

PRECHECK, COMPARISON, OVERFLOW, GRADIENTS, REPEAT = "precheck", "comparison", "overflow", "gradients", "repeat"
SHARDED = "sharded"

#: Each option with a value that is right where the option has an effect, and the suites that it has one in.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "--msprobe-device=auto": (PRECHECK, REPEAT),
    "--msprobe-bench=torch": (PRECHECK, COMPARISON, OVERFLOW),
    "--msprobe-bench-python={python}": (PRECHECK, COMPARISON, OVERFLOW),
    "--msprobe-seed=3": (PRECHECK, OVERFLOW, REPEAT),
    "--msprobe-max-memory=1GB": (PRECHECK, COMPARISON, OVERFLOW, REPEAT),
    "--msprobe-error-data=kept": (PRECHECK,),
    "--msprobe-error-data-limit=1MB": (PRECHECK,),
    "--msprobe-reproducers=scripts": (PRECHECK,),
    "--msprobe-device-ids=0,1": (PRECHECK, REPEAT),
    "--msprobe-workers-per-device=2": (PRECHECK, REPEAT),
    "--msprobe-remote-root=/elsewhere": (PRECHECK, REPEAT),
    "--msprobe-standard=ulp": (PRECHECK,),
    "--msprobe-cosine=0.9": (PRECHECK,),
    "--msprobe-max-abs=0.5": (PRECHECK,),
    "--msprobe-hf32=conv": (PRECHECK,),
    "--msprobe-fail-on=subnormals": (PRECHECK,),
    "--msprobe-draws=2": (PRECHECK,),
    "--msprobe-edge-cases": (PRECHECK,),
    "--msprobe-data-dir={folder}": (PRECHECK, COMPARISON, OVERFLOW, REPEAT, SHARDED),
    "--msprobe-golden={golden}": (COMPARISON, GRADIENTS),
    "--msprobe-noise={golden}": (COMPARISON,),
    "--msprobe-exact=exact": (COMPARISON,),
    "--msprobe-cell-mapping=builtin": (COMPARISON,),
    "--msprobe-api-mapping=builtin": (COMPARISON,),
    "--msprobe-data-mapping=names.yaml": (COMPARISON,),
    "--msprobe-layer-mapping=layers.yaml": (COMPARISON,),
    "--msprobe-fuzzy": (COMPARISON,),
    "--msprobe-distance=Float32=0.1": (COMPARISON,),
    "--msprobe-accept=unmatched": (COMPARISON,),
    "--msprobe-result-column=accuracy": (COMPARISON,),
    "--msprobe-table=off": (COMPARISON,),
    "--msprobe-xlsx": (COMPARISON,),
    "--msprobe-accounting=off": (COMPARISON,),
    "--msprobe-inherited=fail": (COMPARISON,),
    "--msprobe-overflow-fail-reproduced": (OVERFLOW,),
    "--msprobe-overflow-undecided=skip": (OVERFLOW,),
    "--msprobe-overflow-rules=rules.yaml": (OVERFLOW,),
    "--msprobe-gradient-items=step": (GRADIENTS,),
    "--msprobe-gradient-first=0.5": (GRADIENTS,),
    "--msprobe-gradient-drop=0.5": (GRADIENTS,),
    "--msprobe-gradient-drift=0.5": (GRADIENTS,),
    "--msprobe-gradient-fail-md5": (GRADIENTS,),
    "--msprobe-gradient-fail-zero": (GRADIENTS,),
    "--msprobe-gradient-turbulence=3": (GRADIENTS,),
    "--msprobe-gradient-collapse=0.5": (GRADIENTS,),
    "--msprobe-gradient-warmup=2": (GRADIENTS,),
    "--msprobe-repeat-runs=3": (REPEAT,),
    "--msprobe-batch": (REPEAT,),
    "--msprobe-logical={logical}": (SHARDED,),
    "--msprobe-sharded-inherited=fail": (SHARDED,),
}
EVERYWHERE = (
    "--msprobe-out=elsewhere",
    "--msprobe-jsonl=other.jsonl",
    "--msprobe-page=other.html",
    "--msprobe-baseline=known.json",
    "--msprobe-diagnosis=other.json",
    "--msprobe-sarif=other.sarif",
    "--msprobe-html-passes=omit",
    "--msprobe-shard=1/1",
    "--msprobe-allow-empty",
    "--msprobe-strict",
)
#: What an option needs beside it to have an effect, where a sample does not give it.
NEEDS = {
    "--msprobe-fail-on": "--msprobe-standard=fused",
    "--msprobe-error-data-limit": "--msprobe-error-data=kept",
    **{f"--msprobe-gradient-{name}": "--msprobe-golden=" for name in ("fail-zero", "turbulence", "collapse", "warmup")},
}
#: A dump of one value in float64.
_EXACT = '{"task": "statistics", "data": {"Mint.add.0.forward": {"output": [{"type": "Tensor", "dtype": "Float64"}]}}}'
#: Options that need workers to have an effect.
FOR_WORKERS = ("--msprobe-device-ids", "--msprobe-workers-per-device", "--msprobe-remote-root")


def test_every_option_says_which_suites_honour_it() -> None:
    """A new option says in `ELSEWHERE` or `EVERYWHERE` where it has an effect."""
    listed = {each.flag: help_of(each) for each in (DUMP, CONFIG, *all_options()) if not each.is_yaml_only}
    suites = {text.partition("=")[0]: ", ".join(suites) for text, suites in ELSEWHERE.items()}
    inputs = {
        "--msprobe-gradients": GRADIENTS,
        "--msprobe-dump": "precheck, comparison, overflow, repeat, sharded, laws",
    }
    tested_elsewhere = ("--msprobe-config", "--msprobe-suite", "--msprobe-resume", "--msprobe-timeout")
    everywhere = [text.partition("=")[0] for text in EVERYWHERE]
    expected = {**suites, **dict.fromkeys((*everywhere, *tested_elsewhere), "every suite"), **inputs}
    assert {flag: text.rpartition(" (")[2].partition(";")[0] for flag, text in listed.items()} == expected


def needed(text: str) -> list[str]:
    """What stands beside the option `text`, so that it has an effect."""
    flag = text.partition("=")[0]
    return [NEEDS[flag]] if flag in NEEDS else []


def asked(suite: str) -> dict[str, bool]:
    """Whether `suite` honours each option, by the option's text; without what would need workers."""
    found = {text: suite in suites for text, suites in ELSEWHERE.items()} | dict.fromkeys(EVERYWHERE, True)
    return {text: honours for text, honours in found.items() if not (honours and text.startswith(FOR_WORKERS))}


def complaint(text: str, suite: str, honours: bool, run: Run) -> str:
    """What is wrong with the way in which `suite` took the option `text`; "" for nothing."""
    if honours:
        # Some need more than the sample has, such as construct.json: that is found when a dump is read.
        return f"{text} should be taken: {run.text}" if run.exit_code == pytest.ExitCode.USAGE_ERROR else ""
    lines = [line for line in run.text.splitlines() if line.startswith("ERROR: ")]
    if run.exit_code != pytest.ExitCode.USAGE_ERROR or len(lines) != 1:
        return f"{text} is not refused: exit code {run.exit_code}, {lines}"
    if text.partition("=")[0] not in lines[0] or suite not in lines[0]:
        return f"{text}: the refusal does not name option and suite: {lines[0]}"
    return ""


@pytest.mark.one_suite
def test_options_are_honoured_or_refused(workspace: Workspace, suite: str) -> None:
    (workspace.folder / "names.yaml").write_text("a.forward.output.0: b.forward.output.0\n")
    (workspace.folder / "layers.yaml").write_text("Dense:\n  weight: weight\n")
    (workspace.folder / "known.json").write_text('{"baseline": 1}')
    (workspace.folder / "rules.yaml").write_text("- apis: [Custom.other]\n  outputs: [0]\n")
    (workspace.folder / "exact").mkdir()
    (workspace.folder / "exact" / "dump.json").write_text(_EXACT)
    golden = next((a.partition("=")[2] for a in workspace.sample.arguments if "golden" in a), "step0")
    words = {"python": sys.executable, "golden": golden, "folder": str(workspace.folder), "logical": "logical"}
    options = asked(suite)
    # Named, since a golden dump would make any run a comparison.
    named = ("--collect-only", "-q", f"--msprobe-suite={suite}")
    runs = workspace.run_all(
        [*named, text.format(**words), *(needed(text) if honours else ())] for text, honours in options.items()
    )
    found = [complaint(text, suite, honours, run) for (text, honours), run in zip(options.items(), runs)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.one_suite
@pytest.mark.parametrize("option", FOR_WORKERS)
def test_options_for_workers_are_honoured_or_refused(workspace: Workspace, plain: Run, suite: str, option: str) -> None:
    """With two workers every record has its row; of a suite that compares devices, one on each device."""
    ((text, suites),) = [(text, suites) for text, suites in ELSEWHERE.items() if text.startswith(option)]
    run = workspace.run("-n2", f"--msprobe-suite={suite}", text)
    if (suite, option) == (PRECHECK, "--msprobe-device-ids"):
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR  # the sample has no device; tests/plugin/test_npu.py has
        assert "ERROR: --msprobe-device-ids=0,1: nothing is run on a device here" in run.text
        return
    if suite not in suites:
        assert complaint(text, suite, honours=False, run=run) == ""
        return
    devices = ("-device0", "-device1") if (suite, option) == (REPEAT, "--msprobe-device-ids") else ("",)
    ids = [
        f"{node_id}{device}" if node_id.endswith(DIRECTIONS) else node_id
        for node_id in plain.by_id
        for device in devices
    ]
    assert_whole(run, dict.fromkeys(ids))


@pytest.mark.one_suite
def test_an_ini_value_that_has_no_effect_is_no_error(workspace: Workspace, suite: str) -> None:
    """A project's ini file serves runs of all its suites."""
    (workspace.folder / "pytest.ini").write_text("[pytest]\nmsprobe_cosine = 0.9\nmsprobe_gradient_drop = 0.9\n")
    (run,) = workspace.run_all([["--collect-only", "-q"]])
    assert run.exit_code == pytest.ExitCode.OK, run.text
