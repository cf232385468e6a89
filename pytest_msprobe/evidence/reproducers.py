"""Reproducers: a script of MindSpore and NumPy for every failing API call, that goes into a bug report with its values.

The call in it is made of names and literals, `mint.matmul(x0, x1)`, never of text of the dump.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName, Dtype, dtype_of_array, tensors_in
from msprobe_collector.dump_format.values import shortened
from msprobe_collector.dump_format.writing.encoding import stored_form
from pytest_msprobe.apis.fact_table import writes_in_place
from pytest_msprobe.apis.operators import find_operator, refused_argument, unknown_operator
from pytest_msprobe.cases.edge_cases import EDGE_CASES
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, NumpyArgument, leaves
from pytest_msprobe.engines.torch_bindings import NoCounterpart, lookup
from pytest_msprobe.evidence import (
    BothResults,
    Evidence,
    EvidenceFolder,
    dump_folder,
    file_stem,
    make_folder,
    write_file,
)
from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.verdicts import Verdict

_TYPES = ("Mint", "MintFunctional", "Functional", "Tensor", "Primitive")
#: Attributes of a MindSpore tensor that dumps record as if they were methods.
_PROPERTIES = frozenset({"T", "H", "mT", "dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"})
_PRIMITIVE_IMPORT = """\
try:
    from mindspore.ops import {name}
