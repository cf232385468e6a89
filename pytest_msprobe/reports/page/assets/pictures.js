// Pictures that answer a question each. All are canvases with one way to draw, to point at something and to click it.

// Colours of dtypes that stay apart for every kind of colour vision (Okabe and Ito), with a shape each.
const DTYPE_COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442"];
const SHAPES = ["circle", "square", "triangle", "diamond"];

function drawShape(context, shape, x, y, size) {
  context.beginPath();
  if (shape === "square") context.rect(x - size, y - size, 2 * size, 2 * size);
  else if (shape === "triangle") { context.moveTo(x - size, y + size); context.lineTo(x + size, y + size); context.lineTo(x, y - size); context.closePath(); }
  else if (shape === "diamond") { context.moveTo(x, y - size * 1.3); context.lineTo(x + size * 1.3, y); context.lineTo(x, y + size * 1.3); context.lineTo(x - size * 1.3, y); context.closePath(); }
  else context.arc(x, y, size, 0, 7);
  context.fill();
}

// `draw(context, width, colors)` paints; `pick(x, y, width)` gives {text, x, y, row} of what is there, or null.
function Plot({ height, draw, pick, label, onSelect, watch }) {
  const canvas = useRef();
  const [tip, setTip] = useState(null);
  useLayoutEffect(() => {
    const paint = () => {
      const ratio = window.devicePixelRatio || 1, width = canvas.current.clientWidth;
      canvas.current.width = Math.round(width * ratio);
      canvas.current.height = Math.round(height * ratio);
      const context = canvas.current.getContext("2d"), colors = theme();
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = colors.font;
      draw(context, width, colors);
    };
    paint();
    window.addEventListener("resize", paint);
    return () => window.removeEventListener("resize", paint);
  }, watch);
  const at = (event) => {
    const frame = canvas.current.getBoundingClientRect();
    return pick ? pick(event.clientX - frame.left, event.clientY - frame.top, frame.width) : null;
  };
  return html`<div class="plot"><canvas ref=${canvas} role="img" aria-label=${label} style=${`height:${height}px`} class=${tip && tip.row >= 0 && onSelect ? "can-click" : ""}
    onPointerMove=${(event) => setTip(at(event))} onPointerLeave=${() => setTip(null)}
    onClick=${(event) => { const found = at(event); if (found && found.row >= 0 && onSelect) onSelect(found.row); }}></canvas>
    ${tip && html`<div class=${`tip ${tip.x > 320 ? "tip-left" : ""}`} style=${`left:${tip.x}px;top:${tip.y}px`}>${tip.text}</div>`}</div>`;
}

function Picture({ id, title, children, note }) {
  return html`<section class="panel picture" id=${id} aria-label=${title}><div class="panel-head"><h2>${title}</h2>${note && html`<div class="legend">${note}</div>`}</div><div class="body">${children}</div></section>`;
}

function Pictures(props) {
  const { section } = props;
  if (section.suite === "gradients" || section.suite === "overflow") return null; // theirs stand above the table
  if (!section.count || !section.outputs.label || !section.hasHeights) return null;
  return html`<div class="pictures"><${Dots} ...${props} /><${Distribution} ...${props} /></div>`;
}

const MOST_APIS = 24, DOT_ROW = 22;
// Room for names: less on a phone. The style sheet gives the same to `#dots .labels`.
const dotLeft = (width) => Math.min(190, 0.42 * width);

