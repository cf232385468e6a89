// The table: only the rows in sight are in the document.

const ROW_HEIGHT = 30, MOST_PRINTED = 100, MOST_PRINTED_CHARACTERS = 120;
// Of the whole row what tells most comes first, so that a small screen shows it; the CSV file keeps the order of columnsOf.
const FIRST = ["verdict", "name", "measure", "why", "level", "step", "rank", "cell", "dtype", "shape"];
const LAST = ["source", "order"];
const PRINTED = ["verdict", "name", "measure", "why", "step", "rank", "source"];

function columnsOf(section) {
  const worst = (row) => section.worst(row);
  const figures = inOrderOfMeasure(section).map((figure) => ({
    id: `f_${figure.name}`, title: figure.title, kind: "num", key: (row) => section.figureOf(figure.name, worst(row)), text: (row) => section.figureText(figure, worst(row)),
  }));
  const columns = [
    { id: "order", title: "#", kind: "num", key: (row) => row, text: (row) => (section.order[row] < 0 ? "" : String(section.order[row])), hint: "place in the execution of its dump" },
    { id: "verdict", title: "Verdict", key: (row) => [3, 0, 4, 2][section.status[row]] + section.explained[row], text: (row) => verdictText(section, row) },
    { id: "name", title: NAMES[section.suite] || "API call", kind: "name", key: (row) => nameOf(section, row), text: (row) => nameOf(section, row) },
    { id: "part", title: "Direction", key: (row) => section.label(row), text: (row) => section.label(row) },
    { id: "step", title: "Step", kind: "num", key: (row) => section.dump(row).step ?? NaN, text: (row) => String(section.dump(row).step ?? "") },
    { id: "rank", title: "Rank", kind: "num", key: (row) => section.dump(row).rank ?? NaN, text: (row) => String(section.dump(row).rank ?? "") },
    { id: "level", title: "What it does", key: (row) => section.text("level", row), text: (row) => section.text("level", row) },
    { id: "cell", title: "Cell", key: (row) => cellName(section, row), text: (row) => cellName(section, row) },
    { id: "dtype", title: "Dtype", key: (row) => section.dtypes[section.dtype[row]], text: (row) => section.dtypes[section.dtype[row]] },
    { id: "shape", title: "Shape", key: (row) => size(section, worst(row)), text: (row) => (worst(row) < 0 ? "" : section.outputText("shape", worst(row))) },
    ...figures.slice(0, section.measure.length),
    { id: "why", title: "What is known", kind: "wide", key: (row) => why(section, row), text: (row) => why(section, row) },
    ...figures.slice(section.measure.length),
    { id: "source", title: "Source", kind: "wide", key: (row) => section.text("source", row), text: (row) => section.text("source", row) },
  ];
  return columns.filter((column) => {
    if (column.id === "cell" && section.suite === "gradients") return false;
    if (["step", "rank"].includes(column.id)) return new Set(section.slots.map((slot) => slot[column.id])).size > 1;
    for (let row = 0; row < section.count; row++) if (column.text(row)) return true;
    return false;
  });
}

const NAMES = { gradients: "Parameter", comparison: "Operation", overflow: "Record" };

// A gradient is called by its parameter: the step has a column of its own.
function nameOf(section, row) { return section.suite === "gradients" ? parameterOf(section, row) : section.call(row); }

function parameterOf(section, row) { return section.call(row).replace(/\.step\d+$/, ""); }

function inOrderOfMeasure(section) {
  const first = section.figures.filter((figure) => section.measure.includes(figure.name));
  return [...first, ...section.figures.filter((figure) => !first.includes(figure))];
}

function verdictText(section, row) {
  const outcome = section.outcome(row);
  if (isKnown(section, row)) return "Known failure";
  if (outcome === "xfailed") return section.suite === "comparison" ? "Inherited" : section.suite === "sharded" ? "Follows" : "Expected failure";
  if (section.suite === "overflow" && section.status[row] !== ERROR) {
    const level = section.text("level", row);
    if (level === "origin") return "Origin"; // also where pytest counts a pass, since the CPU gets the same
    if (level === "propagated") return "Passes it on";
  }
  if (outcome === "xpassed") return "Unexpected pass";
  const word = section.explained[row] ? "Explained" : ["Passed", "Failed", "Not judged"][section.status[row]];
  const state = baselineOf(section, row)[0];
  return state === "new" || state === "worse" ? `${word}, ${state}` : word;
}