except ImportError:
    from mindspore.ops.auto_generate import {name}"""


class NoScript(Exception):
    """A call that cannot be written as a script; the text says why."""


@dataclass(slots=True)
class ScriptCall:
    """The parts of a script that make one call.

    Attributes:
        roots: modules of MindSpore that the call begins with.
        imports: lines that import what else it needs.
        api: the callable as people call it: `mint.matmul`, `Tensor.reshape`, `ops.Abs`; from the table of operators.
        arrays: arrays by the name of their variable.
        paths: the variable that stands at a place among the arguments.
        arguments, keywords: texts of the arguments.
        attributes: texts of what the class of a Primitive is called with.
    """

    api: str
    roots: tuple[str, ...] = ()
    imports: str = ""
    arrays: dict[str, Array] = field(default_factory=dict)
    numpy_names: set[str] = field(default_factory=set)
    paths: dict[LeafPath, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> list[str]:
        """Variables that are tensors."""
        return [name for name in self.arrays if name not in self.numpy_names]

    def expression(self, api: ApiName, *, copies_first: bool) -> str:
        """The call as an expression. `copies_first`: the API writes to its first argument, which must outlive it."""
        arguments = list(self.arguments)
        if copies_first and arguments[:1] and arguments[0] in self.arrays:
            arguments[0] = f"({arguments[0]} * 1)"
        name = self.api.rpartition(".")[2]
        if api.type != "Tensor":
            made = f"{name}({joined((), self.attributes)})" if api.type == "Primitive" else self.api
            return f"{made}({joined(arguments, self.keywords)})"
        if name in _PROPERTIES and len(arguments) == 1:
            return f"{arguments[0]}.{name}"
        return f"{arguments[0]}.{name}({joined(arguments[1:], self.keywords)})"


def script_call(call: Call) -> ScriptCall:
    """`call` in parts of source text.

    Raises:
        NoScript: its API or an argument cannot be written down.
    """
    api = call.api
    if call.framework != "mindspore":
        raise NoScript(f"the dump is one of {call.framework}, and reproducers run on MindSpore")
    if api.type not in _TYPES:
        raise NoScript(f"calls of type {api.type!r} cannot be made by a script")
    path = find_operator("mindspore", api.type, api.table_name)
    if path is None:
        raise NoScript(f"{api.type}.{api.table_name} is {unknown_operator('mindspore', api.type)}")
    script = _begin(api, path)
    for index, value in enumerate(call.arguments):
        script.arguments.append(_text(script, api.short, ("input", index), value))
    for kind, field_, named, texts in (
        ("keyword", "kwargs", call.keywords, script.keywords),
        ("attribute", "attributes", call.attributes or {}, script.attributes),
    ):
        for key, value in named.items():
            if not (key.isascii() and key.isidentifier()) or keyword.iskeyword(key):
                raise NoScript(f"the {kind} {key!r} is not a name in Python")
            texts[key] = _text(script, api.short, (field_, key), value)
    if api.type == "Tensor" and (not call.arguments or script.arguments[0] not in script.arrays):
        raise NoScript("the tensor whose method it is was not recorded")
    return script


def joined(arguments: Sequence[str], keywords: Mapping[str, str]) -> str:
    """Texts of arguments as they stand between parentheses."""
    return ", ".join([*arguments, *(f"{key}={text}" for key, text in keywords.items())])


def _begin(api: ApiName, path: str) -> ScriptCall:
    name = path.rpartition(".")[2]
    if api.type == "Primitive":
        return ScriptCall(f"ops.{name}", imports=_PRIMITIVE_IMPORT.format(name=name))
    inside = path.removeprefix("mindspore.")
    return ScriptCall(inside, roots=() if api.type == "Tensor" else (inside.partition(".")[0],))


def _text(script: ScriptCall, operator: str, path: LeafPath, value: Any) -> str:
    if isinstance(value, (np.ndarray, NumpyArgument)):
        name = f"x{len(script.arrays)}"
        if isinstance(value, NumpyArgument):
            script.numpy_names.add(name)
            value = value.array
        script.arrays[name], script.paths[path] = value, name
        return name
    if isinstance(value, (tuple, list)):
        items = [_text(script, operator, (*path, index), item) for index, item in enumerate(value)]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, str) and (reason := refused_argument(operator, value)) is not None:
        raise NoScript(reason)
    return _literal(value)


def _literal(value: Any) -> str:
    if isinstance(value, Dtype):
        return dtype_text(value)
    if isinstance(value, slice):
        return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float, str)):
        return ascii(value)
    raise NoScript(f"an argument of type {type(value).__name__} cannot be written down")


def dtype_text(dtype: Dtype) -> str:
    """The dtype as a script writes it: `ms.float16`.

    Raises:
        NoScript: MindSpore has no name for the dtype.
    """
    if dtype.array_name is None:
        raise NoScript(f"there is no array type for {dtype.name}")
    return f"ms.{'bool_' if dtype.kind == 'bool' else dtype.array_name}"


_WIDEST_TEXT = 500

#: A function of the script, which prints both results and how far they are apart.
_SHOW = Path(__file__).with_name("show.txt")


@dataclass(slots=True)
class Reproducer:
    """A script, the arrays that it loads by name, and a test by `assert_rounding_only`; "" where there is none."""

    text: str
    arrays: dict[str, Any]
    test: str = ""


def write_reproducer(evidence: Evidence, stem: str) -> Reproducer:
    """The script for `evidence`, for files called `stem`.

    Raises:
        NoScript: the call cannot be written as a script.
    """
    call = script_call(evidence.case.call)
    arrays: dict[str, Any] = {name: stored_form(array) for name, array in call.arrays.items()}
    recorded = [*_recorded(evidence, arrays)]
    run = [*recorded, *_forward(evidence, call)]
    if evidence.results.incoming is not None:
        run += _backward(evidence, evidence.results.incoming, call, arrays)
    run += _torch(evidence, call)
    is_complex = any(getattr(array, "dtype", np.dtype(bool)).kind == "c" for array in arrays.values())
    show = _SHOW.read_text(encoding="utf-8").rstrip().replace("WIDE", "np.complex128" if is_complex else "np.float64")
    made = [*_setup(evidence, call), *_call(evidence, call)]
    lines = [_docstring(evidence, call, stem), *_imports(call), *made, show, *run]
    return Reproducer("\n".join(lines) + "\n", arrays, "\n".join(_test(evidence, call, stem)))


def in_docstring(text: str) -> str:
    """One line of `text` that a docstring can hold: nothing in it ends the string, breaks the line or is invisible."""
    visible = "".join(map(_visible, shortened(text, _WIDEST_TEXT)))
    return " ".join(visible.replace("\\", "\\\\").replace('"""', r"\"\"\"").split())


