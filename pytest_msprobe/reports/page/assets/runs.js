// Two runs with different calls, one above the other: what each holds of the other one joined by lines, what is computed
// in other steps folded, and the place where they part in the middle.

// Columns are at most `widest` wide; the `near` ones on either side of the place are at least `least`.
const PAIR = { tall: 222, flat: 186, low: 160, left: 62, right: 14, widest: 92, named: 64, near: 8, least: 20 };

// What is known of the two runs of a lane; undefined where the page does not have that of all lanes.
function pairOf(section, lane) { return section.hasPairs ? section.pairs[section.dump(lane.rows[0]).dump] : undefined; }

// The rows of a lane by the records of each run.
function rowsOfRuns(section, lane) {
  if (lane.ofRuns) return lane.ofRuns;
  const found = lane.ofRuns = { target: new Map(), golden: new Map() };
  for (const row of lane.rows) {
    if (section.text("side", row) !== "golden") found.target.set(`${section.call(row)}.${section.part(row)}`, row);
    if (section.text("partner", row)) found.golden.set(section.text("partner", row), row);
  }
  return found;
}

// `einsum.0` of `Torch.einsum.0.forward`.
function callName(record) { return record.replace(/\.(forward|backward)$/, "").replace(/^(Functional|Tensor|Torch|Mint|MintFunctional|Jit|Primitive|NPU|Distributed)\./, ""); }

const calls = (count) => `${number(count)} ${count === 1 ? "call" : "calls"}`;

// The records of a run as units, each one mark: a found record, a folded region, the place where the runs part, one that
// follows from it, or others in a row.
function unitsOf(records, parted, opened) {
  const units = [], regions = new Map();
  const add = (kind, entry, region = -1) => { const unit = { kind, region, records: [entry] }; units.push(unit); return unit; };
  for (const entry of records) {
    const [record, state, region] = entry, last = units[units.length - 1];
    if (parted.has(record)) { const place = units.find((unit) => unit.kind === "place"); if (place) place.records.push(entry); else add("place", entry); }
    else if (region >= 0 && opened.has(region)) add("inside", entry, region);
    else if (region >= 0) { const unit = regions.get(region); if (unit) unit.records.push(entry); else regions.set(region, add("region", entry, region)); }
    else if (state === "parted" || state === "first") add("behind", entry);
    else if (state === "found" || state === "coarser") add(state, entry);
    else if (last && last.kind === "other") last.records.push(entry);
    else add("other", entry);
  }
  return units;
}

// The longest run of pairs in which the second numbers rise as the first do.
function risingPairs(pairs) {
  const tails = [], before = new Int32Array(pairs.length).fill(-1), found = [];
  pairs.forEach(([, there], at) => {
    let low = 0, high = tails.length;
    while (low < high) { const middle = (low + high) >> 1; if (pairs[tails[middle]][1] < there) low = middle + 1; else high = middle; }
    if (low) before[at] = tails[low - 1];
    tails[low] = at;
  });
  for (let at = tails.length ? tails[tails.length - 1] : -1; at >= 0; at = before[at]) found.push(pairs[at]);
  return found.reverse();
}

