// The execution strip: every row in its order, one lane per dump, on a canvas.

// Flags have rows of their own above the plot, so that they hide no point: see `StripPainter`.
const TALL = { left: 62, right: 14, top: 24, bottom: 30 }, FLAG = 20;
const LOW = { left: 108, right: 14, top: 12, bottom: 20 };
// A pass that uses its limit up is still a pass: marks keep this distance from the line of the limit, in pixels.
const FROM_LIMIT = 6;
// Height of the band that shows where differences come from, in lanes of either kind.
const SHARES = { tall: 34, low: 14 };

function theme() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const ramp = (kind) => [0, 1, 2, 3].map((step) => color(`${kind}-${step}`));
  return {
    text: color("text"), muted: color("muted"), line: color("line"), panel: color("panel"), accent: color("accent"),
    skip: color("skip"), explained: color("explained"), band: color("band"), pass: ramp("pass"), fail: ramp("fail"), font: "12px system-ui, sans-serif",
    parts: Object.fromEntries(PARTS.map(([name]) => [name, color(name)])), hatch: color("hatch"),
  };
}

// Colour by error over its limit: four blues up to the limit, four warm ones from it on, on a log scale.
function heatColor(colors, section, row) {
  if (section.suite === "overflow") return { origin: colors.fail[2], propagated: colors.fail[0] }[section.text("level", row)] || colors.pass[1];
  if (section.status[row] === SKIP) return colors.skip;
  if (section.status[row] === EXPECTED) return colors.explained;
  const ramp = section.status[row] === ERROR ? colors.fail : colors.pass;
  const heat = section.heat[row];
  if (!section.hasLimit) return ramp[section.status[row] === ERROR ? 2 : 1];
  if (Number.isNaN(heat) || heat <= 0) return section.status[row] === ERROR ? ramp[3] : ramp[0];
  const decades = Math.log10(heat);
  return ramp[Math.max(0, Math.min(3, Math.floor(section.status[row] === ERROR ? decades : decades + 4)))];
}

// The scale of heights: a floor for 0, decades, a ceiling for infinite and for errors without a figure.
function heightScale(section) {
  if (section.scale) return section.scale;
  let low = Infinity, high = -Infinity;
  for (const heat of section.heat) if (heat > 0 && Number.isFinite(heat)) { low = Math.min(low, heat); high = Math.max(high, heat); }
  if (section.hasLimit) { low = Math.min(low, 0.1); high = Math.max(high, 10); }
  if (!Number.isFinite(low)) { low = 0.1; high = 10; }
  let bottom = Math.floor(Math.log10(low)), top = Math.ceil(Math.log10(high));
  if (top <= bottom) top = bottom + 1;
  bottom = Math.max(bottom, top - 12);
  section.scale = { bottom, top, share: (heat) => {
    if (Number.isNaN(heat) || heat <= 0) return 0;
    if (!Number.isFinite(heat)) return 1;
    return 0.1 + 0.8 * Math.max(0, Math.min(1, (Math.log10(heat) - bottom) / (top - bottom)));
  } };
  return section.scale;
}

// The outermost Cells that tell rows apart, as runs of a lane: [name, from, to].
function bandsOf(section, lane) {
  if (!section.cells.length) return [];
  const paths = section.cells.map((_, cell) => section.cellPath(cell));
  let depth = 0;
  while (depth < 5 && new Set(paths.map((path) => path[depth]).filter(Boolean)).size === 1) depth++;
  const runs = [];
  lane.rows.forEach((row, at) => {
    const path = section.cell[row] < 0 ? [] : paths[section.cell[row]];
    const name = path[Math.min(depth, path.length - 1)] || "";
    const last = runs[runs.length - 1];
    if (last && last[0] === name) last[2] = at + 1;
    else runs.push([name, at, at + 1]);
  });
  return runs;
}

function backwardStart(section, lane) {
  const first = lane.rows.findIndex((row) => section.isBackward(row));
  if (first < 0) return -1;
  const after = lane.rows.slice(first).filter((row) => section.isBackward(row)).length;
  return after > 0.6 * (lane.rows.length - first) ? first : -1;
}