def _visible(character: str) -> str:
    if character in "\n\r\t":
        return " "
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def _docstring(evidence: Evidence, call: ScriptCall, stem: str) -> str:
    case, last = evidence.case, list(evidence.verdicts.values())[-1]
    frame = evidence.dump.stacks.user_frame(f"{case.api}.forward")
    what = "gradients" if evidence.results.incoming is not None else "results"
    where = f"in the edge case {case.constructed}" if case.constructed else "in a training step"
    shapes = (f"{name} {_described(array)}" for name, array in call.arrays.items())
    facts: dict[str, str] = {"API": f"mindspore.{call.api}, {case.api} in the dump"}
    facts |= {"arguments": ", ".join(shapes) or "no tensors", "values": _origin(evidence)}
    facts |= zip(evidence.verdicts, map(_verdict, evidence.verdicts.values()))
    facts["tested"] = f"{last.device}; benchmark: {last.bench}, rounded once to the tested dtype"
    facts["called from"] = str(frame) if frame else "unknown"
    facts["versions"] = _versions()
    lines = [f'"""mindspore.{call.api}: wrong {what} {where}, found by pytest-msprobe.', ""]
    lines += [_wrapped(name, in_docstring(text)) for name, text in facts.items()]
    lines += [
        "",
        f"Run `python {stem}.py [CPU|Ascend]` beside {stem}.npz.",
        'Needs MindSpore and NumPy. Where PyTorch is installed it computes the benchmark again.\n"""',
    ]
    return "\n".join(lines)


def _origin(evidence: Evidence) -> str:
    """Where the input values come from."""
    case = evidence.case
    tensors = [*tensors_in(case.forward.arguments), *tensors_in(case.forward.keywords)]
    is_recorded = all(tensor.data_name is not None for tensor in tensors)
    recorded = "recorded in the training run" if is_recorded else f"random in the recorded range, seed {evidence.seed}"
    if not case.constructed:
        return recorded
    return f"edge case {case.constructed} of {recorded}: {EDGE_CASES[case.constructed]}"


def _verdict(finding: Verdict) -> str:
    if finding.status == "pass":
        return "pass"
    outputs = [f"{output.label}: {output.message}" for output in finding.outputs if output.message]
    return "; ".join(filter(None, [finding.message, *outputs]))


def _imports(call: ScriptCall) -> list[str]:
    roots = sorted({"ops", *call.roots})
    lines = ["", "import sys", "from pathlib import Path", "", "import mindspore as ms", "import numpy as np"]
    return [*lines, f"from mindspore import {', '.join(roots)}", *filter(None, [call.imports])]