// Which operation, in which dtype: one dot per output against its tolerance.
function Dots({ section, isShown, filter, change, onSelect, themeName }) {
  const found = useMemo(() => {
    const byApi = new Map();
    for (let row = 0; row < section.count; row++) {
      if (!isShown[row]) continue;
      for (let output = section.firstOutput[row]; output < section.firstOutput[row + 1]; output++) {
        const heat = asNumber(section.outputs.heat[output]);
        if (Number.isNaN(heat)) continue;
        const api = section.api[row];
        if (!byApi.has(api)) byApi.set(api, { api, failed: 0, worst: 0, dots: [] });
        const group = byApi.get(api);
        group.dots.push({ row, output, heat, isOver: section.hasLimit ? section.outputs.status[output] === ERROR : null, dtype: section.outputText("tested", output) || section.outputText("against", output) });
        group.failed += section.status[row] === ERROR && section.outputs.status[output] === ERROR && !section.explained[row];
        group.worst = Math.max(group.worst, heat);
      }
    }
    const groups = [...byApi.values()].sort((a, b) => (b.failed > 0) - (a.failed > 0) || b.worst - a.worst);
    const dtypes = [...new Set(groups.flatMap((group) => group.dots.map((dot) => dot.dtype)))].sort();
    return { groups: groups.slice(0, MOST_APIS), left: groups.length - MOST_APIS, dtypes };
  }, [section, isShown]);
  const scale = useMemo(() => heightScale(section), [section]);
  const height = found.groups.length * DOT_ROW + 26;
  const place = (group, at, width) => (dot, index) => ({
    x: offLimit(scale, dot, dotLeft(width) + 6, width - dotLeft(width) - 20),
    y: at * DOT_ROW + DOT_ROW / 2 + (((index * 7) % 11) - 5) * 0.8,
  });
  const draw = (context, width, colors) => {
    context.clearRect(0, 0, width, height);
    const bottom = found.groups.length * DOT_ROW;
    const left = dotLeft(width);
    const every = Math.ceil((scale.top - scale.bottom) / Math.max(2, Math.floor((width - left) / 60)));
    context.textAlign = "center";
    for (let decade = scale.bottom; decade <= scale.top; decade += every) {
      const x = left + 6 + scale.share(10 ** decade) * (width - left - 20);
      context.strokeStyle = colors.line;
      context.beginPath(); context.moveTo(x, 0); context.lineTo(x, bottom); context.stroke();
      context.fillStyle = colors.muted;
      context.fillText(Math.abs(decade) < 4 ? String(Number((10 ** decade).toPrecision(1))) : `1e${decade}`, x, bottom + 16);
    }
    if (section.hasLimit) {
      const x = left + 6 + scale.share(1) * (width - left - 20);
      context.strokeStyle = colors.fail[1];
      context.lineWidth = 1.5;
      context.setLineDash([6, 4]);
      context.beginPath(); context.moveTo(x, 0); context.lineTo(x, bottom); context.stroke();
      context.setLineDash([]);
      context.lineWidth = 1;
    }
    found.groups.forEach((group, at) => {
      const put = place(group, at, width);
      group.dots.forEach((dot, index) => {
        const { x, y } = put(dot, index), kind = found.dtypes.indexOf(dot.dtype);
        context.fillStyle = DTYPE_COLORS[kind % DTYPE_COLORS.length];
        context.globalAlpha = group.dots.length > 200 ? 0.5 : 0.85;
        if (group.dots.length > 400) context.fillRect(x - 2, y - 2, 4, 4);
        else drawShape(context, SHAPES[kind % SHAPES.length], x, y, 3.4);
      });
    });
    context.globalAlpha = 1;
  };
  const pick = (x, y, width) => {
    const at = Math.floor(y / DOT_ROW), group = found.groups[at];
    if (!group) return null;
    const put = place(group, at, width);
    let best = null, least = 60;
    group.dots.forEach((dot, index) => {
      const spot = put(dot, index), distance = (spot.x - x) ** 2 + (spot.y - y) ** 2;
      if (distance < least) { least = distance; best = { ...spot, row: dot.row, text: `${section.title_(dot.row)}, ${section.outputText("label", dot.output)}: ${short(dot.heat)} (${dot.dtype})` }; }
    });
    return best;
  };
  const legend = found.dtypes.map((dtype, kind) => html`<button class="small chip" key=${dtype} aria-pressed=${filter.dtype >= 0 && section.dtypes[filter.dtype] === dtype}
    onClick=${() => { const index = section.dtypes.indexOf(dtype); change({ dtype: filter.dtype === index ? -1 : index }); }}><span aria-hidden="true" style=${`color:${DTYPE_COLORS[kind % 8]}`}>${["●", "■", "▲", "◆"][kind % 4]}</span> ${dtype || "unknown"}</button>`);
  return html`<${Picture} id="dots" title=${`${section.measureTitle} by ${section.suite === "comparison" ? "operation" : "API"} and dtype: one dot per output`} note=${legend}>
    <div class="with-labels"><div class="labels">${found.groups.map((group) => html`<button key=${group.api} class="label" style=${`height:${DOT_ROW}px`} title=${section.apis[group.api]} aria-pressed=${filter.api === group.api}
      onClick=${() => change({ api: filter.api === group.api ? -1 : group.api, cell: -1 })}>${group.failed > 0 && html`<b class="bad">${group.failed}</b> `}${middle(section.apis[group.api], 25)}</button>`)}</div>
    <${Plot} height=${height} draw=${draw} pick=${pick} onSelect=${onSelect} watch=${[found, themeName]} label=${`${found.groups.length} operations, their outputs by error over limit`} /></div>
    ${found.left > 0 && html`<p class="muted">and ${found.left} more, all nearer to or below these</p>`}<//>`;
}