function laneHeight(section) {
  if (section.hasPairs) return section.lanes.length > 1 ? PAIR.low : pairOf(section, section.lanes[0]).parted ? PAIR.tall : PAIR.flat;
  const count = section.lanes.length, shares = section.split ? (count === 1 ? SHARES.tall : SHARES.low) + 6 : 0;
  if (!section.hasHeights && !section.status.includes(ERROR)) return (count === 1 ? 84 : 56) + shares; // a row of equal marks, without an axis
  return (count === 1 ? 250 : count <= 3 ? 114 : 74) + shares;
}

// Hatching, dots and lines, so that the parts of a difference are told apart without their colours: whether a point of
// the screen is in the colour of the pattern.
const PATTERNS = {
  inherited: () => false,
  rounding: (x, y) => y % 4 === 0,
  defined: (x, y) => x % 4 < 2 && y % 4 < 2,
  born: (x, y) => (x + y) % 5 === 0,
};

// `#rrggbb` as a number of an image's points.
function pointOf(color) { return (0xff000000 | parseInt(color.slice(5, 7) + color.slice(3, 5) + color.slice(1, 3), 16)) >>> 0; }

class StripPainter {
  constructor(canvas, section, lane, isTall) {
    this.shares = section.split ? SHARES[isTall ? "tall" : "low"] : 0;
    const margin = isTall ? TALL : LOW;
    this.bands = bandsOf(section, lane);
    this.backward = backwardStart(section, lane);
    this.failure = firstFailure(section, lane.rows);
    this.nonfinite = firstNonfinite(section, lane.rows);
    const word = section.suite === "comparison" ? "first difference" : "first failure";
    this.flags = [];
    if (this.failure !== undefined && section.order[this.failure] >= 0) this.flags.push([this.failure, `${word}: ${middle(section.title_(this.failure), 48)}`, 2]);
    if (this.nonfinite !== undefined && this.nonfinite !== this.failure) this.flags.push([this.nonfinite, "first NaN or Inf", 3]);
    this.hasAxis = section.hasHeights || section.status.includes(ERROR);
    const top = isTall ? margin.top + FLAG * this.flags.length : margin.top;
    Object.assign(this, { canvas, section, lane, isTall, scale: heightScale(section), margin: { ...margin, top, bottom: margin.bottom + (this.shares && this.shares + 6) } });
  }