def _setup(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    yield "\nif len(sys.argv) > 1:"
    yield "    ms.set_device(sys.argv[1])"
    yield "ms.set_context(mode=ms.PYNATIVE_MODE)"
    yield "ms.runtime.launch_blocking()"
    yield 'stored = np.load(Path(__file__).with_suffix(".npz"))'
    for name, array in call.arrays.items():
        dtype = dtype_of_array(array.dtype)
        if dtype is None:
            raise NoScript(f"there is no tensor of {array.dtype}")
        if name in call.numpy_names:
            yield f'{name} = stored["{name}"]'
            continue
        yield f'{name} = ms.Tensor(stored["{name}"], {dtype_text(dtype)})'
        if evidence.case.call.is_strided and array.ndim > 1:
            yield f"{name} = {name}.swapaxes(-1, -2).contiguous().swapaxes(-1, -2)  # not contiguous"
    yield ""


def _call(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    api = evidence.case.api
    yield f"\ndef call({', '.join(_parameters(evidence, call))}):"
    if writes_in_place(api):
        yield "    # Writes to its first argument: it gets a copy."
    yield f"    return {call.expression(api, copies_first=writes_in_place(api))}"
    yield "\n"


def _parameters(evidence: Evidence, call: ScriptCall) -> list[str]:
    if evidence.results.incoming is not None:
        return [call.paths[path] for path in evidence.case.wanted]
    return call.tensors


def _recorded(evidence: Evidence, arrays: dict[str, Any]) -> Iterator[str]:
    """What was judged, against the benchmark; puts both into `arrays`."""
    results = evidence.results
    outputs = [
        (f"output.{'.'.join(map(str, path))}", f"recorded{number}", f"benchmark{number}", tested, bench)
        for number, (path, tested, bench) in enumerate(_paired(results))
    ]
    gradients = results.bench_gradients or ()
    tested_gradients = results.tested_gradients or (None,) * len(gradients)
    for position, (tested, bench) in enumerate(zip(tested_gradients, gradients)):
        if bench is not None and results.incoming is not None:
            names = f"gradient{position}", f"gradient_benchmark{position}"
            outputs.append((f"gradient {position}", *names, tested, bench))
    is_recorded = list(evidence.verdicts.values())[-1].device == "recorded values"
    origin = "recorded in the training run" if is_recorded else "as tested"
    yield "\n"
    for title, name, bench_name, tested, bench in outputs:
        arrays[bench_name] = _storable(_rounded(bench, tested))
        if tested is not None:
            arrays[name] = _storable(tested)
            yield f'show({_quoted(f"{title}, {origin}")}, stored["{name}"], stored["{bench_name}"])'


def _forward(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    yield """\nprint(f"\\nNow on MindSpore {ms.__version__}, {ms.get_context('device_target')}")"""
    yield f"outputs = call({', '.join(_parameters(evidence, call))})"
    if evidence.results.bench is None:
        yield "print(outputs)"
        return
    yield "outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)"
    for number, (path, _, _) in enumerate(_paired(evidence.results)):
        steps = "".join(f"[{step!a}]" for step in path)
        title = _quoted(f"output.{'.'.join(map(str, path))}, now")
        yield f'show({title}, outputs{steps}, stored["benchmark{number}"])'


def _paired(results: BothResults) -> list[tuple[tuple[int | str, ...], Any, Any]]:
    """(path, tested, benchmark) of the outputs that there are, in order; tested is None when that side raised."""
    bench = [output for output in results.bench or () if output.value is not None]
    if results.tested is None:
        return [(expected.path, None, expected.value) for expected in bench]
    tested = [output.value for output in results.tested if output.value is not None]
    return [(expected.path, actual, expected.value) for actual, expected in zip(tested, bench)]


def _backward(
    evidence: Evidence, incoming: Sequence[Array | None], call: ScriptCall, arrays: dict[str, Any]
) -> Iterator[str]:
    results, parameters = evidence.results, _parameters(evidence, call)
    carrying, seeds = _seeds(results, incoming, arrays)
    names = ", ".join(parameters)
    function = "call"
    yield ""
    if len(carrying) != 1 or len(results.tested or results.bench or ()) != 1:
        yield f"\ndef differentiable({names}):"
        yield f"    outputs = call({names})"
        yield f"    return {', '.join(f'outputs[{index}]' for index in carrying)}\n\n"
        function = "differentiable"
    yield f"incoming = {seeds[0] if len(seeds) == 1 else '(' + ', '.join(seeds) + ')'}"
    yield f"gradients = ops.GradOperation(get_all=True, sens_param=True)({function})({names}, incoming)"
    for position, name in enumerate(parameters):
        if results.bench_gradients is None or results.bench_gradients[position] is None:
            yield f'print("gradient {position}, of {name}:", gradients[{position}])'
        else:
            title = f"gradient {position}, of {name}, now"
            yield f'show("{title}", gradients[{position}], stored["gradient_benchmark{position}"])'


def _seeds(
    results: BothResults, incoming: Sequence[Array | None], arrays: dict[str, Any]
) -> tuple[list[int], list[str]]:
    """(positions of the outputs that carry a gradient, text of the incoming gradient of each)."""
    carrying, seeds = [], []
    tensors = [
        (output.path[0], output.value)
        for output in results.tested or results.bench or ()
        if len(output.path) == 1 and isinstance(output.value, np.ndarray)
    ]
    for number, (position, value) in enumerate(tensors):
        dtype = dtype_of_array(value.dtype)
        if dtype is None or dtype.kind not in ("float", "complex"):
            continue
        seed = incoming[number] if number < len(incoming) else None
        carrying.append(int(position))
        if seed is None:
            seeds.append(f"ops.zeros_like(outputs[{position}])")
        else:
            arrays[f"incoming{number}"] = stored_form(seed)
            seeds.append(f'ms.Tensor(stored["incoming{number}"], {dtype_text(dtype)})')
    if not carrying:
        raise NoScript("no output of the call can carry a gradient")
    return carrying, seeds


def _torch(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    """PyTorch as a second opinion on the benchmark, for calls that it takes under its own name with one output."""
    text, results = _reference(evidence, call), evidence.results
    if text is None:
        return
    yield "\ntry:\n    import torch\nexcept ImportError:\n    torch = None"
    yield "if torch:"
    for name, array in call.arrays.items():
        is_float = getattr(dtype_of_array(array.dtype), "kind", "") == "float"
        widened = '.astype("float64")' if is_float else ""
        yield f'    {name} = torch.from_numpy(stored["{name}"]{widened})'
    has_gradients = results.incoming and results.incoming[0] is not None and results.bench_gradients is not None
    is_whole = has_gradients and all(gradient is not None for gradient in results.bench_gradients or ())
    wanted = _parameters(evidence, call) if is_whole else []
    yield from (f"    {name}.requires_grad_()" for name in wanted)
    yield f"    output = {text}"
    shown = "output.detach()" if wanted else "output"
    yield f'    show(f"output.0, PyTorch {{torch.__version__}} in float64", {shown}, stored["benchmark0"])'
    if wanted:
        yield '    incoming = torch.from_numpy(stored["incoming0"]).to(output.dtype)'
        yield f"    gradients = torch.autograd.grad(output, [{', '.join(wanted)}], incoming)"
    for position in range(len(wanted)):
        yield f'    show("gradient {position}, PyTorch", gradients[{position}], stored["gradient_benchmark{position}"])'


def _reference(evidence: Evidence, call: ScriptCall) -> str | None:
    """The call as one of PyTorch with one output, as text; None where there is none."""
    if writes_in_place(evidence.case.api) or call.numpy_names or len(_paired(evidence.results)) != 1:
        return None
    return torch_text(evidence.case.call, call.arguments, {**call.attributes, **call.keywords})


def _test(evidence: Evidence, call: ScriptCall, stem: str) -> Iterator[str]:
    """The call against PyTorch in float64 as a test, with its recorded result where that is one tensor."""
    text = _reference(evidence, call)
    if text is None or not _parameters(evidence, call):
        return
    tested, inputs = _paired(evidence.results)[0][1], ", ".join(call.tensors)
    yield f'"""Is {in_docstring(call.api)} off by rounding only? Needs pytest-msprobe, MindSpore and PyTorch."""'
    yield from [line.replace("import sys", "") for line in _imports(call)][2:]
    yield from ("import torch", "", "from pytest_msprobe import assert_rounding_only", "")
    yield f'stored = np.load(Path(__file__).with_name("{stem}.npz"))'
    arrays = dict(call.arrays)
    if isinstance(tested, np.ndarray):
        arrays["recorded0"] = tested
    for name, array in arrays.items():
        if (dtype := dtype_of_array(array.dtype)) is not None:
            yield f'{name} = ms.Tensor(stored["{name}"], {dtype_text(dtype)})'
    yield f"\n\ndef call({inputs}):\n    return {call.expression(evidence.case.api, copies_first=False)}\n"
    yield f"\ndef reference({inputs}):\n    return {text}\n"
    gradients = evidence.results.incoming is not None
    yield f"\ndef test_now():\n    assert_rounding_only(call, reference, {inputs}, gradients={gradients})\n"
    if "recorded0" in arrays:
        yield f"\ndef test_recorded():\n    assert_rounding_only(recorded0, reference, {inputs}, gradients=False)\n"


def torch_text(call: Call, texts: Sequence[str], named: Mapping[str, str]) -> str | None:
    """The PyTorch call of `call` over texts of its arguments, or None when it takes more than one plain expression."""
    binding = lookup(call.api.type, call.api.table_name, call.framework)
    has_dtypes = any(isinstance(value, (Dtype, NumpyArgument)) for _, value in leaves(call))
    if isinstance(binding, NoCounterpart) or has_dtypes or binding.target.startswith("references."):
        return None
    if not binding.forms:
        return f"{binding.target}({joined(texts, named)})"
    for form in binding.forms:
        try:
            form.bind(call.arguments, call.keywords, {}, call.attributes)
            accepted = {name: text for name, text in named.items() if name in form.signature.parameters}
            bound = form.signature.bind(*texts, **accepted)
        except (TypeError, KeyError):
            continue
        expressions = {name: text for name, text in bound.arguments.items() if isinstance(text, str)}
        if len(expressions) < len(bound.arguments) or any(name.startswith("adapters") for name in form.targets()):
            return None
        copy = ast.parse(ast.unparse(form.expression))
        return ast.unparse(_Filled(expressions, form.signature.parameters).visit(copy))
    return None


class _Filled(ast.NodeTransformer):
    """Puts the texts of arguments, or defaults, where a table's expression names parameters."""

    def __init__(self, texts: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        self._texts = texts
        self._parameters = parameters

    def visit_Name(self, node: ast.Name) -> ast.expr:  # the name that ast asks for
        if node.id in self._texts:
            return ast.parse(self._texts[node.id], mode="eval").body
        parameter = self._parameters.get(node.id)
        return node if parameter is None else parameter.default


def _wrapped(name: str, text: str) -> str:
    first, others = f"{name:13}", " " * 13
    wrapper = textwrap.TextWrapper(110, first, others, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)


def _quoted(text: str) -> str:
    """`text` as a string literal."""
    return json.dumps(text) if text.isascii() else ascii(text)


def _rounded(bench: Any, tested: Any) -> Any:
    """The benchmark's value as a perfect device would return it."""
    if hasattr(bench, "__array_interface__") and hasattr(tested, "__array_interface__"):
        return round_once(bench, tested.dtype)
    return bench


def _storable(value: Any) -> Any:
    return stored_form(value) if isinstance(value, np.ndarray) else np.asarray(value)


def _described(array: Any) -> str:
    dtype = dtype_of_array(array.dtype)
    return f"{dtype.name if dtype is not None else array.dtype} {tuple(array.shape)}"


def _versions() -> str:
    versions = [f"Python {platform.python_version()}", platform.platform()]
    for name in ("numpy", "torch", "mindspore"):
        try:
            versions.insert(0, f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)


class Reproducers:
    """Writes `<API call>.py` and `<API call>.npz`; the script of a failing backward runs the forward as well."""

    def __init__(self, folder: EvidenceFolder, dumps: Sequence[Path]) -> None:
        """A writer into `folder`, with one sub-folder for each of `dumps` when there are several."""
        self._folder = folder
        self._dumps = dumps

    def save(self, evidence: Evidence) -> str:
        """See `EvidenceWriter.save`."""
        stem = file_stem("-".join(filter(None, (str(evidence.case.api), evidence.case.constructed))))
        try:
            made = write_reproducer(evidence, stem)
        except NoScript as reason:
            return f"reproducer: none, {reason}"
        place = self._folder.root / dump_folder(evidence.dump.path, self._dumps)
        script = place / f"{stem}.py"
        text = made.text.encode()
        with self._folder.locked() as state:
            is_new = not script.exists()
            if not is_new and evidence.results.incoming is None:
                return f"reproducer: {script}"  # that of the backward, which holds the forward
            if not self._folder.take(state, sum(array.nbytes for array in made.arrays.values()) + len(text)):
                return "reproducer: not written, --msprobe-error-data-limit is used up"
            state.saved += is_new
        make_folder(place)
        write_file(place / f"{stem}.npz", lambda file: np.savez(file, **made.arrays))
        write_file(script, lambda file: file.write(text))
        if made.test:
            name = re.sub(r"\W", "_", stem)  # of a module
            write_file(place / f"test_{name}.py", lambda file: file.write(made.test.encode()))
        return f"reproducer: {script}"