// The mark of a row: its number in the style sheet. An origin of NaN or Inf is marked like a failure whatever pytest counts.
function markOf(section, row) { return section.urgency(row) === 0 ? ERROR : section.explained[row] ? "explained" : section.status[row]; }

function why(section, row) {
  const output = section.worst(row);
  const pattern = output < 0 ? "" : [section.outputText("pattern", output), section.outputText("rounding", output)].filter(Boolean).join("; ");
  return pattern || section.text("message", row) || (output < 0 ? "" : section.outputText("message", output));
}

function cellName(section, row) { return section.cell[row] < 0 ? "" : section.cells[section.cell[row]].name; }

function size(section, output) {
  return output < 0 ? NaN : JSON.parse(section.outputText("shape", output)).reduce((all, one) => all * one, 1);
}

// On paper a record has about two lines: of its source the name of the file and the line.
function printedText(column, row) {
  const text = column.text(row);
  if (column.id === "source") return text.split(", in ")[0].split("/").pop();
  return text.length > MOST_PRINTED_CHARACTERS ? `${text.slice(0, MOST_PRINTED_CHARACTERS)}…` : text;
}

// The columns as the table shows them: the direction stands behind the name.
function shownColumns(section, columns, isPrinting) {
  const kindOf = (column) => (section.measure.some((name) => column.id === `f_${name}`) ? "measure" : column.id);
  const place = (column) => {
    const kind = kindOf(column), first = FIRST.indexOf(kind);
    return first >= 0 ? first : LAST.includes(kind) ? 100 + LAST.indexOf(kind) : 50;
  };
  const shown = columns.filter((column) => column.id !== "part" && (!isPrinting || PRINTED.includes(kindOf(column))));
  return shown.map((column, at) => [place(column), at, column]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , column]) => column);
}

