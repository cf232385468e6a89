// The page put together.

function App({ content }) {
  const sections = useMemo(() => content.sections.map((raw) => new Section(raw)), [content]);
  const [at, setAt] = useState(() => sectionOf(sections, location.hash));
  const [themeName, setTheme] = useState(() => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const [isPrinting, setPrinting] = useState(false);
  document.documentElement.dataset.theme = isPrinting ? "light" : themeName; // before canvases ask for its colours
  useLayoutEffect(() => { // at once: a page may be printed before it is painted
    const print = () => setPrinting(true), back = () => setPrinting(false);
    const follow = () => setAt(sectionOf(sections, location.hash));
    const listeners = { beforeprint: print, afterprint: back, hashchange: follow };
    Object.entries(listeners).forEach(([name, listener]) => window.addEventListener(name, listener));
    return () => Object.entries(listeners).forEach(([name, listener]) => window.removeEventListener(name, listener));
  }, [sections]);
  const section = sections[at];
  const change = (index) => {
    history.replaceState(null, "", index ? `#?suite=${encodeURIComponent(sections[index].suite)}` : "#");
    setAt(index);
  };
  return html`
    <header class="top"><span class="brand">pytest-msprobe ${content.version}</span><span class="made">${content.made}</span>
      ${sections.length > 1 && html`<nav aria-label="Suites">${sections.map((one, index) => html`<button key=${one.suite} aria-pressed=${index === at} onClick=${() => change(index)}>${one.title}</button>`)}</nav>`}
      <button class="small" id="theme" onClick=${() => setTheme(themeName === "dark" ? "light" : "dark")} aria-label="Dark or light">${themeName === "dark" ? "Light" : "Dark"}</button></header>
    ${section ? html`<${SuitePage} key=${section.suite} section=${section} suite=${at ? section.suite : ""} isPrinting=${isPrinting} themeName=${isPrinting ? "light" : themeName} />` : html`<main><h1>No rows</h1></main>`}`;
}

// The suite that an address names, or that has its record.
function sectionOf(sections, hash) {
  const [record, query] = splitHash(hash);
  const named = sections.findIndex((section) => section.suite === query.get("suite"));
  if (named >= 0 || !record) return Math.max(0, named);
  return Math.max(0, sections.findIndex((section) => section.find(record) >= 0));
}

function SuitePage({ section, suite, isPrinting, themeName }) {
  const start = useMemo(() => viewOf(section, location.hash), [section]);
  const [filter, change] = useReducer((before, changes) => ({ ...before, ...changes }), start.filter);
  const [sort, setSort] = useState(start.sort);
  const [selected, setSelected] = useState(start.selected);
  const [hasPasses, setPasses] = useState(start.hasPasses);
  const [unknown, setUnknown] = useState(start.unknown);
  const now = useRef(start.selected); // the state may be one rendering behind
  const isOpen = selected >= 0;
  const columns = useMemo(() => columnsOf(section), [section]);
  const tree = useMemo(() => { const made = new ModelTree(section); shortenNames(made); return made; }, [section]);
  section.parts = useMemo(() => ({ backward: section.count > 0 && section.columns.part.some((part) => section.texts[part].startsWith("backward")) }), [section]);
  const found = useMemo(() => selectRows(section, filter), [section, filter]);
  const sorted = useMemo(() => sortRows(section, found, columns.find((column) => column.id === sort.id), sort.isDescending), [found, sort, columns]);
  const isFolded = !hasPasses && found.some((row) => section.urgency(row) < 4);
  const rows = useMemo(() => (isFolded ? sorted.filter((row) => section.urgency(row) < 4) : sorted), [sorted, isFolded]);
  const isShown = useMemo(() => { const mask = new Uint8Array(section.count); for (const row of found) mask[row] = 1; return mask; }, [found]);
  const isInTree = useMemo(() => {
    if (filter.cell < 0 && filter.api < 0) return isShown;
    const mask = new Uint8Array(section.count);
    for (const row of selectRows(section, { ...filter, cell: -1, api: -1 })) mask[row] = 1;
    return mask;
  }, [section, filter]);
  const isFiltered = found.length < section.count;

  const select = (row) => { now.current = row; setSelected(row); };
  const open = useCallback((row) => {
    select(row);
    setUnknown([]);
    if (section.urgency(row) === 4) setPasses(true); // a record that is open has its place in the table
  }, [section]);
  const close = useCallback(() => select(-1), []);
  const step = (by) => {
    const next = rows.indexOf(now.current) + by;
    if (now.current >= 0 && rows[next] !== undefined) open(rows[next]);
  };
  const view = { filter, sort, selected, hasPasses };
  useLayoutEffect(() => {
    // An address that says nothing that this page knows stays as it is, so that one can see what it was.
    if (!unknown.length) replaceHash(hashOf(section, view, suite));
  }, [section, filter, sort, selected, hasPasses, unknown]);
  useLayoutEffect(() => {
    const follow = () => {
      if (location.hash === hashOf(section, { ...view, selected: now.current }, suite)) return;
      const next = viewOf(section, location.hash);
      change(next.filter);
      setSort(next.sort);
      setPasses(next.hasPasses);
      setUnknown(next.unknown);
      if (next.selected >= 0) open(next.selected); else select(-1);
    };
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, [section, filter, sort, hasPasses]);
  useEffect(() => { if (start.selected >= 0 && section.urgency(start.selected) === 4) setPasses(true); }, [start]);
  useEffect(() => {
    const keys = (event) => {
      const isTyping = event.target.matches?.("input, select, textarea");
      if (event.key === "Escape") { if (isOpen) close(); else if (isTyping) event.target.blur(); else change(NO_FILTER); }
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") { event.preventDefault(); document.getElementById("search").focus(); }
      if (event.key === "j") step(1);
      if (event.key === "k") step(-1);
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  const sortBy = (id) => setSort((before) => (before.id !== id ? { id, isDescending: startsDescending(section, id) } : before.isDescending === startsDescending(section, id) ? { id, isDescending: !before.isDescending } : { id: "", isDescending: false }));
  const shared = { section, isShown, isFiltered, filter, selected, themeName, onSelect: open };
  const setCell = (cell) => change({ cell, api: -1 });
  return html`<main class=${isOpen ? "with-details" : ""}>
    ${unknown.length > 0 && html`<p class="panel unknown" role="alert">This page has no ${unknown.join(", no ")}. The link is of another run, or misspelt. <button class="small" onClick=${() => { setUnknown([]); change(NO_FILTER); }}>Show all records</button></p>`}
    <${Top} section=${section} filter=${filter} change=${change} onSelect=${open} />
    ${section.suite === "gradients" ? html`<${GradientMap} ...${shared} />` : html`<${Strip} ...${shared} onBrush=${(from, to) => change({ from, to })} />`}
    ${section.suite === "overflow" && html`<${OverflowGraph} ...${shared} />`}
    ${section.markup && html`<section class="panel suite-picture" aria-label="Picture of all records" dangerouslySetInnerHTML=${{ __html: section.markup }} />`}
    <${FilterBar} section=${section} filter=${filter} change=${change} count=${found.length} rows=${sorted} columns=${columns} />
    <div class="columns">
      <${TreeView} section=${section} tree=${tree} isShown=${isInTree} filter=${filter} selected=${selected} onCell=${setCell} onApi=${(api) => change({ api, cell: -1 })} onSelect=${open} />
      <${Table} section=${section} rows=${isPrinting ? printedRows(section, sorted) : rows} folded=${sorted.length - rows.length} columns=${columns} sort=${sort} selected=${selected} isPrinting=${isPrinting}
        hasPasses=${hasPasses} onPasses=${setPasses} onSort=${sortBy} onSelect=${open} />
    </div>
    <${Pictures} ...${shared} isShown=${useLater(isShown)} change=${change} />
    ${isOpen && html`<${Details} section=${section} row=${selected} columns=${columns} link=${() => hashOf(section, { selected }, suite)} onClose=${close} onStep=${step} onCell=${setCell} />`}
  </main>`;
}

function replaceHash(hash) {
  if (location.hash === hash || (hash === "#" && !location.hash)) return;
  try { history.replaceState(null, "", hash); } catch { /* a browser takes so many changes in so many seconds */ }
}

// What is printed below the answer.
function printedRows(section, rows) { return rows.filter((row) => section.urgency(row) <= 1); }

// A value some moments later: what stands below the first screen does not hold up the answer to a click.
function useLater(value) {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), 60);
    return () => clearTimeout(timer);
  }, [value]);
  return late;
}

// Figures begin with their worst value.
function startsDescending(section, id) {
  const figure = section.figures.find((one) => `f_${one.name}` === id);
  return figure ? !figure.isLowBad : false;
}

const STATES = { wrong: "bad", right: "good", "nothing judged": "open" };
const MOST_CAUSES = 3;

function Top({ section, filter, change, onSelect }) {
  const { answer, diagnosis } = section;
  const fault = useMemo(() => rowsAtFault(section), [section]);
  const verdicts = useMemo(() => countVerdicts(section), [section]);
  const faults = answer.faults.filter(([api]) => section.suite !== "overflow" || api !== "first_anomaly");
  const chosen = (api) => filter.api >= 0 && section.apis[filter.api] === api;
  return html`<section class=${`answer answer-${STATES[diagnosis.outcome] || "none"}`} aria-label="Answer">
    <p class="suite">${section.title}</p>
    <h1>${diagnosis.headline}</h1>
    ${diagnosis.about.length > 0 && html`<ul class="about">${diagnosis.about.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    <div class="verdicts" role="group" aria-label="Verdicts">${verdicts.map(({ verdict, title, count }) => html`<button key=${verdict} class=${`count ${count ? `count-${verdict}` : "count-zero"}`} aria-pressed=${filter.verdict === verdict} onClick=${() => change({ verdict: filter.verdict === verdict ? "" : verdict })}><b>${number(count)}</b> ${title}</button>`)}</div>
    ${section.baseline && html`<p>Held to the baseline: ${section.baseline}</p>`}
    <div class="answer-columns">
      <div><${Causes} section=${section} onSelect=${onSelect} /><${Effect} diagnosis=${diagnosis} />
        ${faults.length > 0 && html`<p class="faults">Failing ${section.kinds}: ${faults.slice(0, 8).map(([api, count, total]) => html` <button class="chip" key=${api} aria-pressed=${chosen(api)} onClick=${() => change({ api: chosen(api) ? -1 : section.apis.indexOf(api), cell: -1 })}>${middle(api, 40)} <b>${count}</b>/${total}</button>`)}${faults.length > 8 && ` and ${faults.length - 8} more`}</p>`}</div>
      <div><${Next} section=${section} fault=${fault} /><${Unsaid} diagnosis=${diagnosis} /></div></div>
    <details class="runs"><summary>More of this run</summary>
      <ul>${[...answer.points, ...new Set(section.runs.flatMap((run) => run.header || []).map((line) => line.replace(/^msprobe: /, "")))].map((line) => html`<li key=${line} class=${line.startsWith("  ") ? "inner" : ""}>${line}</li>`)}</ul></details>
  </section>`;
}

// Each cause with its first record: the same fault in several layers, directions and ranks is one.
function Causes({ section, onSelect }) {
  const causes = section.diagnosis.findings, left = causes.length - MOST_CAUSES + (section.diagnosis.cut.findings || 0);
  if (!causes.length) return null;
  const one = (cause) => {
    const { cell, ranks, steps, source } = cause.place, row = section.item(cause.id);
    const where = [cell && `in ${cell}`, ranks.length > 0 && `rank ${ranks.join(", ")}`, steps.length > 0 && `step ${steps.join(", ")}`];
    return html`<li key=${cause.id + cause.name}>${row === undefined ? html`<b>${cause.name}</b>` : html`<button class="link" onClick=${() => onSelect(row)}>${cause.name}</button>`} <span class="confidence">${cause.confidence}</span>
      <span class="muted"> ${[`${cause.count} ${cause.count === 1 ? "record" : "records"}`, ...where].filter(Boolean).join(", ")}</span>
      <div>${[cause.how, cause.detail].filter(Boolean).join(": ")}</div>${source && html`<code class="source">${source}</code>`}</li>`;
  };
  return html`<h2>${causes.length > 1 ? "Causes" : "Cause"}</h2><ol class=${`causes ${causes.length > 1 ? "" : "single"}`}>${causes.slice(0, MOST_CAUSES).map(one)}</ol>
    ${left > 0 && html`<details><summary>${left} more</summary><ol class="causes" start=${MOST_CAUSES + 1}>${causes.slice(MOST_CAUSES).map(one)}</ol></details>`}`;
}

function Effect({ diagnosis }) {
  const { count, last } = diagnosis.reach;
  if (!count) return null;
  const records = `${number(count)} ${count === 1 ? "record" : "records"}`;
  return html`<h2>Effect</h2><p>${diagnosis.suite === "overflow" ? `NaN or Inf reaches ${records}` : `${records} differ only because of their inputs`}${last ? `, the last of them ${last}` : ""}.</p>`;
}

function Next({ section, fault }) {
  const steps = section.diagnosis.next.filter((step) => step.arguments.length), words = section.diagnosis.next.filter((step) => !step.arguments.length);
  const own = fault.length ? [{ text: rerunCommand(section, fault), tells: "the verdicts of the failures alone" }] : [];
  if (fault.length > MOST_CAUSES) own.unshift({ text: rerunCommand(section, [fault[0]]), tells: "the verdict of the first failure alone" });
  if (fault.length && section.suite === "precheck") own.push({ text: rerunCommand(section, [fault[0]], ["--msprobe-reproducers=reproducers"]), tells: "the first failure, by a script that needs no dump" });
  const commands = [...steps.map((step) => ({ text: step.arguments.map(quoted).join(" "), tells: step.tells })), ...own];
  if (!commands.length && !words.length) return null;
  const put = ({ text, tells }) => html`<${Command} key=${text} title=${`shows ${tells}`} text=${text} />`;
  return html`<h2>What to do next</h2>${words.map((step) => html`<p key=${step.tells}>${step.tells}</p>`)}${commands.slice(0, 1).map(put)}
    ${commands.length > 1 && html`<details><summary>${commands.length - 1} more ${commands.length === 2 ? "command" : "commands"}</summary>${commands.slice(1).map(put)}</details>`}`;
}

// What the answer does not cover, and how the two runs are set up differently.
function Unsaid({ diagnosis }) {
  const left = diagnosis.cut.open || 0;
  return html`${diagnosis.exact && html`<h2>Against the exact run</h2><p>${diagnosis.exact.text}</p>`}
    ${diagnosis.setup.length > 0 && html`<h2>The runs are set up differently</h2><ul class="points">${diagnosis.setup.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    ${diagnosis.open.length > 0 && html`<h2>Not judged</h2><ul class="points">${diagnosis.open.slice(0, 4).map((one) => html`<li key=${one.text}>${one.text}</li>`)}</ul>
      ${diagnosis.open.length + left > 4 && html`<p class="muted">and ${diagnosis.open.length + left - 4} more reasons</p>`}`}`;
}

function FilterBar({ section, filter, change, count, rows, columns }) {
  const numbers = (key) => [...new Set(section.slots.map((slot) => slot[key]))].filter((value) => value !== null).sort((a, b) => a - b);
  const ranks = numbers("rank"), steps = numbers("step");
  const select = (name, label, options) => html`<label>${label}<select value=${filter[name]} onChange=${(event) => change({ [name]: typeof NO_FILTER[name] === "number" ? Number(event.target.value) : event.target.value })}>${options.map(([value, title]) => html`<option value=${value} selected=${String(filter[name]) === String(value)}>${title}</option>`)}</select></label>`;
  const is = JSON.stringify(filter) !== JSON.stringify(NO_FILTER);
  const download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", csvOf(section, rows, columns)], { type: "text/csv" }));
    link.download = `${section.suite}_rows.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const place = (name, label) => html`<label>${label}<input type="number" class="place" min="0" max=${section.longest - 1} value=${filter[name] < 0 ? "" : filter[name]} onInput=${(event) => { const value = event.target.value === "" ? -1 : Number(event.target.value); change(name === "from" ? { from: value, to: filter.to < 0 && value >= 0 ? section.longest - 1 : filter.to } : { to: value, from: filter.from < 0 && value >= 0 ? 0 : filter.from }); }} /></label>`;
  const verdicts = useMemo(() => VERDICTS.map(([verdict, title]) => [verdict, verdictTitle(section, verdict, title)]), [section]);
  return html`<section class="filters" id="filters" aria-label="Filter">
    <label class="grow">Text<input id="search" type="search" placeholder="Search ( / )" title="In names, messages, source lines and Cells" value=${filter.text} onInput=${(event) => change({ text: event.target.value })} /></label>
    ${select("verdict", "Verdict", [["", "all"], ...verdicts])}
    ${section.dtypes.filter(Boolean).length > 1 && select("dtype", "Dtype", [[-1, "all"], ...section.dtypes.map((name, index) => [index, name || "unknown"])])}
    ${useMemo(() => section.cells.length > 0 && select("cell", "Cell", [[-1, "all"], ...section.cells.map((cell, index) => [index, cell.name])]), [section, filter.cell])}
    ${ranks.length > 1 && select("rank", "Rank", [["", "all"], ...ranks.map((rank) => [rank, rank])])}
    ${steps.length > 1 && select("step", "Step", [["", "all"], ...steps.map((one) => [one, one])])}
    ${section.suite !== "gradients" && [place("from", "From"), place("to", "To")]}
    <div class="filter-end"><output id="shown"><b>${number(count)}</b> of ${number(section.count)}</output>
      <button class="small" id="reset" disabled=${!is} onClick=${() => change(NO_FILTER)}>Show all</button>
      <${Copy} what="to what is shown" label="Copy link" text=${() => location.href} />
      <${Copy} what="the records shown, as Markdown" label="Copy as Markdown" text=${() => markdownOf(section, Array.from(rows), columns)} />
      <button class="small" id="csv" onClick=${download}>Save CSV</button></div>
  </section>`;
}

(async () => {
  const root = document.getElementById("app");
  try {
    const content = await readContent(document.getElementById("rows"));
    root.textContent = "";
    render(html`<${App} content=${content} />`, root);
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  } catch (error) {
    root.textContent = `This page cannot be shown: ${error.message}. A browser of 2023 or later is needed.`;
    throw error;
  }
})();