// A mark keeps its distance from the line of the limit, on the side of its verdict.
function offLimit(scale, dot, left, width) {
  const x = left + scale.share(dot.heat) * width, limit = left + scale.share(1) * width;
  return dot.isOver === null || Number.isNaN(dot.heat) ? x : dot.isOver ? Math.max(x, limit + FROM_LIMIT) : Math.min(x, limit - FROM_LIMIT);
}

// How many outputs are how far off, by any figure.
function Distribution({ section, isShown }) {
  const [name, setName] = useState("");
  const figures = section.figures.filter((figure) => !figure.isLowBad && (section.outputs[`f_${figure.name}`] || []).some((value) => value !== null));
  const figure = section.figure(name) || section.figure(section.measure[0]) || figures[0];
  const bins = useMemo(() => {
    const counts = new Map();
    const add = (key, kind) => { if (!counts.has(key)) counts.set(key, [0, 0, 0]); counts.get(key)[kind]++; };
    for (let row = 0; row < section.count; row++) {
      if (!isShown[row]) continue;
      for (let output = section.firstOutput[row]; output < section.firstOutput[row + 1]; output++) {
        const value = section.figureOf(figure.name, output);
        if (Number.isNaN(value)) continue;
        const isExcused = section.status[row] !== ERROR || section.outputText("rounding", output) === EXPLAINED;
        const kind = section.outputs.status[output] === ERROR ? (isExcused ? 1 : 2) : 0;
        // Up to and with its upper end: what uses its limit up has passed, and stands among passes.
        add(value <= 0 ? -Infinity : Number.isFinite(value) ? Math.ceil(Math.log10(value) - 1e-12) : Infinity, kind);
      }
    }
    const decades = [...counts.keys()].filter(Number.isFinite);
    const keys = counts.has(-Infinity) ? [-Infinity] : [];
    if (decades.length) for (let decade = Math.max(Math.min(...decades), Math.max(...decades) - 14); decade <= Math.max(...decades); decade++) keys.push(decade);
    if (counts.has(Infinity)) keys.push(Infinity);
    return keys.map((key) => ({ key, counts: counts.get(key) || [0, 0, 0] }));
  }, [section, isShown, figure]);
  if (!bins.length) return null;
  const excused = section.status.includes(EXPECTED) ? expectedWord(section).toLowerCase() : EXPLAINED;
  const most = Math.max(1, ...bins.map((bin) => bin.counts[0] + bin.counts[1] + bin.counts[2]));
  const title = (key) => (key === -Infinity ? "0" : key === Infinity ? "inf" : Math.abs(key) < 4 ? String(Number((10 ** key).toPrecision(1))) : `1e${key}`);
  return html`<${Picture} id="distribution" title="How far off the outputs are" note=${html`<label>Figure <select aria-label="Figure" value=${figure.name} onChange=${(event) => setName(event.target.value)}>${figures.map((one) => html`<option value=${one.name} selected=${one.name === figure.name}>${one.title}</option>`)}</select></label>`}>
    <div class="bars" role="img" aria-label=${`Outputs by ${figure.title}: ${bins.map((bin) => `up to ${title(bin.key)}: ${bin.counts.reduce((a, b) => a + b)}`).join(", ")}`}>
      ${bins.map(({ key, counts }) => { const all = counts[0] + counts[1] + counts[2]; return html`<div class="bar-column" key=${String(key)} title=${`${all} outputs up to ${title(key)}: ${counts[2]} failed, ${counts[1]} ${excused}, ${counts[0]} passed`}>
        <span class="bar-count">${all || ""}</span>
        <div class="bar" style=${`height:${170 * Math.log1p(all) / Math.log1p(most)}px`}>${[2, 1, 0].map((kind) => counts[kind] > 0 && html`<i class=${`bar-${kind}`} style=${`flex:${counts[kind]}`}></i>`)}</div>
        <span class="bar-title">${title(key)}</span></div>`; })}
    </div><p class="muted">${figure.title} up to ..., by powers of ten; heights are logarithms of the counts. <span class="key"><i class="dot" style="background:var(--fail-1)"></i>failed</span> <span class="key"><i class="dot" style="background:var(--explained)"></i>${excused}</span> <span class="key"><i class="dot" style="background:var(--pass-1)"></i>passed</span></p><//>`;
}

