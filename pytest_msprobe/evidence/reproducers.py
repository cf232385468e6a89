"""Reproducers: a script and its values for every failing API call, in a folder that the processes of a run share.

The text of a reproducer: a script of MindSpore and NumPy that goes into a bug report with its values.

A recorded API call as Python: `mint.matmul(x0, x1)`. Only names and literals, never text of the dump.
"""

from __future__ import annotations

import json
import keyword
import math
import platform
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from msprobe_collector.dump_format import ApiName, Dtype, dtype_of_array
from msprobe_collector.dump_format.writing.encoding import stored_form
from pytest_msprobe.apis.operators import find_operator, refused_argument, unknown_operator
from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.evidence.evidence import Evidence, Gradients, NumpyValue, ValuePath, dump_folder, file_stem
from pytest_msprobe.evidence.folder import EvidenceFolder, make_folder, write_file

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
    paths: dict[ValuePath, str] = field(default_factory=dict)
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


def script_call(evidence: Evidence) -> ScriptCall:
    """The call of `evidence` in parts of source text.

    Raises:
        NoScript: its API or an argument cannot be written down.
    """
    api = evidence.api
    if evidence.framework != "mindspore":
        raise NoScript(f"the dump is one of {evidence.framework}, and reproducers run on MindSpore")
    if api.type not in _TYPES:
        raise NoScript(f"calls of type {api.type!r} cannot be made by a script")
    path = find_operator("mindspore", api.type, api.table_name)
    if path is None:
        raise NoScript(f"{api.type}.{api.table_name} is {unknown_operator('mindspore', api.type)}")
    found = _begin(api, path)
    for index, value in enumerate(evidence.arguments):
        found.arguments.append(_text(found, api.short, ("input", index), value))
    for key, value in evidence.keywords.items():
        if not is_name(key):
            raise NoScript(f"the keyword {key!r} is not a name in Python")
        found.keywords[key] = _text(found, api.short, ("kwargs", key), value)
    for key, value in (evidence.attributes or {}).items():
        if not is_name(key):
            raise NoScript(f"the attribute {key!r} is not a name in Python")
        found.attributes[key] = _text(found, api.short, ("attributes", key), value)
    if api.type == "Tensor" and (not evidence.arguments or found.arguments[0] not in found.arrays):
        raise NoScript("the tensor whose method it is was not recorded")
    return found


