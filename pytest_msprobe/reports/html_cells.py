"""What the HTML page shows for one item, as markup. Every text that comes from a dump passes `text` on its way."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from pytest_msprobe.reports.row import OutputRow, VerdictRow

#: Column name (also the CSS class) and headline, in the order of the page.
COLUMNS = (
    ("direction", "Direction"),
    ("dtype", "Dtype"),
    ("shape", "Shape"),
    ("cosine", "Cosine"),
    ("max_abs", "Max abs"),
    ("max_rel", "Max rel"),
    ("device", "Device"),
)
_LONGEST = 300
_FRAMES = 50
_OUTPUTS = 50


def text(value: object, longest: int = _LONGEST) -> str:
    """`value` as harmless markup on one line, cut to `longest` characters."""
    # A lone surrogate cannot be written as UTF-8, and would cost the whole page.
    shown = " ".join(str(value).encode("utf-8", "backslashreplace").decode("utf-8").split())
    return escape(shown if len(shown) <= longest else f"{shown[: longest - 3]}...")


def headers() -> list[str]:
    """Headlines of our columns."""
    return [f'<th class="sortable" data-column-type="{name}">{title}</th>' for name, title in COLUMNS]


def name_cell(name: str, hint: str) -> str:
    """The cell that says what was checked; call 2 sorts before call 10."""
    key = re.sub(r"\d+", lambda number: number.group().zfill(6), name)
    return f'<td class="col-testId" title="{text(hint)}"><!--{text(key)}-->{text(name)}</td>'


def cells(row: VerdictRow | None) -> list[str]:
    """The cells of our columns for the output that is furthest off; without a row, empty ones."""
    output = row.worst if row is not None else None
    if row is None:
        return [_cell(name, "") for name, _ in COLUMNS]
    if output is None:
        figures = [_cell("dtype", ""), _cell("shape", ""), *_figures(None, None, None)]
    else:
        more = f"{output.label}, the worst of {len(row.outputs)}" if len(row.outputs) > 1 else output.label
        size = f"{math.prod(output.shape):016d}"
        figures = [
            _cell("dtype", output.tested_dtype),
            _cell("shape", output.shape, key=size, hint=more),
            *_figures(output.cosine, output.max_abs, output.max_rel),
        ]
    return [_cell("direction", row.direction or "record"), *figures, _cell("device", row.device)]


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


def details(row: VerdictRow, explanation: str, extra: dict[str, Any]) -> str:
    """What an item unfolds to: explanation (already escaped), plot, outputs and call stack."""
    if row.status == "pass":
        lines = [text(row.message), *map(_output_line, row.outputs[:_OUTPUTS])]
        return "\n".join(filter(None, lines)) or "passed"
    parts = [f"<pre>{explanation.strip()}</pre>"]
    if extra.get("plot"):
        parts.append(f'<img alt="plot of the error" src="data:image/png;base64,{text(extra["plot"], 10**6)}">')
    parts.append("".join(_outputs(row.outputs)))
    frames = extra.get("stack", ())
    if frames:
        listed = "".join(f"<li>{text(place)}<code>{text(source)}</code></li>" for place, source in frames[:_FRAMES])
        parts.append(f"<h4>Call stack, innermost first</h4><ol>{listed}</ol>")
    # One line: the page's script treats lines that begin with E as those of a traceback.
    return f'<div class="msprobe">{"".join(parts)}</div>'


def _outputs(outputs: Sequence[OutputRow]) -> Iterator[str]:
    if not outputs:
        return
    yield "<table><tr><th>Output<th>Tested<th>Benchmark<th>Shape<th>Cosine<th>Max abs<th>Max rel<th>Max ULP<th>Verdict"
    for output in outputs[:_OUTPUTS]:
        words = (output.label, output.tested_dtype, output.bench_dtype, output.shape)
        figures = (
            number_text(output.cosine, ".9f"),
            number_text(output.max_abs, ".3g"),
            number_text(output.max_rel, ".3g"),
            number_text(output.max_ulp, ".3g"),
        )
        verdict = f"{output.status} by {output.standard}" if output.standard else output.status
        line = "".join(f"<td>{text(word)}" for word in (*words, *figures, verdict))
        yield f'<tr class="{text(output.status)}">{line}'
    if len(outputs) > _OUTPUTS:
        yield f"<tr><td colspan=9>and {len(outputs) - _OUTPUTS} more, in the details CSV"
    yield "</table>"


def _output_line(output: OutputRow) -> str:
    """A pass in plain text: a table for each of 5,000 would make the page slow."""
    figures = (("cosine", output.cosine), ("max abs", output.max_abs), ("max rel", output.max_rel))
    known = (f"{name} {value:.9g}" for name, value in figures if value is not None)
    standard = f", by {output.standard}" if output.standard else ""
    return text(f"{output.label} {output.tested_dtype} {output.shape}: {', '.join(known) or 'equal'}{standard}")


def _figures(cosine: float | None, max_abs: float | None, max_rel: float | None) -> list[str]:
    return [
        # The worst is the lowest here and the highest below; what has no figure comes after it either way.
        _cell("cosine", number_text(cosine, ".9f"), key=sort_key(cosine, nan="", missing="h")),
        _cell("max_abs", number_text(max_abs, ".3g"), key=sort_key(max_abs)),
        _cell("max_rel", number_text(max_rel, ".3g"), key=sort_key(max_rel)),
    ]


def _cell(column: str, value: object, *, key: str | None = None, hint: str = "") -> str:
    # pytest-html sorts by what stands between the tags, a comment included.
    comment = "" if key is None else f"<!--{key}-->"
    title = f' title="{text(hint)}"' if hint else ""
    return f'<td class="col-{column}"{title}>{comment}{text(value)}</td>'