const MOST_PARAMETERS = 40, GRADIENT_ROW = 20;

// Gradients: which parameter from which step on.
function GradientMap({ section, isShown, onSelect, themeName }) {
  const [isWhole, setWhole] = useState(false);
  const ranks = useMemo(() => gradientGrid(section), [section]);
  return ranks.map(({ rank, parameters, steps, rows }) => {
    const shown = isWhole ? parameters : parameters.slice(0, MOST_PARAMETERS);
    const height = shown.length * GRADIENT_ROW + 30;
    const wide = (width) => Math.min(70, (width - 12) / steps.length);
    const draw = (context, width, colors) => {
      context.clearRect(0, 0, width, height);
      const step = wide(width);
      shown.forEach((parameter, at) => steps.forEach((name, column) => {
        const row = rows.get(`${parameter}\n${name}`);
        if (row === undefined) return;
        context.globalAlpha = isShown[row] ? 1 : 0.15;
        context.fillStyle = gradientColor(colors, section, row);
        context.fillRect(6 + column * step, at * GRADIENT_ROW + 1, Math.max(1, step - 1), GRADIENT_ROW - 2);
        if (section.status[row] === ERROR) { context.fillStyle = colors.panel; drawShape(context, "triangle", 6 + (column + 0.5) * step, at * GRADIENT_ROW + GRADIENT_ROW / 2, Math.min(5, step / 3)); }
      }));
      context.globalAlpha = 1;
      context.fillStyle = colors.muted;
      context.textAlign = "center";
      const every = Math.ceil(34 / step);
      steps.forEach((name, column) => { if (column % every === 0) context.fillText(String(name), 6 + (column + 0.5) * step, shown.length * GRADIENT_ROW + 18); });
    };
    const pick = (x, y, width) => {
      const column = Math.floor((x - 6) / wide(width)), parameter = shown[Math.floor(y / GRADIENT_ROW)];
      const row = rows.get(`${parameter}\n${steps[column]}`);
      if (row === undefined) return null;
      return { row, x, y, text: `${parameter}, step ${steps[column]}: ${section.text("message", row) || STATUS_WORDS[section.status[row]]}` };
    };
    return html`<${Picture} id=${`gradients-${rank ?? 0}`} key=${rank} title=${`Gradients by parameter and step${ranks.length > 1 ? `, rank ${rank}` : ""}`}
        note=${html`<span class="key"><i class="ramp ramp-pass"></i>similar to different</span><span class="key"><i class="dot" style="background:var(--fail-2)"></i>▲ broke a rule</span><span>steps from left to right</span>`}>
      <div class="with-labels"><div class="labels">${shown.map((parameter) => html`<span key=${parameter} class="label" style=${`height:${GRADIENT_ROW}px`} title=${parameter}>${middle(parameter, 30)}</span>`)}</div>
        <${Plot} height=${height} draw=${draw} pick=${pick} onSelect=${onSelect} watch=${[shown, isShown, themeName]} label=${`${parameters.length} parameters over ${steps.length} steps`} /></div>
      ${parameters.length > MOST_PARAMETERS && html`<button class="small" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Fewer" : `All ${parameters.length} parameters`}</button>`}<//>`;
  });
}