function Table({ section, rows, folded, columns: all, sort, selected, isPrinting, hasPasses, onPasses, onSort, onSelect }) {
  const box = useRef();
  const [top, setTop] = useState(0);
  const columns = useMemo(() => shownColumns(section, all, isPrinting), [all, isPrinting]);
  const height = Math.min(700, window.innerHeight);
  useLayoutEffect(() => { // keep the chosen row in sight
    const at = selected < 0 ? -1 : rows.indexOf(selected);
    if (at < 0) return;
    const y = at * ROW_HEIGHT, frame = box.current;
    if (y < frame.scrollTop || y + 2 * ROW_HEIGHT > frame.scrollTop + frame.clientHeight - ROW_HEIGHT) frame.scrollTop = Math.max(0, y - frame.clientHeight / 3);
  }, [selected, rows]);
  const from = isPrinting ? 0 : Math.max(0, Math.min(rows.length - 1, Math.floor(top / ROW_HEIGHT) - 8));
  const to = Math.min(rows.length, isPrinting ? MOST_PRINTED : from + Math.ceil(height / ROW_HEIGHT) + 16);
  const keys = (event) => {
    if (event.target.closest("thead")) return;
    const at = selected < 0 ? -1 : rows.indexOf(selected);
    const page = Math.max(1, Math.floor(height / ROW_HEIGHT) - 3);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      const next = Math.max(0, Math.min(rows.length - 1, at + moves[event.key]));
      if (rows.length) onSelect(rows[next]);
    }
  };
  const passes = folded || (hasPasses ? rows.reduce((count, row) => count + (section.urgency(row) === 4), 0) : 0);
  const canFold = folded > 0 || (hasPasses && passes > 0 && passes < rows.length);
  const most = isPrinting ? 30 : window.innerWidth < 700 ? 26 : 48; // characters of a name
  const hasFirst = !sort.id && rows.length > 0 && section.urgency(rows[0]) < 4;
  if (isPrinting && !rows.length) return null;
  return html`<section class="panel" id="table" aria-label="Records"><div class="panel-head"><h2>${isPrinting ? `Failures: ${number(rows.length)}` : hasFirst ? "Records, failures first" : "Records"}</h2>
      ${canFold && html`<button class="small" id="passes" aria-pressed=${folded === 0} onClick=${() => onPasses(folded > 0)}>${folded ? `Show ${number(folded)} passed` : `Hide ${number(passes)} passed`}</button>`}</div>
    <div class="table-box" ref=${box} tabindex="0" role="region" aria-label="Table of records; arrow keys choose a row, Enter opens it"
      onScroll=${(event) => setTop(event.target.scrollTop)} onKeyDown=${keys}>
    <table aria-rowcount=${rows.length + 1}>
      <thead><tr>${columns.map((column) => html`<th key=${column.id} class=${`${column.kind || ""} c-${column.id}`} scope="col" title=${column.hint || ""}
        aria-sort=${sort.id === column.id ? (sort.isDescending ? "descending" : "ascending") : "none"}>
        <button onClick=${() => onSort(column.id)}>${column.title.replace("/", "/\u200b")}<span aria-hidden="true">${sort.id === column.id ? (sort.isDescending ? " ▼" : " ▲") : ""}</span></button></th>`)}</tr></thead>
      <tbody>
        ${from > 0 && html`<tr key="above" aria-hidden="true" style=${`height:${from * ROW_HEIGHT}px`}><td colspan=${columns.length}></td></tr>`}
        ${Array.from(rows.subarray(from, to), (row, at) => html`<tr key=${row} data-row=${row} aria-rowindex=${from + at + 2} class=${`row row-${markOf(section, row)} ${row === selected ? "chosen" : ""}`} onClick=${() => onSelect(row)}>
          ${columns.map((column) => {
            const text = isPrinting ? printedText(column, row) : column.text(row);
            const isLong = column.kind === "wide" || column.kind === "name" || text.length > 16;
            const put = column.id === "verdict" ? html`<span class="verdict">${text}</span>` : column.id === "name" ? html`${middle(text, most)}${section.label(row) && html` <i class="part">${section.label(row)}</i>`}` : text;
            return html`<td key=${column.id} class=${`${column.kind || ""} c-${column.id}`} title=${isLong ? text : null}>${put}</td>`;
          })}</tr>`)}
        ${to < rows.length && !isPrinting && html`<tr key="below" aria-hidden="true" style=${`height:${(rows.length - to) * ROW_HEIGHT}px`}><td colspan=${columns.length}></td></tr>`}
      </tbody></table>
    ${!rows.length && !isPrinting && html`<p class="empty">No record fits the filter.</p>`}
    ${isPrinting && to < rows.length && html`<p>and ${number(rows.length - to)} more</p>`}
  </div></section>`;
}

function csvOf(section, rows, columns) {
  const cell = (text) => {
    const safe = /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; // no formula for a spreadsheet
    return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const lines = [["link", ...columns.map((column) => column.title)]];
  for (const row of rows) lines.push([section.link(row), ...columns.map((column) => column.text(row))]);
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

const MARKDOWN_ROWS = 30;

function markdownOf(section, rows, columns) {
  const safe = (text) => text.replace(/\s+/g, " ").replace(/[\\|`*_<>[\]]/g, "\\$&").replace(/@/g, "@\u200b");
  const shown = columns.filter((column) => column.id !== "source");
  const worst = [...rows].sort((a, b) => (section.status[b] === ERROR) - (section.status[a] === ERROR)).slice(0, MARKDOWN_ROWS).sort((a, b) => a - b);
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const table = [line(shown.map((column) => safe(column.title))), line(shown.map((column) => (column.kind === "num" ? "---:" : "---"))),
    ...worst.map((row) => line(shown.map((column) => safe(column.text(row)))))];
  const left = rows.length - worst.length;
  const causes = section.diagnosis.findings.slice(0, MOST_CAUSES).map((cause) => `- ${safe([cause.name, cause.how, cause.detail].filter(Boolean).join(": "))}`);
  return [`**${safe(section.diagnosis.headline)}**`, "", ...causes, "", ...table,
    ...(left > 0 ? ["", `and ${left} more`] : []), ""].join("\n");
}
