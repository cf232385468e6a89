// Which rows are shown, in which order, and what they amount to.

const NO_FILTER = { text: "", verdict: "", dtype: -1, api: -1, cell: -1, rank: "", step: "", from: -1, to: -1 };

const VERDICTS = [
  ["failed", "Failed"],
  ["unexplained", "Failed, not explained"],
  ["explained", "Explained by rounding"],
  ["passed", "Passed"],
  ["expected", "Expected failures"],
  ["skipped", "Not judged"],
  ["unmatched", "Only on one side"],
];

function hasVerdict(section, row, verdict) {
  if (verdict === "failed") return section.status[row] === ERROR;
  if (verdict === "unexplained") return section.status[row] === ERROR && !section.explained[row];
  if (verdict === "explained") return section.explained[row] === 1;
  if (verdict === "passed") return section.status[row] === PASS;
  if (verdict === "expected") return section.status[row] === EXPECTED;
  if (verdict === "skipped") return section.status[row] === SKIP;
  return section.text("side", row) !== "both";
}

// What a comparison takes as an expected failure is a difference that the operation did not make.
function expectedWord(section) { return section.suite === "comparison" ? "Inherited or rounding" : "Expected failures"; }

// For each text of the section whether it holds the word.
function textsWith(section, word) {
  section.lower = section.lower || section.texts.map((text) => text.toLowerCase());
  return section.lower.map((text) => text.includes(word));
}

const SEARCHED = ["call", "part", "message", "source", "partner", "note"];

function selectRows(section, filter) {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => ({
    texts: textsWith(section, word),
    cells: section.cells.map((cell) => cell.name.toLowerCase().includes(word)),
  }));
  const inCell = filter.cell < 0 ? null : cellsBelow(section, filter.cell);
  const rank = filter.rank === "" ? null : Number(filter.rank);
  const step = filter.step === "" ? null : Number(filter.step);
  const found = [];
  for (let row = 0; row < section.count; row++) {
    if (filter.verdict && !hasVerdict(section, row, filter.verdict)) continue;
    if (filter.dtype >= 0 && section.dtype[row] !== filter.dtype) continue;
    if (filter.api >= 0 && section.api[row] !== filter.api) continue;
    if (inCell && !(section.cell[row] >= 0 && inCell[section.cell[row]])) continue;
    if (filter.from >= 0 && section.position[row] < filter.from) continue;
    if (filter.to >= 0 && section.position[row] > filter.to) continue;
    const slot = section.slots[section.slot[row]];
    if (rank !== null && slot.rank !== rank) continue;
    if (step !== null && slot.step !== step) continue;
    if (words.length && !words.every((word) => holds(section, row, word))) continue;
    found.push(row);
  }
  return Int32Array.from(found);
}

function holds(section, row, word) {
  if (section.cell[row] >= 0 && word.cells[section.cell[row]]) return true;
  return SEARCHED.some((column) => word.texts[section.columns[column][row]]);
}

function cellsBelow(section, cell) {
  const below = new Uint8Array(section.cells.length);
  below[cell] = 1; // outer Cells come before inner ones
  for (let at = cell + 1; at < below.length; at++) if (section.cells[at].parent >= 0 && below[section.cells[at].parent]) below[at] = 1;
  return below;
}

function sortRows(rows, column, isDescending) {
  if (!column) return rows;
  const keys = Array.from(rows, column.key);
  const places = Int32Array.from(rows, (_, place) => place);
  const sign = isDescending ? -1 : 1;
  const isText = keys.some((key) => typeof key === "string");
  places.sort((left, right) => {
    const a = keys[left], b = keys[right];
    if (isText) return sign * COLLATOR.compare(a, b) || left - right;
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || left - right; // missing last
    return sign * (a - b || 0) || left - right;
  });
  return places.map((place) => rows[place]);
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

function countVerdicts(section) {
  return VERDICTS.map(([verdict, title]) => {
    let count = 0;
    for (let row = 0; row < section.count; row++) if (hasVerdict(section, row, verdict)) count++;
    return { verdict, title: verdict === "expected" ? expectedWord(section) : title, count };
  }).filter(({ verdict, count }) => count || ["failed", "passed", "skipped"].includes(verdict))
    .filter(({ verdict }, _, all) => verdict !== "unexplained" || all.some((one) => one.verdict === "explained"));
}

function allRows(section) { return Array.from({ length: section.count }, (_, row) => row); }

// The first row of a lane that failed and is not explained; the first that is NaN or infinite.
function firstFailure(section, rows) {
  const isFirst = (row) => section.status[row] === ERROR || (section.status[row] === EXPECTED && section.suite === "comparison");
  return rows.find((row) => isFirst(row) && !section.explained[row] && section.order[row] >= 0);
}

function firstNonfinite(section, rows) {
  if (section.suite === "overflow") return rows.find((row) => section.text("level", row) === "origin");
  if (section.suite === "gradients") return undefined;
  return rows.find((row) => {
    for (let output = section.firstOutput[row]; output < section.firstOutput[row + 1]; output++) {
      if (section.figures.some((figure) => section.outputs[`f_${figure.name}`][output] === "nan")) return true;
    }
    return false;
  });
}