function gradientColor(colors, section, row) {
  if (section.status[row] === ERROR) return colors.fail[2];
  if (section.status[row] === SKIP) return colors.skip;
  if (section.status[row] === EXPECTED) return colors.explained;
  const heat = section.heat[row];
  return colors.pass[Number.isNaN(heat) ? 0 : Math.min(3, Math.floor(heat * 8))];
}

function gradientGrid(section) {
  const ranks = new Map();
  for (let row = 0; row < section.count; row++) {
    const slot = section.dump(row);
    if (!ranks.has(slot.rank)) ranks.set(slot.rank, { rank: slot.rank, names: new Map(), steps: new Set(), rows: new Map() });
    const grid = ranks.get(slot.rank), name = parameterOf(section, row);
    grid.names.set(name, (grid.names.get(name) || 0) + (section.status[row] === ERROR));
    grid.steps.add(slot.step);
    grid.rows.set(`${name}\n${slot.step}`, row);
  }
  return [...ranks.values()].map(({ rank, names, steps, rows }) => ({
    rank, rows, steps: [...steps].sort((a, b) => a - b),
    parameters: [...names].map(([name, failed], index) => [name, failed, index]).sort((a, b) => (b[1] > 0) - (a[1] > 0) || a[2] - b[2]).map(([name]) => name),
  }));
}

// Overflow: what an origin reached, over ranks.
function OverflowGraph({ section, onSelect, themeName, selected }) {
  const graph = useMemo(() => overflowLinks(section), [section]);
  const row = 74, height = section.lanes.length * row + 8;
  const spot = (at, width) => ({ x: 70 + ((section.position[at] + 0.5) / section.longest) * (width - 90), y: section.lane[at] * row + row - 18 });
  const draw = (context, width, colors) => {
    context.clearRect(0, 0, width, height);
    context.textBaseline = "middle";
    section.lanes.forEach((lane) => {
      const y = lane.number * row + row - 18;
      context.strokeStyle = colors.line;
      context.beginPath(); context.moveTo(70, y); context.lineTo(width - 20, y); context.stroke();
      context.fillStyle = colors.muted;
      context.textAlign = "left";
      context.fillText(section.lanes.length > 1 ? lane.name : "", 4, y);
    });
    graph.links.forEach(([from, to]) => {
      const a = spot(from, width), b = spot(to, width);
      context.strokeStyle = from === selected || to === selected ? colors.text : colors.fail[1];
      context.globalAlpha = graph.links.length > 60 ? 0.25 : 0.6;
      context.beginPath();
      context.moveTo(a.x, a.y);
      context.quadraticCurveTo((a.x + b.x) / 2, Math.min(a.y, b.y) - Math.min(48, 14 + Math.abs(a.x - b.x) / 8), b.x, b.y);
      context.stroke();
    });
    context.globalAlpha = 1;
    graph.rows.forEach((at) => {
      const { x, y } = spot(at, width), level = section.text("level", at);
      context.fillStyle = level === "origin" ? colors.fail[2] : level === "propagated" ? colors.fail[0] : colors.pass[2];
      drawShape(context, level === "origin" ? "triangle" : level === "propagated" ? "circle" : "diamond", x, y, level === "origin" ? 7 : 4.5);
    });
  };
  const pick = (x, y, width) => {
    let best = null, least = 120;
    graph.rows.forEach((at) => {
      const found = spot(at, width), distance = (found.x - x) ** 2 + (found.y - y) ** 2;
      if (distance < least) { least = distance; best = { ...found, row: at, text: `${section.title_(at)}: ${section.text("level", at)}` }; }
    });
    return best;
  };
  if (!graph.rows.length) return html`<${Picture} id="overflow" title="From the origin to what it reached"><p class="empty">No record makes NaN or Inf.</p><//>`;
  return html`<${Picture} id="overflow" title="From the origin to what it reached" note=${html`<span class="key"><i class="mark mark-origin"></i>origin</span><span class="key"><i class="dot" style="background:var(--fail-0)"></i>passes on</span><span class="key"><i class="mark mark-holds"></i>absorbs or holds</span>`}>
    <${Plot} height=${height} draw=${draw} pick=${pick} onSelect=${onSelect} watch=${[graph, themeName, selected]} label=${`${graph.rows.length} records with NaN or Inf`} />
    <ul class="reached">${graph.origins.map(([origin, reached]) => html`<li key=${origin}><button class="link" onClick=${() => onSelect(origin)}>${section.title_(origin)}</button>${section.lanes.length > 1 ? ` (${slotName(section.dump(origin))})` : ""} reached ${reached.length} ${reached.length === 1 ? "record" : "records"}${reached.length ? html`, the last <button class="link" onClick=${() => onSelect(reached[reached.length - 1])}>${section.title_(reached[reached.length - 1])}</button>` : ""}</li>`)}</ul><//>`;
}