def is_name(text: str) -> bool:
    """Whether `text` is a plain Python name."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def joined(arguments: Sequence[str], keywords: Mapping[str, str]) -> str:
    """Texts of arguments as they stand between parentheses."""
    return ", ".join([*arguments, *(f"{key}={text}" for key, text in keywords.items())])


def _begin(api: ApiName, path: str) -> ScriptCall:
    name = path.rpartition(".")[2]
    if api.type == "Primitive":
        return ScriptCall(f"ops.{name}", imports=_PRIMITIVE_IMPORT.format(name=name))
    inside = path.removeprefix("mindspore.")
    return ScriptCall(inside, roots=() if api.type == "Tensor" else (inside.partition(".")[0],))


def _text(found: ScriptCall, operator: str, path: ValuePath, value: Any) -> str:
    if isinstance(value, (np.ndarray, NumpyValue)):
        name = f"x{len(found.arrays)}"
        found.arrays[name] = value.array if isinstance(value, NumpyValue) else value
        if isinstance(value, NumpyValue):
            found.numpy_names.add(name)
        found.paths[path] = name
        return name
    if isinstance(value, (tuple, list)):
        items = [_text(found, operator, (*path, index), item) for index, item in enumerate(value)]
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

_SHOW = '''\
def show(title, result, benchmark):
    """Print both results, how far they are apart, and where most."""
    if isinstance(result, ms.Tensor):
        result = (result.float() if result.dtype == ms.bfloat16 else result).asnumpy()
    result, benchmark = np.asarray(result), np.asarray(benchmark)
    print(f"\\n{title}\\n  result     {np.array2string(result.ravel(), threshold=6, max_line_width=120)}")
    print(f"  benchmark  {np.array2string(benchmark.ravel(), threshold=6, max_line_width=120)}")
    if result.shape != benchmark.shape or result.dtype.kind == "U" or not result.size:
        print(f"  shapes {result.shape} and {benchmark.shape}, equal: {np.array_equal(result, benchmark)}")
        return
    a, b = result.astype(WIDE), benchmark.astype(WIDE)
    with np.errstate(all="ignore"):
        is_same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(is_same, 0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        relative = np.where(is_same, 0, error / np.abs(b))
        cosine = np.vdot(b, a).real / (np.linalg.norm(a.ravel()) * np.linalg.norm(b.ravel()))
    worst = tuple(map(int, np.unravel_index(np.argmax(error), error.shape)))
    print(f"  max abs {error.max():.6g}, max rel {relative.max():.6g}, cosine {cosine:.9g}")
    if error.max():
        print(f"  worst element {list(worst)}: {a[worst]} instead of {b[worst]}")\
'''


@dataclass(slots=True)
class Reproducer:
    """A script and the arrays that it loads by name."""

    text: str
    arrays: dict[str, Any]


def write_reproducer(evidence: Evidence, stem: str) -> Reproducer:
    """The script for `evidence`, for files called `stem`.

    Raises:
        NoScript: the call cannot be written as a script.
    """
    call = script_call(evidence)
    arrays: dict[str, Any] = {name: stored_form(array) for name, array in call.arrays.items()}
    recorded = [*_recorded(evidence, arrays)]
    run = [*recorded, *_forward(evidence, call)]
    if evidence.gradients is not None:
        run += _backward(evidence, evidence.gradients, call, arrays)
    run += _torch(evidence, call)
    is_complex = any(getattr(array, "dtype", np.dtype(bool)).kind == "c" for array in arrays.values())
    show = _SHOW.replace("WIDE", "np.complex128" if is_complex else "np.float64")
    made = [*_setup(evidence, call), *_call(evidence, call)]
    lines = [_docstring(evidence, call, stem), *_imports(call), *made, show, *run]
    return Reproducer("\n".join(lines) + "\n", arrays)


def in_docstring(text: str) -> str:
    """One line of `text` that a docstring can hold: nothing in it ends the string, breaks the line or is invisible."""
    shown = text if len(text) <= _WIDEST_TEXT else f"{text[: _WIDEST_TEXT - 3]}..."
    visible = "".join(c if c.isprintable() else " " if c in "\n\r\t" else f"\\u{ord(c):04x}" for c in shown)
    return " ".join(visible.replace("\\", "\\\\").replace('"""', r"\"\"\"").split())


def _docstring(evidence: Evidence, call: ScriptCall, stem: str) -> str:
    frame = evidence.called_from
    what = "gradients" if evidence.gradients is not None else "results"
    where = f"in the edge case {evidence.edge_case}" if evidence.edge_case else "in a training step"
    shapes = [f"{name} {_described(array)}" for name, array in call.arrays.items()]
    facts = [
        ("API", f"mindspore.{call.api}, {evidence.api} in the dump"),
        ("arguments", ", ".join(shapes) or "no tensors"),
        ("values", evidence.inputs),
        *((direction, text) for direction, text in evidence.verdicts.items()),
        ("tested", f"{evidence.device}; benchmark: {evidence.bench_name}, rounded once to the tested dtype"),
        ("called from", f"{frame.file}:{frame.line}, in {frame.function}: {frame.source}" if frame else "unknown"),
        ("versions", _versions()),
    ]
    lines = [f'"""mindspore.{call.api}: wrong {what} {where}, found by pytest-msprobe.', ""]
    lines += [_wrapped(name, in_docstring(text)) for name, text in facts]
    lines += [
        "",
        f"Run `python {stem}.py [CPU|Ascend]` beside {stem}.npz.",
        'Needs MindSpore and NumPy. Where PyTorch is installed it computes the benchmark again.\n"""',
    ]
    return "\n".join(lines)


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
        is_tensor = name not in call.numpy_names
        yield (
            f'{name} = ms.Tensor(stored["{name}"], {dtype_text(dtype)})' if is_tensor else f'{name} = stored["{name}"]'
        )
        if evidence.is_strided and is_tensor and array.ndim > 1:
            yield f"{name} = {name}.swapaxes(-1, -2).contiguous().swapaxes(-1, -2)  # not contiguous"
    yield ""


