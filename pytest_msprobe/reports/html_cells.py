"""What the HTML page shows for one item, as markup. Every text that comes from a dump passes `text` on its way."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from msprobe_collector.dump_format.text import shown
from pytest_msprobe.verdicts import Figure, OutputRow, VerdictRow

#: Figures that have a column; the others stand with the outputs that a row unfolds to.
_FIGURES = 3
_LONGEST = 300
_FRAMES = 50
_OUTPUTS = 50


def text(value: object, longest: int = _LONGEST) -> str:
    """`value` as harmless markup on one line, cut to `longest` characters."""
    line = shown(" ".join(str(value).split()))
    return escape(line if len(line) <= longest else f"{line[: longest - 3]}...")


def headers(figures: Sequence[Figure]) -> list[str]:
    """Headlines of our columns."""
    named = [(figure.name, figure.title) for figure in figures[:_FIGURES]]
    columns = (("direction", "Direction"), ("dtype", "Dtype"), ("shape", "Shape"), *named, ("device", "Device"))
    return [f'<th class="sortable" data-column-type="{name}">{title}</th>' for name, title in columns]


def name_cell(name: str, hint: str) -> str:
    """The cell that says what was checked; call 2 sorts before call 10."""
    key = re.sub(r"\d+", lambda number: number.group().zfill(6), name)
    return f'<td class="col-testId" title="{text(hint)}"><!--{text(key)}-->{text(name)}</td>'


def cells(row: VerdictRow | None, figures: Sequence[Figure]) -> list[str]:
    """The cells of our columns for the output that is furthest off; without a row, empty ones."""
    shown = figures[:_FIGURES]
    output = row.worst if row is not None else None
    if row is None or output is None:
        dtype, shape = _cell("dtype", ""), _cell("shape", "")
    else:
        more = f"{output.label}, the worst of {len(row.outputs)}" if len(row.outputs) > 1 else output.label
        dtype = _cell("dtype", output.tested_dtype)
        shape = _cell("shape", output.shape, key=f"{math.prod(output.shape):016d}", hint=more)
    numbers = [_figure_cell(figure, output.figures.get(figure.name) if output else None, row) for figure in shown]
    direction, device = (row.label, row.device) if row is not None else ("", "")
    return [_cell("direction", direction), dtype, shape, *numbers, _cell("device", device)]


def number_text(value: float | None, form: str) -> str:
    """A figure, or a dash where it has no meaning."""
    return "-" if value is None else f"{value:{form}}"


def sort_key(value: float | None, *, nan: str = "g", missing: str = "") -> str:
    """A text that sorts as `value` does: pytest-html compares the content of cells as text."""
    if value is None:
        return missing
    if math.isnan(value):
        return nan
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    return f"{bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63:016x}"


def details(row: VerdictRow, figures: Sequence[Figure], explanation: str, extra: dict[str, Any]) -> str:
    """What an item unfolds to: explanation (already escaped), plot, outputs and call stack."""
    if row.status == "pass":
        lines = [text(row.message), *(_output_line(output, figures) for output in row.outputs[:_OUTPUTS])]
        return "\n".join(filter(None, lines)) or "passed"
    parts = [f"<pre>{explanation.strip()}</pre>"]
    if extra.get("plot"):
        parts.append(f'<img alt="plot of the error" src="data:image/png;base64,{text(extra["plot"], 10**6)}">')
    parts.append("".join(_outputs(row.outputs, figures)))
    frames = extra.get("stack", ())
    if frames:
        listed = "".join(f"<li>{text(place)}<code>{text(source)}</code></li>" for place, source in frames[:_FRAMES])
        parts.append(f"<h4>Call stack, innermost first</h4><ol>{listed}</ol>")
    # One line: the page's script treats lines that begin with E as those of a traceback.
    return f'<div class="msprobe">{"".join(parts)}</div>'


def _outputs(outputs: Sequence[OutputRow], figures: Sequence[Figure]) -> Iterator[str]:
    if not outputs:
        return
    titles = "".join(f"<th>{figure.title}" for figure in figures)
    yield f"<table><tr><th>Output<th>Tested<th>Benchmark<th>Shape{titles}<th>Verdict"
    for output in outputs[:_OUTPUTS]:
        words = (output.label, output.tested_dtype, output.bench_dtype, output.shape)
        numbers = [number_text(output.figures.get(figure.name), figure.form) for figure in figures]
        verdict = f"{output.status} by {output.standard}" if output.standard else output.status
        verdict = "; ".join(filter(None, (verdict, output.rounding, output.pattern)))
        line = "".join(f"<td>{text(word)}" for word in (*words, *numbers, verdict))
        yield f'<tr class="{text(output.status)}">{line}'
    if len(outputs) > _OUTPUTS:
        yield f"<tr><td colspan={5 + len(figures)}>and {len(outputs) - _OUTPUTS} more"
    yield "</table>"


def _output_line(output: OutputRow, figures: Sequence[Figure]) -> str:
    """A pass in plain text: a table for each of 5,000 would make the page slow."""
    values = ((figure.title.lower(), output.figures.get(figure.name)) for figure in figures[:_FIGURES])
    known = (f"{name} {value:.9g}" for name, value in values if value is not None)
    standard = f", by {output.standard}" if output.standard else ""
    return text(f"{output.label} {output.tested_dtype} {output.shape}: {', '.join(known) or 'equal'}{standard}")


def _figure_cell(figure: Figure, value: float | None, row: VerdictRow | None) -> str:
    if row is None:
        return _cell(figure.name, "")
    # The worst is the lowest or the highest; what has no figure comes after it either way.
    key = sort_key(value, nan="", missing="h") if figure.is_low_bad else sort_key(value)
    return _cell(figure.name, number_text(value, figure.form), key=key)


def _cell(column: str, value: object, *, key: str | None = None, hint: str = "") -> str:
    # pytest-html sorts by what stands between the tags, a comment included.
    comment = "" if key is None else f"<!--{key}-->"
    title = f' title="{text(hint)}"' if hint else ""
    return f'<td class="col-{column}"{title}>{comment}{text(value)}</td>'