function overflowLinks(section) {
  const byName = new Map(), rows = [], links = [];
  for (let row = 0; row < section.count; row++) {
    if (section.order[row] < 0) continue;
    byName.set(`${section.slot[row]}\n${section.call(row)}${section.label(row) && section.part(row) !== "record" ? `.${section.part(row)}` : ""}`, row);
    byName.set(`${section.dump(row).rank}\n${section.call(row)}.${section.part(row)}`, row);
    if (["origin", "propagated", "absorbed", "ignored"].includes(section.text("level", row))) rows.push(row);
  }
  for (const row of rows) {
    const other = /^propagated from rank (\d+), (\S+)/.exec(section.text("message", row));
    const source = other ? byName.get(`${other[1]}\n${other[2]}`) : byName.get(`${section.slot[row]}\n${section.text("from", row)}`);
    if (source !== undefined && source !== row) links.push([source, row]);
  }
  const origins = rows.filter((row) => section.text("level", row) === "origin");
  const reachedFrom = (origin) => {
    const reached = new Set([origin]);
    links.forEach(([from, to]) => { if (reached.has(from)) reached.add(to); });
    reached.delete(origin);
    return [...reached].sort((a, b) => a - b);
  };
  return { rows, links, origins: origins.slice(0, 20).map((origin) => [origin, reachedFrom(origin)]) };
}

// Pictures of one record: where its wrong elements are and how large; of a gradient its steps.
function RecordPictures({ section, row }) {
  if (section.suite === "gradients") return html`<${GradientLines} section=${section} row=${row} />`;
  const output = section.worst(row), map = output < 0 || !section.outputs.picture ? null : section.outputs.picture[output];
  return map ? html`<${ErrorPicture} map=${map} label=${section.outputText("label", output)} />` : null;
}