// The units of both runs in columns that they share: what is equal stands in one column where the order allows it.
function columnsOfRuns(pair) {
  const { opened } = pair, parted = { target: new Set(), golden: new Set() };
  for (const side of ["target", "golden"]) for (const call of pair.parted?.[side] || []) parted[side].add(`${call.call}.${call.direction}`);
  const target = unitsOf(pair.target, parted.target, opened), golden = unitsOf(pair.golden, parted.golden, opened);
  // A place without API calls of the target, such as an optimizer, stands at the end.
  if (pair.parted && !target.some((unit) => unit.kind === "place")) target.push({ kind: "place", region: -1, records: pair.parted.target.map((call) => [`${call.call}.${call.direction}`, "first", -1, ""]) });
  const there = new Map(golden.flatMap((unit, at) => unit.records.map(([record]) => [record, at])));
  const regions = new Map(golden.map((unit, at) => [unit.region, at]));
  const pairs = [];
  target.forEach((unit, at) => {
    const partner = unit.kind === "region" ? regions.get(unit.region) : unit.kind === "place" ? undefined : there.get(unit.records[0][3]);
    if (partner === undefined || golden[partner].kind === "place") return;
    pairs.push([at, partner]);
    unit.link = golden[partner];
  });
  const here = target.findIndex((unit) => unit.kind === "place");
  let chain = risingPairs(pairs), place = -1;
  if (here >= 0) {
    const before = risingPairs(pairs.filter(([at]) => at < here));
    let other = golden.findIndex((unit) => unit.kind === "place"), moved = pairs;
    if (other < 0) {
      other = before.length ? before[before.length - 1][1] + 1 : 0;
      golden.splice(other, 0, { kind: "none", region: -1, records: [] });
      moved = pairs.map(([at, far]) => [at, far < other ? far : far + 1]);
    }
    chain = [...risingPairs(moved.filter(([at, far]) => at < here && far < other)), [here, other], ...risingPairs(moved.filter(([at, far]) => at > here && far > other))];
  }
  let column = 0, mine = 0, theirs = 0;
  for (const [at, far] of [...chain, [target.length, golden.length]]) {
    for (let next = mine; next < at; next++) target[next].column = column + next - mine;
    for (let next = theirs; next < far; next++) golden[next].column = column + next - theirs;
    column += Math.max(at - mine, far - theirs);
    if (at < target.length) { if (at === here) place = column; target[at].column = golden[far].column = column++; }
    mine = at + 1;
    theirs = far + 1;
  }
  return { target, golden, count: column, place };
}

class PairPainter {
  constructor(canvas, section, lane, isTall) {
    Object.assign(this, { canvas, section, lane, isTall, pair: pairOf(section, lane) });
    this.rows = rowsOfRuns(section, lane);
  }

