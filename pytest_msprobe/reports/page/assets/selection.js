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

// A view in the address of the page: `#record?verdict=failed&cell=layers.20.Block&sort=-f_ratio`. Cells, APIs and dtypes go
// by their names, so that the link means the same on a page that was made again.
function hashOf(section, view, suite = "") {
  const query = new URLSearchParams();
  if (suite) query.set("suite", suite);
  for (const [name, value] of Object.entries(view.filter || {})) {
    if (value === NO_FILTER[name]) continue;
    query.set(name, name === "cell" ? section.cells[value].name : name === "api" ? section.apis[value] : name === "dtype" ? section.dtypes[value] : value);
  }
  if (view.sort && view.sort.id) query.set("sort", `${view.sort.isDescending ? "-" : ""}${view.sort.id}`);
  if (view.hasPasses) query.set("passes", "1");
  const record = view.selected >= 0 ? encodeURI(section.link(view.selected)).replace(/[?#]/g, encodeURIComponent) : "";
  const text = query.toString();
  return `#${record}${text ? `?${text}` : ""}`;
}

// [record, parameters] of an address; an address that cannot be decoded is taken as it stands.
function splitHash(hash) {
  const [record, ...rest] = hash.replace(/^#/, "").split("?");
  let name = record;
  try { name = decodeURIComponent(record); } catch { /* not ours: it is reported as an unknown record */ }
  return [name, new URLSearchParams(rest.join("?"))];
}

// The view that an address means; `unknown` are the parts of it that this page does not have.
function viewOf(section, hash) {
  const [record, query] = splitHash(hash);
  const filter = { ...NO_FILTER }, unknown = [];
  const find = (name, list) => {
    if (!query.has(name)) return;
    const at = list.indexOf(query.get(name));
    if (at < 0) unknown.push(`${name} ${query.get(name)}`); else filter[name] = at;
  };
  find("cell", section.cells.map((cell) => cell.name));
  find("api", section.apis);
  find("dtype", section.dtypes);
  for (const name of ["text", "rank", "step"]) if (query.has(name)) filter[name] = query.get(name);
  for (const name of ["from", "to"]) if (/^\d+$/.test(query.get(name) || "")) filter[name] = Number(query.get(name));
  if (VERDICTS.some(([verdict]) => verdict === query.get("verdict"))) filter.verdict = query.get("verdict");
  const sort = query.get("sort") || "";
  const selected = record ? section.find(record) : -1;
  if (record && selected < 0) unknown.unshift(`record ${record}`);
  return { filter, unknown, selected, hasPasses: query.get("passes") === "1", sort: { id: sort.replace(/^-/, ""), isDescending: sort.startsWith("-") } };
}

function hasVerdict(section, row, verdict) {
  if (verdict === "failed") return section.status[row] === ERROR;
  if (verdict === "unexplained") return section.status[row] === ERROR && !section.explained[row];
  if (verdict === "explained") return section.explained[row] === 1;
  if (verdict === "passed") return section.status[row] === PASS;
  if (verdict === "expected") return section.status[row] === EXPECTED;
  if (verdict === "skipped") return section.status[row] === SKIP;
  return section.text("side", row) !== "both";
}

// [state, why] of a row that was held to a baseline; ["", ""] of others.
function baselineOf(section, row) {
  const [, state = "", why = ""] = section.text("baseline", row).match(/^(\w+)(?:: ([^]*))?$/) || [];
  return [state, why];
}

function isKnown(section, row) { return section.status[row] === EXPECTED && ["known", "better"].includes(baselineOf(section, row)[0]); }

// What a comparison takes as an expected failure is a difference that the operation did not make.
function expectedWord(section) {
  section.hasKnown ??= section.status.some((status, row) => isKnown(section, row));
  if (section.hasKnown) return section.suite === "comparison" ? "Known, or by their inputs or rounding" : section.suite === "sharded" ? "Known, or follow from a fault" : "Known failures";
  return section.suite === "comparison" ? "Differ by their inputs or rounding" : section.suite === "sharded" ? "Follow from a fault" : "Expected failures";
}

function verdictTitle(section, verdict, title) {
  if (verdict === "expected") return expectedWord(section);
  return verdict === "skipped" && section.suite === "overflow" ? "Pass it on, or not judged" : title;
}

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

// Without a column: what is at fault first, what passed last, each in the order of execution.
function sortRows(section, rows, column, isDescending) {
  if (!column) {
    const kinds = [[], [], [], [], [], []];
    for (const row of rows) kinds[section.isCause(row) ? 0 : 1 + section.urgency(row)].push(row);
    return Int32Array.from(kinds.flat());
  }
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
    return { verdict, title: verdictTitle(section, verdict, title), count };
  }).filter(({ verdict, count }) => count || (verdict === "failed" && !section.answer.is_bad) || (verdict === "passed" && !section.count))
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