function ErrorPicture({ map, label }) {
  const size = Math.max(3, Math.min(22, Math.floor(560 / map.columns), Math.floor(300 / map.rows)));
  const height = map.rows * size;
  const draw = (context, width, colors) => {
    const ramp = [colors.pass[0], colors.pass[1], colors.pass[2], colors.pass[3], colors.fail[0], colors.fail[0], colors.fail[1], colors.fail[2], colors.fail[3]];
    context.clearRect(0, 0, width, height);
    for (let at = 0; at < map.rows * map.columns; at++) {
      const mark = map.cells[at], x = (at % map.columns) * size, y = Math.floor(at / map.columns) * size;
      context.fillStyle = mark === "0" ? colors.line : mark === "N" ? colors.text : ramp[Number(mark) - 1];
      context.fillRect(x, y, size - (size > 5 ? 1 : 0.2), size - (size > 5 ? 1 : 0.2));
    }
  };
  const place = (from, of, parts) => `${Math.floor(from * of / parts)} to ${Math.max(Math.floor(from * of / parts), Math.ceil((from + 1) * of / parts) - 1)}`;
  const pick = (x, y) => {
    const column = Math.floor(x / size), row = Math.floor(y / size);
    if (column >= map.columns || row >= map.rows) return null;
    const mark = map.cells[row * map.columns + column];
    const what = mark === "0" ? "equal" : mark === "N" ? "NaN or Inf on one side" : `off by up to ${short(map.largest * 10 ** (Number(mark) - 9), 2)}`;
    return { x, y, row: -1, text: `rows ${place(row, map.of[0], map.rows)}, columns ${place(column, map.of[1], map.columns)}: ${what}` };
  };
  const most = Math.max(1, map.exact, ...map.decades.map((decade) => decade[1]));
  return html`<figure class="error-picture" id="error-picture"><figcaption>Where ${label} is off: ${number(map.of[0])} x ${number(map.of[1])} elements, the darker the more; grey is equal</figcaption>
    <${Plot} height=${height} draw=${draw} pick=${pick} watch=${[map]} label=${`Errors of ${label} by place`} />
    <figcaption>Elements by the size of their error</figcaption>
    <div class="decades">${[["equal", map.exact], ...map.decades.map(([decade, count]) => [`from 1e${decade}`, count])].map(([title, count]) => html`<div key=${title}><span>${title}</span><i style=${`width:${Math.max(count ? 1 : 0, 220 * Math.log1p(count) / Math.log1p(most))}px`}></i>${number(count)}</div>`)}</div></figure>`;
}

function GradientLines({ section, row }) {
  const name = parameterOf(section, row), rank = section.dump(row).rank;
  const rows = [];
  for (let at = 0; at < section.count; at++) if (section.dump(at).rank === rank && parameterOf(section, at) === name) rows.push(at);
  return section.figures.map((figure) => {
    const points = rows.map((at) => ({ at, step: section.dump(at).step, value: section.figureOf(figure.name, section.worst(at)) })).filter((point) => Number.isFinite(point.value));
    if (points.length < 2) return null;
    const values = points.map((point) => point.value), low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
    const steps = points.map((point) => point.step), first = Math.min(...steps), last = Math.max(...steps);
    const spot = (point, width) => ({ x: 60 + ((point.step - first) / (last - first || 1)) * (width - 80), y: 112 - ((point.value - low) / span) * 96 });
    const draw = (context, width, colors) => {
      context.clearRect(0, 0, width, 140);
      context.fillStyle = colors.muted;
      context.textAlign = "right";
      context.fillText(short(high, 4), 52, 20);
      context.fillText(short(low, 4), 52, 116);
      context.textAlign = "center";
      context.fillText(`step ${first}`, 60, 134);
      context.fillText(String(last), width - 20, 134);
      context.strokeStyle = colors.pass[2];
      context.lineWidth = 2;
      context.beginPath();
      points.forEach((point, index) => { const { x, y } = spot(point, width); if (index) context.lineTo(x, y); else context.moveTo(x, y); });
      context.stroke();
      points.forEach((point) => {
        const { x, y } = spot(point, width), isBad = section.status[point.at] === ERROR;
        context.fillStyle = isBad ? colors.fail[1] : colors.pass[3];
        drawShape(context, isBad ? "triangle" : "circle", x, y, point.at === row ? 7 : 4);
      });
    };
    const pick = (x, y, width) => {
      const near = points.map((point) => ({ ...spot(point, width), point })).sort((a, b) => Math.abs(a.x - x) - Math.abs(b.x - x))[0];
      return { x: near.x, y: near.y, row: near.point.at, text: `step ${near.point.step}: ${short(near.point.value, 5)}` };
    };
    return html`<figure class="error-picture" key=${figure.name}><figcaption>${figure.title} of ${name} over the steps</figcaption><${Plot} height=${140} draw=${draw} pick=${pick} watch=${[name, row]} label=${`${figure.title} over steps`} /></figure>`;
  });
}