def _call(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    yield f"\ndef call({', '.join(_parameters(evidence, call))}):"
    if evidence.is_in_place:
        yield "    # Writes to its first argument: it gets a copy."
    yield f"    return {call.expression(evidence.api, copies_first=evidence.is_in_place)}"
    yield "\n"


def _parameters(evidence: Evidence, call: ScriptCall) -> list[str]:
    if evidence.gradients is not None:
        return [call.paths[path] for path in evidence.gradients.wanted]
    return call.tensors


def _recorded(evidence: Evidence, arrays: dict[str, Any]) -> Iterator[str]:
    """What was judged, against the benchmark; puts both into `arrays`."""
    yield "\n"
    for number, (path, tested, bench) in enumerate(_paired(evidence)):
        arrays[f"benchmark{number}"] = _storable(evidence.rounded(bench, tested))
        if tested is not None:
            arrays[f"recorded{number}"] = _storable(tested)
            title = _seen(evidence, f"output.{'.'.join(map(str, path))}")
            yield f'show({title}, stored["recorded{number}"], stored["benchmark{number}"])'
    gradients = evidence.gradients
    if gradients is None or gradients.bench is None:
        return
    for position, bench in enumerate(gradients.bench):
        tested = gradients.tested[position] if gradients.tested is not None else None
        if bench is None:
            continue
        arrays[f"gradient_benchmark{position}"] = _storable(evidence.rounded(bench, tested))
        if tested is not None:
            arrays[f"gradient{position}"] = _storable(tested)
            title = _seen(evidence, f"gradient {position}")
            yield f'show({title}, stored["gradient{position}"], stored["gradient_benchmark{position}"])'


def _forward(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    yield """\nprint(f"\\nNow on MindSpore {ms.__version__}, {ms.get_context('device_target')}")"""
    yield f"outputs = call({', '.join(_parameters(evidence, call))})"
    if evidence.bench is None:
        yield "print(outputs)"
        return
    yield "outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)"
    for number, (path, _, _) in enumerate(_paired(evidence)):
        steps = "".join(f"[{step!a}]" for step in path)
        title = _quoted(f"output.{'.'.join(map(str, path))}, now")
        yield f'show({title}, outputs{steps}, stored["benchmark{number}"])'


def _paired(evidence: Evidence) -> list[tuple[tuple[str | int, ...], Any, Any]]:
    """(path, tested, benchmark) of the outputs that there are, in order; tested is None when that side raised."""
    bench = [(path, value) for path, value in evidence.bench or () if value is not None]
    if evidence.tested is None:
        return [(path, None, value) for path, value in bench]
    tested = [value for _, value in evidence.tested if value is not None]
    return [(path, actual, expected) for actual, (path, expected) in zip(tested, bench)]


def _backward(evidence: Evidence, gradients: Gradients, call: ScriptCall, arrays: dict[str, Any]) -> Iterator[str]:
    carrying, seeds = _seeds(evidence, gradients, arrays)
    parameters = _parameters(evidence, call)
    names = ", ".join(parameters)
    function = "call"
    yield ""
    if len(carrying) != 1 or len(evidence.tested or evidence.bench or ()) != 1:
        yield f"\ndef differentiable({names}):"
        yield f"    outputs = call({names})"
        yield f"    return {', '.join(f'outputs[{index}]' for index in carrying)}\n\n"
        function = "differentiable"
    yield f"incoming = {seeds[0] if len(seeds) == 1 else '(' + ', '.join(seeds) + ')'}"
    yield f"gradients = ops.GradOperation(get_all=True, sens_param=True)({function})({names}, incoming)"
    for position, name in enumerate(parameters):
        if gradients.bench is None or gradients.bench[position] is None:
            yield f'print("gradient {position}, of {name}:", gradients[{position}])'
        else:
            title = f"gradient {position}, of {name}, now"
            yield f'show("{title}", gradients[{position}], stored["gradient_benchmark{position}"])'


def _seeds(evidence: Evidence, gradients: Gradients, arrays: dict[str, Any]) -> tuple[list[int], list[str]]:
    """(positions of the outputs that carry a gradient, text of the incoming gradient of each)."""
    carrying, seeds = [], []
    tensors = [
        (path[0], value)
        for path, value in evidence.tested or evidence.bench or ()
        if len(path) == 1 and isinstance(value, np.ndarray)
    ]
    for number, (position, value) in enumerate(tensors):
        dtype = dtype_of_array(value.dtype)
        if dtype is None or dtype.kind not in ("float", "complex"):
            continue
        incoming = gradients.incoming[number] if number < len(gradients.incoming) else None
        carrying.append(int(position))
        if incoming is None:
            seeds.append(f"ops.zeros_like(outputs[{position}])")
        else:
            arrays[f"incoming{number}"] = stored_form(incoming)
            seeds.append(f'ms.Tensor(stored["incoming{number}"], {dtype_text(dtype)})')
    if not carrying:
        raise NoScript("no output of the call can carry a gradient")
    return carrying, seeds


def _torch(evidence: Evidence, call: ScriptCall) -> Iterator[str]:
    """PyTorch as a second opinion on the benchmark, for calls that it takes under its own name with one output."""
    text = None if evidence.is_in_place else evidence.torch_text(call.arguments, {**call.attributes, **call.keywords})
    if text is None or call.numpy_names or len(_paired(evidence)) != 1:
        return
    yield "\ntry:\n    import torch\nexcept ImportError:\n    torch = None"
    yield "if torch:"
    for name, array in call.arrays.items():
        dtype = dtype_of_array(array.dtype)
        widened = '.astype("float64")' if dtype is not None and dtype.kind == "float" else ""
        yield f'    {name} = torch.from_numpy(stored["{name}"]{widened})'
    wanted = _parameters(evidence, call) if _has_torch_gradients(evidence) else []
    yield from (f"    {name}.requires_grad_()" for name in wanted)
    yield f"    output = {text}"
    shown = "output.detach()" if wanted else "output"
    yield f'    show(f"output.0, PyTorch {{torch.__version__}} in float64", {shown}, stored["benchmark0"])'
    if wanted:
        yield '    incoming = torch.from_numpy(stored["incoming0"]).to(output.dtype)'
        yield f"    gradients = torch.autograd.grad(output, [{', '.join(wanted)}], incoming)"
    for position in range(len(wanted)):
        yield f'    show("gradient {position}, PyTorch", gradients[{position}], stored["gradient_benchmark{position}"])'


def _has_torch_gradients(evidence: Evidence) -> bool:
    gradients = evidence.gradients
    if gradients is None or gradients.bench is None or not gradients.incoming or gradients.incoming[0] is None:
        return False
    return all(gradient is not None for gradient in gradients.bench)


def _wrapped(name: str, text: str) -> str:
    indent = " " * 13
    return textwrap.fill(
        text, 110, initial_indent=f"{name:13}", subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _quoted(text: str) -> str:
    """`text` as a string literal."""
    return json.dumps(text) if text.isascii() else ascii(text)


def _seen(evidence: Evidence, title: str) -> str:
    origin = "recorded in the training run" if evidence.device == "recorded values" else "as tested"
    return _quoted(f"{title}, {origin}")


def _storable(value: Any) -> Any:
    return stored_form(value) if isinstance(value, np.ndarray) else np.asarray(value)


def _described(array: Any) -> str:
    dtype = dtype_of_array(array.dtype)
    return f"{dtype.name if dtype is not None else array.dtype} {tuple(array.shape)}"


def _versions() -> str:
    found = [f"Python {platform.python_version()}", platform.platform()]
    for name in ("numpy", "torch", "mindspore"):
        try:
            found.insert(0, f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


class Reproducers:
    """Writes `<API call>.py` and `<API call>.npz`; the script of a failing backward runs the forward as well."""

    def __init__(self, folder: EvidenceFolder, dumps: Sequence[Path]) -> None:
        """A writer into `folder`, with one sub-folder for each of `dumps` when there are several."""
        self._folder = folder
        self._dumps = dumps

    def save(self, evidence: Evidence) -> str:
        """See `EvidenceWriter.save`."""
        stem = file_stem("-".join(filter(None, (str(evidence.api), evidence.edge_case))))
        try:
            made = write_reproducer(evidence, stem)
        except NoScript as reason:
            return f"reproducer: none, {reason}"
        place = self._folder.root / dump_folder(Path(evidence.dump), self._dumps)
        script = place / f"{stem}.py"
        text = made.text.encode()
        with self._folder.locked() as state:
            is_new = not script.exists()
            if not is_new and evidence.gradients is None:
                return f"reproducer: {script}"  # that of the backward, which holds the forward
            if not self._folder.take(state, sum(array.nbytes for array in made.arrays.values()) + len(text)):
                return "reproducer: not written, --msprobe-error-data-limit is used up"
            state.saved += is_new
        make_folder(place)
        write_file(place / f"{stem}.npz", lambda file: np.savez(file, **made.arrays))
        write_file(script, partial(_write_text, text))
        return f"reproducer: {script}"


def _write_text(text: bytes, file: BinaryIO) -> None:
    file.write(text)