  resize() {
    const { canvas } = this, ratio = window.devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    this.context = canvas.getContext("2d");
    this.alpha = this.color = null;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(position) { return this.margin.left + ((position + 0.5) / this.section.longest) * (this.width - this.margin.left - this.margin.right); }
  position(x) { return Math.floor(((x - this.margin.left) / (this.width - this.margin.left - this.margin.right)) * this.section.longest); }
  y(share) { return this.height - this.margin.bottom - share * (this.height - this.margin.top - this.margin.bottom); }

  rowY(row) {
    const { section } = this;
    if (section.status[row] === SKIP && Number.isNaN(section.heat[row])) return this.y(0) + 5;
    if (section.status[row] === ERROR && Number.isNaN(section.heat[row])) return this.y(1);
    if (!this.hasAxis) return (this.margin.top + this.y(0)) / 2;
    const y = this.y(this.scale.share(section.heat[row]));
    if (!section.hasLimit) return y;
    const limit = this.y(this.scale.share(1));
    return section.status[row] === PASS ? Math.max(y, limit + FROM_LIMIT) : section.status[row] === ERROR ? Math.min(y, limit - FROM_LIMIT) : y;
  }

  // Where each row of the lane stands and in which colour: a filter changes neither.
  place(colors) {
    const { section, lane } = this, key = [this.width, this.height, colors.panel].join();
    if (this.placed === key) return;
    this.placed = key;
    this.xs = Float32Array.from(lane.rows, (row) => this.x(section.position[row]));
    this.ys = Float32Array.from(lane.rows, (row) => this.rowY(row));
    this.colors = lane.rows.map((row) => heatColor(colors, section, row));
  }

  draw(isShown, isFiltered, selected) {
    this.resize();
    const { context, section, lane } = this, colors = theme();
    this.place(colors);
    context.clearRect(0, 0, this.width, this.height);
    context.font = colors.font;
    this.drawAxes(colors);
    this.drawFlags(colors); // behind the points
    const step = (this.width - this.margin.left - this.margin.right) / section.longest;
    const size = Math.max(1.6, Math.min(this.isTall ? 4.5 : 3.5, step * 1.2));
    this.alpha = this.color = null;
    const later = [];
    for (const row of lane.rows) {
      if (section.order[row] < 0 && section.suite === "overflow") continue; // the item on the whole step has no place in it
      if (section.status[row] === ERROR || section.status[row] === EXPECTED) { later.push(row); continue; }
      this.drawRow(row, size, !isFiltered || isShown[row]);
    }
    for (const row of later) this.drawRow(row, Math.max(size, this.isTall ? 4 : 3), !isFiltered || isShown[row]);
    context.globalAlpha = 1;
    if (this.shares) this.drawShares(colors, isShown, isFiltered);
    for (const [row, , tone] of this.flags) this.drawRing(colors.fail[tone], row, 1.5);
    if (selected >= 0 && section.lane[selected] === lane.number) this.drawRing(colors.text, selected, 2);
  }

  // Setting a canvas's colour costs more than a point: only where it changes.
  paint(alpha, color) {
    if (this.alpha !== alpha) { this.context.globalAlpha = alpha; this.alpha = alpha; }
    if (this.color !== color) { this.context.fillStyle = color; this.color = color; }
  }

  drawRow(row, size, isBright) {
    const { context, section } = this, at = section.position[row];
    const x = this.xs[at], y = this.ys[at];
    this.paint(isBright ? 1 : 0.12, this.colors[at]);
    if (section.status[row] === SKIP && Number.isNaN(section.heat[row])) { context.fillRect(x - 0.6, y - 4, Math.max(1.2, size / 2), 8); return; }
    if (size < 2.2) { context.fillRect(x - size, y - size, 2 * size, 2 * size); return; } // too small for shapes
    context.beginPath();
    if (section.isBackward(row)) {
      context.moveTo(x - size, y - size * 0.8);
      context.lineTo(x + size, y - size * 0.8);
      context.lineTo(x, y + size);
      context.closePath();
    } else context.arc(x, y, size * 0.85, 0, 7);
    context.fill();
  }

  drawAxes(colors) {
    const { context, scale, section } = this;
    const right = this.width - this.margin.right;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.ceil((scale.top - scale.bottom) / (this.isTall ? 8 : 2));
    for (let decade = scale.bottom; this.hasAxis && decade <= scale.top; decade += every) {
      const y = this.y(scale.share(10 ** decade));
      context.strokeStyle = colors.line;
      context.beginPath(); context.moveTo(this.margin.left, y); context.lineTo(right, y); context.stroke();
      context.fillStyle = colors.muted;
      context.fillText(Math.abs(decade) < 4 ? String(Number((10 ** decade).toPrecision(1))) : `1e${decade}`, this.margin.left - 6, y);
    }
    if (this.isTall && this.hasAxis) {
      context.fillStyle = colors.muted;
      context.fillText("0", this.margin.left - 6, this.y(0));
      context.fillText("inf", this.margin.left - 6, this.y(1));
    }
    if (section.hasLimit && this.hasAxis) {
      const y = this.y(scale.share(1));
      context.strokeStyle = colors.fail[1];
      context.setLineDash([6, 4]);
      context.beginPath(); context.moveTo(this.margin.left, y); context.lineTo(right, y); context.stroke();
      context.setLineDash([]);
    }
    this.drawBands(colors);
  }

  drawBands(colors) {
    const { context } = this, deep = this.isTall ? 14 : 6, y = this.height - deep - 2;
    this.bands.forEach(([name, from, to], index) => {
      if (!name) return;
      const left = this.x(from - 0.5), width = this.x(to - 0.5) - left;
      context.fillStyle = colors.band;
      context.globalAlpha = index % 2 ? 0.55 : 1;
      context.fillRect(left, y, Math.max(width - 0.5, 0.5), deep);
      context.globalAlpha = 1;
      if (!this.isTall || context.measureText(name).width + 6 > width) return;
      context.fillStyle = colors.text;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(name, left + width / 2, y + 7.5);
    });
    if (this.backward > 0) {
      const x = this.x(this.backward - 0.5);
      context.strokeStyle = colors.muted;
      context.beginPath(); context.moveTo(x, this.margin.top - 6); context.lineTo(x, this.y(0) + 10); context.stroke();
      if (!this.isTall) return;
      context.fillStyle = colors.muted;
      context.textBaseline = "alphabetic";
      context.textAlign = "right";
      context.fillText("forward", x - 5, this.margin.top - 7);
      context.textAlign = "left";
      context.fillText("backward", x + 5, this.margin.top - 7);
    }
  }

  // Where differences come from: of each column of points the row that is at fault, else the one that is farthest off.
  drawShares(colors, isShown, isFiltered) {
    const { context, section, lane, canvas } = this, ratio = canvas.width / this.width;
    const bottom = this.height - (this.isTall ? 14 : 6) - 6;
    const step = ((this.width - this.margin.left - this.margin.right) / section.longest) * ratio;
    const columns = this.bars = new Int32Array(canvas.width).fill(-1), weights = new Float64Array(canvas.width).fill(-1);
    lane.rows.forEach((row, at) => {
      if (Number.isNaN(section.split[row * PARTS.length]) || (isFiltered && !isShown[row])) return;
      const weight = section.status[row] === ERROR ? Infinity : section.heat[row] || 0; // faults first
      const from = Math.round(this.xs[at] * ratio - step / 2), to = Math.max(from + 1, Math.round(from + step) - (step > 4 ? 1 : 0));
      for (let x = from; x < to; x++) if (weight > weights[x]) { weights[x] = weight; columns[x] = row; }
    });
    const height = Math.round(this.shares * ratio), image = context.createImageData(canvas.width, height);
    const points = new Uint32Array(image.data.buffer), hatch = pointOf(colors.hatch);
    const fills = PARTS.map(([name]) => [pointOf(colors.parts[name]), PATTERNS[name]]);
    columns.forEach((row, x) => {
      if (row < 0) return;
      let y = height, sum = 0;
      fills.forEach(([color, isHatch], part) => {
        sum += section.split[row * PARTS.length + part];
        for (const end = Math.max(0, Math.round(height * (1 - sum))); y > end;) { y--; points[y * canvas.width + x] = isHatch(x, y) ? hatch : color; }
      });
    });
    context.putImageData(image, 0, Math.round((bottom - this.shares) * ratio));
    context.fillStyle = colors.line;
    context.fillRect(this.margin.left, bottom, this.width - this.margin.left - this.margin.right, 1);
    if (!this.isTall) return;
    context.fillStyle = colors.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText("from", this.margin.left - 6, bottom - this.shares / 2);
  }

  drawFlags(colors) {
    const { context } = this;
    this.flags.forEach(([row, text, tone], at) => {
      const color = colors.fail[tone], x = this.x(this.section.position[row]), top = this.isTall ? 2 + FLAG * at : 0;
      context.strokeStyle = context.fillStyle = color;
      context.lineWidth = 1;
      context.beginPath(); context.moveTo(x, top + 8); context.lineTo(x, this.rowY(row) - 8); context.stroke();
      if (!this.isTall) { context.beginPath(); context.moveTo(x - 5, 0); context.lineTo(x + 5, 0); context.lineTo(x, 9); context.fill(); return; }
      const width = context.measureText(text).width + 12;
      const left = Math.max(2, Math.min(Math.max(this.margin.left, x - 8), this.width - this.margin.right - width));
      context.fillRect(left, top, width, FLAG - 3);
      context.fillStyle = colors.panel;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(text, left + 6, top + FLAG / 2 - 1);
    });
  }

  drawRing(color, row, thick) {
    const { context } = this;
    context.strokeStyle = color;
    context.lineWidth = thick;
    context.beginPath(); context.arc(this.x(this.section.position[row]), this.rowY(row), 8, 0, 7); context.stroke();
  }

  // What stands at a point of the canvas, and what is said of it.
  under(x, y) {
    const { section } = this, row = this.nearest(x, y);
    if (row < 0) return null;
    const words = [`${statusWord(section, row)}${Number.isNaN(section.heat[row]) ? "" : `, ${section.measureTitle} ${short(section.heat[row])}`}`];
    for (const [, share, title] of section.partsOf(row)) if (share >= 0.005) words.push(`${Math.round(100 * share)} % ${title}`);
    if (section.cell[row] >= 0) words.push(section.cells[section.cell[row]].name);
    return { row, x: this.x(section.position[row]), y: this.rowY(row), title: section.title_(row), words };
  }

  // The row whose bar stands at x in the band of shares; -1 for none.
  barAt(x) { return this.bars[Math.round((x * this.canvas.width) / this.width)] ?? -1; }

  // The row nearest to a point of the canvas, within reach.
  nearest(x, y) {
    if (this.shares && y > this.y(0) + 4) return this.barAt(x);
    const { lane } = this, around = Math.ceil((10 / (this.width - this.margin.left - this.margin.right)) * this.section.longest) + 1;
    const at = this.position(x);
    let best = -1, least = 200;
    for (let place = Math.max(0, at - around); place <= Math.min(lane.rows.length - 1, at + around); place++) {
      const row = lane.rows[place];
      const distance = (this.x(place) - x) ** 2 + (this.rowY(row) - y) ** 2 / 4;
      if (distance < least) { least = distance; best = row; }
    }
    return best;
  }
}

function Lane({ section, lane, isShown, isFiltered, filter, selected, themeName, opened, onBrush, onSelect, onOpen }) {
  const canvas = useRef(), painter = useRef(), drag = useRef(null);
  const [hover, setHover] = useState(null);
  const [box, setBox] = useState(null);
  const isTall = section.lanes.length === 1;
  const height = laneHeight(section);
  useLayoutEffect(() => { painter.current = new (pairOf(section, lane) ? PairPainter : StripPainter)(canvas.current, section, lane, isTall); }, [section, lane]);
  useLayoutEffect(() => {
    const draw = () => painter.current.draw(isShown, isFiltered, selected);
    draw();
    window.addEventListener("resize", draw);
    return () => window.removeEventListener("resize", draw);
  }, [section, lane, isShown, isFiltered, selected, themeName, opened]);
  const place = (event) => {
    const frame = canvas.current.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  const down = (event) => {
    drag.current = place(event).x;
    canvas.current.setPointerCapture(event.pointerId);
  };
  const move = (event) => {
    const { x, y } = place(event);
    if (drag.current !== null && Math.abs(x - drag.current) > 4) { setBox([drag.current, x].sort((a, b) => a - b)); setHover(null); return; }
    setHover(painter.current.under(x, y));
  };
  const up = (event) => {
    const { x, y } = place(event), start = drag.current;
    drag.current = null;
    setBox(null);
    if (start === null) return;
    const folded = Math.abs(x - start) <= 4 ? painter.current.foldedAt?.(x, y) : undefined;
    if (folded !== undefined) { setHover(null); onOpen(folded); return; }
    if (Math.abs(x - start) <= 4) { const row = painter.current.nearest(x, y); if (row >= 0) onSelect(row); else onBrush(-1, -1); return; }
    const [from, to] = [start, x].sort((a, b) => a - b).map((at) => painter.current.position(at));
    onBrush(Math.max(0, from), Math.min(section.longest - 1, to));
  };
  const keys = (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    event.preventDefault();
    const failed = lane.rows.filter((row) => section.status[row] === ERROR);
    const pool = failed.length && !event.shiftKey ? failed : lane.rows;
    const at = section.lane[selected] === lane.number && selected >= 0 ? section.position[selected] : -1;
    const next = event.key === "ArrowRight" ? pool.find((row) => section.position[row] > at)
      : [...pool].reverse().find((row) => section.position[row] < (at < 0 ? Infinity : at));
    if (next !== undefined) onSelect(next);
  };
  const shade = box || (filter.from >= 0 && painter.current && painter.current.width
    ? [painter.current.x(filter.from - 0.5), painter.current.x(filter.to + 0.5)] : null);
  const failed = lane.rows.filter((row) => section.status[row] === ERROR).length;
  return html`<div class="lane" style=${`height:${height}px`}>
    <canvas ref=${canvas} tabindex="0" role="img" style=${`height:${height}px`}
      aria-label=${`${lane.name}: ${lane.rows.length} records in execution order, ${failed} failed. Left and right arrow keys go from failure to failure.`}
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${() => setHover(null)} onKeyDown=${keys}></canvas>
    ${section.lanes.length > 1 && html`<span class=${`lane-name ${section.hasPairs ? "lane-name-middle" : ""}`}>${lane.name}${failed > 0 && html` <b class="bad">${failed}</b>`}</span>`}
    ${shade && html`<div class="brush" style=${`left:${shade[0]}px;width:${Math.max(2, shade[1] - shade[0])}px`}></div>`}
    ${hover && html`<div class=${`tip ${hover.x > 400 ? "tip-left" : ""}`} style=${`left:${hover.x}px;top:${hover.y}px`}>
      <b>${hover.title}</b>${hover.words.map((text) => html`<br />${text}`)}</div>`}
  </div>`;
}

const STATUS_WORDS = ["passed", "failed", "not judged", "expected failure"];

function statusWord(section, row) { return section.status[row] === EXPECTED ? verdictText(section, row).toLowerCase() : STATUS_WORDS[section.status[row]]; }

function Strip(props) {
  const { section } = props;
  if (section.hasPairs) return html`<${RunsStrip} ...${props} />`;
  const legend = section.suite === "overflow"
    ? html`<span class="key"><i class="dot" style="background:var(--fail-2)"></i>origin</span><span class="key"><i class="dot" style="background:var(--fail-0)"></i>passes on</span><span class="key"><i class="dot" style="background:var(--pass-1)"></i>clean or absorbs</span>`
    : section.hasLimit && section.hasHeights
    ? html`<span class="key"><i class="ramp ramp-pass"></i>passes, up to the limit (1)</span><span class="key"><i class="ramp ramp-fail"></i>1 to 1000 times the limit</span>`
    : html`<span class="key"><i class="dot" style="background:var(--pass-1)"></i>passed</span><span class="key"><i class="dot" style="background:var(--fail-2)"></i>failed</span>`;
  return html`<section class="panel" id="strip" aria-label="Execution strip">
    <div class="panel-head"><h2>The step in execution order</h2>
      <div class="legend">${(section.hasHeights || section.status.includes(ERROR)) && html`<span>height and colour: ${section.measureTitle}</span>`}${legend}
        <span class="key"><i class="tick"></i>not judged</span>
        ${section.status.includes(EXPECTED) && html`<span class="key"><i class="dot" style="background:var(--explained)"></i>${expectedWord(section).toLowerCase()}</span>`}
        ${section.split && html`<span>below, where it comes from:</span>${PARTS.map(([name, title]) => html`<span class="key" key=${name}><i class=${`swatch swatch-${name}`}></i>${title}</span>`)}`}
        ${section.parts.backward && html`<span class="key">● forward</span><span class="key">▼ backward</span>`}
        <span class="hint">drag to filter, click a point to open it</span></div></div>
    <div class="lanes">${section.lanes.map((lane) => html`<${Lane} key=${lane.number} lane=${lane} ...${props} />`)}</div>
  </section>`;
}