  // Units and their places, made again where a region was opened or the width is another one.
  arrange() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    const key = `${this.width} ${[...this.pair.opened].join()}`;
    if (this.arranged === key) return;
    this.arranged = key;
    const runs = this.runs = columnsOfRuns(this.pair);
    const room = this.width - PAIR.left - PAIR.right, hasPlace = runs.place >= 0;
    this.box = hasPlace ? Math.max(90, Math.min(230, room * 0.34)) : 0;
    const counts = hasPlace ? [runs.place, runs.count - runs.place - 1] : [runs.count, 0];
    const needs = counts.map((count) => count * PAIR.widest), free = room - this.box;
    const after = Math.min(needs[1], Math.max(free / 2, free - needs[0])), before = Math.min(needs[0], free - after);
    this.widths = [this.widthsOf(before, counts[0]), this.widthsOf(after, counts[1])];
    this.start = PAIR.left + (hasPlace ? (free - before - after) / 2 : 0);
    this.middle = this.start + before;
    this.byRow = new Map();
    for (const side of ["golden", "target"]) for (const unit of runs[side]) {
      unit.side = side;
      unit.x = this.columnX(unit.column);
      for (const [record] of unit.records) { const row = this.rows[side].get(record); if (row !== undefined) this.byRow.set(row, unit); }
    }
  }

  // [columns beside the place, their width, that of the others] of as many columns in a room.
  widthsOf(room, count) {
    const near = this.runs.place < 0 ? 0 : Math.min(PAIR.near, count, Math.floor(room / 2 / PAIR.least)), even = count ? room / count : 0;
    return even >= PAIR.least || near === count ? [0, even, even] : [near, PAIR.least, (room - near * PAIR.least) / (count - near)];
  }

  // The middle of a column: those on either side of the place are counted from there.
  columnX(column) {
    const { place } = this.runs, end = place < 0 ? this.runs.count : place;
    if (column === place) return this.middle + this.box / 2;
    const isAfter = column > end, away = isAfter ? column - place - 1 : end - 1 - column, [near, wide, narrow] = this.widths[Number(isAfter)];
    const distance = away < near ? (away + 0.5) * wide : near * wide + (away - near + 0.5) * narrow;
    return isAfter ? this.middle + this.box + distance : this.middle - distance;
  }

  // The width of the column of a unit.
  stepOf(unit) {
    const { place, count } = this.runs, isAfter = place >= 0 && unit.column > place, [near, wide, narrow] = this.widths[Number(isAfter)];
    return (isAfter ? unit.column - place - 1 : (place < 0 ? count : place) - 1 - unit.column) < near ? wide : narrow;
  }

  y(side) { return side === "golden" ? this.height - (this.isTall ? 48 : 36) : !this.isTall ? 46 : this.pair.parted ? 62 : 34; }
  unitOf(position) { return this.byRow.get(this.lane.rows[Math.max(0, Math.min(this.lane.rows.length - 1, Math.round(position)))]); }
  x(position) { const unit = this.unitOf(position); return unit ? unit.x : PAIR.left; }
  rowY(row) { const unit = this.byRow.get(row); return this.y(unit ? unit.side : "target"); }

  // The place in the lane of the record of the target that is nearest to x.
  position(x) {
    let best = 0, least = Infinity;
    for (const [row, unit] of this.byRow) if (unit.side === "target" && Math.abs(unit.x - x) < least) { least = Math.abs(unit.x - x); best = this.section.position[row]; }
    return best;
  }

  unitAt(x, y) {
    const side = y < (this.y("target") + this.y("golden")) / 2 ? "target" : "golden";
    let best = null, least = 10;
    for (const unit of this.runs[side]) {
      const reach = unit.kind === "place" ? this.box / 2 : 0, away = Math.max(0, Math.abs(unit.x - x) - reach);
      if (unit.kind !== "none" && away < least) { least = away; best = unit; }
    }
    return best;
  }

  nearest(x, y) {
    const unit = this.unitAt(x, y), row = unit && this.rows[unit.side].get(unit.records[0][0]);
    return row ?? -1;
  }

  // The number of the folded region at a point; undefined without one.
  foldedAt(x, y) {
    const unit = this.unitAt(x, y);
    return unit?.kind === "region" ? unit.region : undefined;
  }

  under(x, y) {
    const unit = this.unitAt(x, y);
    if (!unit) return null;
    const [record, , , partner] = unit.records[0], other = unit.side === "target" ? "golden run" : "target", count = unit.records.length;
    const last = unit.records[count - 1][0];
    const title = count > 1 ? `${callName(record)} to ${callName(last)}` : record.replace(/\.(forward|backward)$/, " $1");
    const words = {
      found: () => [`equal in the ${other}: ${callName(partner)}`],
      coarser: () => [`equal in the ${other}, in a finer dtype: ${callName(partner)}`],
      region: () => [`${calls(count)} in other steps, equal again`, "click to see them one by one"],
      inside: () => ["in other steps, equal again"],
      place: () => ["the runs part here"],
      behind: () => [`not found in the ${other}: follows from where the runs part`],
      other: () => [`${calls(count)}, not compared: the results show whether ${count > 1 ? "they are" : "it is"} right`],
    }[unit.kind]();
    return { row: this.rows[unit.side].get(record) ?? -1, x: unit.x, y: this.y(unit.side), title, words };
  }

  draw(isShown, isFiltered, selected) {
    this.arrange();
    const { canvas, section, runs } = this, ratio = window.devicePixelRatio || 1, colors = theme();
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    const context = this.context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = colors.font;
    this.drawSides(colors);
    this.drawLinks(colors);
    for (const side of ["golden", "target"]) for (const unit of runs[side]) {
      const isBright = !isFiltered || unit.records.some(([record]) => { const row = this.rows[side].get(record); return row === undefined || isShown[row]; });
      context.globalAlpha = isBright ? 1 : 0.15;
      this.drawUnit(unit, colors);
      context.globalAlpha = 1;
    }
    if (this.isTall) this.drawNames(colors);
    for (const [row, unit] of this.byRow) {
      if (row !== selected && !(section.isCause(row) && unit.kind !== "place")) continue;
      context.strokeStyle = row === selected ? colors.text : colors.fail[2];
      context.lineWidth = 2;
      context.beginPath(); context.arc(unit.x, this.y(unit.side), 9, 0, 7); context.stroke();
    }
  }

  drawSides(colors) {
    const { context, runs } = this;
    context.textBaseline = "middle";
    for (const side of ["target", "golden"]) {
      context.textAlign = "left";
      context.fillStyle = colors.muted;
      context.fillText(side, Math.max(10, this.start - 52), this.y(side));
      context.fillStyle = colors.line;
      context.fillRect(this.start, this.y(side) - 0.5, Math.max(0, this.columnX(runs.count - 1) + 6 - this.start), 1);
    }
    const unit = runs.target.find((one) => one.records.some(([record]) => record.endsWith(".backward")));
    if (!unit || unit.kind === "place" || unit === runs.target[0]) return;
    const x = unit.x - this.stepOf(unit) / 2;
    context.fillStyle = colors.muted;
    context.fillRect(x, this.y("target") - 22, 1, this.y("golden") - this.y("target") + 58);
    if (!this.isTall) return;
    context.textAlign = "left";
    context.fillText("backward", x + 5, this.height - 12);
    context.textAlign = "right";
    context.fillText("forward", x - 5, this.height - 12);
  }

  // A line for each value that both runs hold; a region of both runs is one bar from one to the other.
  drawLinks(colors) {
    const { context, runs } = this, [top, bottom] = [this.y("target"), this.y("golden")];
    context.strokeStyle = colors.pass[1];
    context.lineWidth = 1;
    for (const unit of runs.target) {
      if (!unit.link || unit.kind === "region") continue;
      context.globalAlpha = this.stepOf(unit) < 3 || unit.column !== unit.link.column ? 0.35 : 0.8;
      context.beginPath(); context.moveTo(unit.x, top); context.lineTo(unit.link.x, bottom); context.stroke();
    }
    context.globalAlpha = 1;
    context.fillStyle = colors.band;
    for (const unit of runs.target) {
      if (unit.kind !== "region" || !unit.link) continue;
      const half = this.halfOf(unit);
      context.beginPath();
      context.moveTo(unit.x - half, top); context.lineTo(unit.x + half, top); context.lineTo(unit.link.x + half, bottom); context.lineTo(unit.link.x - half, bottom);
      context.fill();
    }
    const inside = new Map();
    for (const unit of [...runs.target, ...runs.golden]) if (unit.kind === "inside") { const span = inside.get(unit.region) || [Infinity, -Infinity]; inside.set(unit.region, [Math.min(span[0], unit.x - this.halfOf(unit) - 3), Math.max(span[1], unit.x + this.halfOf(unit) + 3)]); }
    context.globalAlpha = 0.45;
    for (const [from, to] of inside.values()) context.fillRect(from, top - 14, to - from, bottom - top + 28);
    context.globalAlpha = 1;
  }

  halfOf(unit) { return Math.max(1.2, Math.min(9, this.stepOf(unit) * 0.42)); }

  drawUnit(unit, colors) {
    const { context } = this, { x, kind } = unit, y = this.y(unit.side), size = Math.max(1.2, Math.min(4.5, this.stepOf(unit) * 0.4));
    if (kind === "none") return;
    if (kind === "place") { this.drawPlace(unit, colors); return; }
    if (kind === "region") {
      const half = this.halfOf(unit);
      context.fillStyle = colors.band;
      context.beginPath(); context.roundRect(x - half, y - 11, 2 * half, 22, Math.min(half, 5)); context.fill();
      if (half < 4) return;
      context.strokeStyle = colors.muted;
      context.lineWidth = 1;
      context.stroke();
      if (half < 7) return;
      context.fillStyle = colors.text;
      context.textAlign = "center";
      context.fillText(unit.records.length, x, y + 0.5);
      return;
    }
    if (kind === "other") { context.fillStyle = colors.skip; context.fillRect(x - 0.6, y - 4, 1.2, 8); return; }
    context.fillStyle = context.strokeStyle = { found: colors.pass[2], coarser: colors.fail[0], inside: colors.muted, behind: colors.fail[1] }[kind];
    if (size < 2.2 && kind !== "behind") { context.fillRect(x - size, y - size, 2 * size, 2 * size); return; }
    context.beginPath();
    if (unit.records[0][0].endsWith(".backward")) { context.moveTo(x - size, y - size * 0.8); context.lineTo(x + size, y - size * 0.8); context.lineTo(x, y + size); context.closePath(); }
    else context.arc(x, y, size * 0.85, 0, 7);
    if (kind === "behind") { context.lineWidth = 1; context.stroke(); } else context.fill();
  }

  // The calls in which the runs part, in a box of each run, with their lines.
  drawPlace(unit, colors) {
    const { context } = this, y = this.y(unit.side), half = this.box / 2 - 7, high = this.isTall ? 20 : 15;
    const places = this.pair.parted[unit.side], count = places.length;
    context.fillStyle = colors.panel;
    context.strokeStyle = colors.fail[2];
    context.lineWidth = 2;
    context.beginPath(); context.roundRect(unit.x - half, y - high, 2 * half, 2 * high, 6); context.fill(); context.stroke();
    if (unit.side === "target") {
      const text = "the runs part here", width = context.measureText(text).width + 12, top = y - high - 25;
      context.fillStyle = colors.fail[2];
      context.fillRect(unit.x - width / 2, top, width, 17);
      context.fillRect(unit.x - 0.5, top + 17, 1, 8);
      context.fillStyle = colors.panel;
      context.textAlign = "center";
      context.fillText(text, unit.x, top + 9);
    }
    const names = [callName(places[0].call), callName(places[count - 1].call)], room = 2 * half - 10;
    const lines = [count > 1 ? `${names[0]} to ${names[1]}` : names[0], [count > 1 && calls(count), places[0].source.replace(/^.*\//, "")].filter(Boolean).join(", ")];
    context.textAlign = "center";
    context.fillStyle = colors.text;
    context.fillText(this.fitted(lines[0], room), unit.x, y - 7);
    context.fillStyle = colors.muted;
    context.fillText(this.fitted(lines[1], room), unit.x, y + 9);
  }

  fitted(text, room) {
    let most = text.length;
    while (most > 4 && this.context.measureText(middle(text, most)).width > room) most--;
    return middle(text, most);
  }

  // Names of the calls where there is room; else of the last that are equal before the place.
  drawNames(colors) {
    const { context, runs } = this;
    context.fillStyle = colors.muted;
    context.textAlign = "center";
    for (const side of ["target", "golden"]) {
      const y = this.y(side) + (side === "target" ? -19 : 19);
      for (const unit of runs[side]) if (!["place", "none", "other"].includes(unit.kind) && this.stepOf(unit) >= PAIR.named) context.fillText(this.fitted(unit.records.length > 1 ? calls(unit.records.length) : callName(unit.records[0][0]), this.stepOf(unit) - 6), unit.x, y);
    }
  }
}

function RunsStrip(props) {
  const { section } = props, [, redraw] = useReducer((count) => count + 1, 0);
  const places = section.lanes.map((lane) => [lane, pairOf(section, lane)]);
  const regions = new Set(places.flatMap(([lane, pair]) => [...pair.target, ...pair.golden].filter((one) => one[2] >= 0).map((one) => `${lane.number} ${one[2]}`))).size;
  const toggle = (pair, region) => {
    const opened = new Set(pair.opened);
    if (!opened.delete(region)) opened.add(region);
    pair.opened = opened;
    redraw();
  };
  return html`<section class="panel" id="strip" aria-label="Both runs">
    <div class="panel-head"><h2>Both runs in execution order</h2>
      <div class="legend"><span class="key"><i class="dot" style="background:var(--pass-2)"></i>equal in both, joined</span>
        ${regions > 0 && html`<span class="key"><i class="swatch" style="background:var(--band)"></i>in other steps, equal again</span>`}
        ${places.some(([, pair]) => pair.parted) && html`<span class="key"><i class="dot dot-open"></i>never found again</span>`}
        <span class="key"><i class="tick"></i>not compared</span>
        ${section.parts.backward && html`<span class="key">● forward</span><span class="key">▼ backward</span>`}
        <span class="hint">drag to filter, click a mark to open it</span></div></div>
    <div class="lanes">${places.map(([lane, pair]) => html`<${Lane} key=${lane.number} lane=${lane} opened=${pair.opened} onOpen=${(region) => toggle(pair, region)} ...${props} />`)}</div>
    ${section.diagnosis.content && html`<p class="runs-found">Found ${number(section.diagnosis.content.found)} of ${number(section.diagnosis.content.values)} values in the golden run</p>`}
    ${places.filter(([, pair]) => pair.parted).slice(0, 4).map(([lane, pair]) => html`<${PlaceTable} key=${lane.number} lane=${lane} pair=${pair} ...${props} />`)}
    ${places.map(([lane, pair]) => html`<${RegionList} key=${lane.number} lane=${lane} pair=${pair} onOpen=${(region) => toggle(pair, region)} ...${props} />`)}
  </section>`;
}

function PlaceTable({ section, lane, pair, onSelect }) {
  const { parted } = pair, named = new Set([...parted.target, ...parted.golden].map((one) => one.call));
  const there = section.diagnosis.findings.filter((one) => named.has(one.place.record.replace(/\.(forward|backward)$/, "")));
  const relation = [
    parted.factor !== null && `the result of the target is ${short(parted.factor)} times the golden one`,
    parted.factor === null && parted.distance > 0 && `the results are at least ${short(100 * parted.distance, 2)} % of their size apart`,
    parted.parameters.length > 0 && `what becomes of the parameters ${parted.parameters.slice(0, 8).join(", ")}${parted.parameters.length > 8 ? ", ..." : ""} is not found in the golden run`,
    ...there.flatMap((one) => one.arguments).map((one) => `${one.name}: ${one.target || "not given"}, golden ${one.golden || "not given"}`),
    ...there.filter((one) => one.kind === "only_one_side").map((one) => `${one.place.operation} ${one.how}`),
  ].filter(Boolean);
  const files = [...parted.target, ...parted.golden].map((one) => one.source).filter(Boolean);
  let folder = (files[0] || "").replace(/[^/]*$/, "");
  while (!files.every((file) => file.startsWith(folder))) folder = folder.replace(/[^/]*\/$/, "");
  const cell = (call, side) => {
    if (!call) return html`<td></td>`;
    const row = rowsOfRuns(section, lane)[side].get(`${call.call}.${call.direction}`), name = `${call.call}${call.direction === "backward" ? " backward" : ""}`;
    return html`<td>${row === undefined ? name : html`<button class="link" onClick=${() => onSelect(row)}>${name}</button>`}${call.source && html` <code class="source" title=${call.source}>${call.source.slice(folder.length)}</code>`}</td>`;
  };
  const longest = Math.max(parted.target.length, parted.golden.length);
  return html`<div class="runs-place"><table><caption>Where the runs part${section.lanes.length > 1 ? ` (${lane.name})` : ""}</caption>
    <thead><tr><th>target</th><th>golden run</th></tr></thead>
    <tbody>${Array.from({ length: longest }, (_, at) => html`<tr key=${at}>${cell(parted.target[at], "target")}${cell(parted.golden[at], "golden")}</tr>`)}</tbody></table>
    ${relation.length > 0 && html`<p class="relation">${relation.join("; ")}</p>`}</div>`;
}

// The regions one by one, with the first line of each run.
function RegionList({ section, lane, pair, onSelect, onOpen }) {
  const regions = useMemo(() => {
    const found = new Map();
    for (const side of ["target", "golden"]) for (const [record, , region] of pair[side]) {
      if (region < 0) continue;
      if (!found.has(region)) found.set(region, { region, target: [], golden: [] });
      found.get(region)[side].push(record);
    }
    return [...found.values()];
  }, [pair.target]);
  if (!regions.length) return null;
  const cell = (records, side) => {
    if (!records.length) return html`<td class="muted">none</td>`;
    const row = rowsOfRuns(section, lane)[side].get(records[0]), name = records.length > 1 ? `${callName(records[0])} to ${callName(records[records.length - 1])}` : callName(records[0]);
    return html`<td><b>${calls(records.length)}</b> ${row === undefined ? name : html`<button class="link" onClick=${() => onSelect(row)}>${name}</button>`}</td>`;
  };
  return html`<details class="runs-regions"><summary>${number(regions.length)} ${regions.length === 1 ? "region" : "regions"} in other steps, equal again${section.lanes.length > 1 ? ` (${lane.name})` : ""}</summary>
    <div class="scroll" tabindex="0"><table><thead><tr><th class="fold"></th><th>target</th><th>golden run</th></tr></thead>
    <tbody>${regions.slice(0, 200).map((one) => html`<tr key=${one.region}><td><button class="small" aria-pressed=${pair.opened.has(one.region)} onClick=${() => onOpen(one.region)}>Unfold</button></td>${cell(one.target, "target")}${cell(one.golden, "golden")}</tr>`)}</tbody></table></div></details>`;
}
