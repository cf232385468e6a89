// The page put together.

function App({ content }) {
  const [at, setAt] = useState(0);
  const [themeName, setTheme] = useState(() => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  document.documentElement.dataset.theme = themeName; // before canvases ask for its colours
  const sections = useMemo(() => content.sections.map((raw) => new Section(raw)), [content]);
  const section = sections[at];
  return html`
    <header class="top"><span class="brand">pytest-msprobe ${content.version}</span><span class="made">${content.made}</span>
      ${sections.length > 1 && html`<nav aria-label="Suites">${sections.map((one, index) => html`<button key=${one.suite} aria-pressed=${index === at} onClick=${() => setAt(index)}>${one.title}</button>`)}</nav>`}
      <button class="small" id="theme" onClick=${() => setTheme(themeName === "dark" ? "light" : "dark")} aria-label="Dark or light">${themeName === "dark" ? "Light" : "Dark"}</button></header>
    ${section ? html`<${SuitePage} key=${section.suite} section=${section} themeName=${themeName} />` : html`<main><h1>No rows</h1></main>`}`;
}

function SuitePage({ section, themeName }) {
  const [filter, change] = useReducer((before, changes) => ({ ...before, ...changes }), NO_FILTER);
  const [sort, setSort] = useState({ id: "", isDescending: false });
  const [selected, setSelected] = useState(-1);
  const [isOpen, setOpen] = useState(false);
  const columns = useMemo(() => columnsOf(section), [section]);
  const tree = useMemo(() => { const made = new ModelTree(section); shortenNames(made); return made; }, [section]);
  section.parts = useMemo(() => ({ backward: section.count > 0 && section.columns.part.some((part) => section.texts[part].startsWith("backward")) }), [section]);
  const found = useMemo(() => selectRows(section, filter), [section, filter]);
  const rows = useMemo(() => sortRows(found, columns.find((column) => column.id === sort.id), sort.isDescending), [found, sort, columns]);
  const isShown = useMemo(() => { const mask = new Uint8Array(section.count); for (const row of found) mask[row] = 1; return mask; }, [found]);
  const isInTree = useMemo(() => {
    if (filter.cell < 0 && filter.api < 0) return isShown;
    const mask = new Uint8Array(section.count);
    for (const row of selectRows(section, { ...filter, cell: -1, api: -1 })) mask[row] = 1;
    return mask;
  }, [section, filter]);
  const isFiltered = found.length < section.count;

  const open = useCallback((row) => {
    setSelected(row);
    setOpen(true);
    history.replaceState(null, "", `#${encodeURI(section.link(row))}`);
  }, [section]);
  const close = useCallback(() => { setOpen(false); setSelected(-1); history.replaceState(null, "", "#"); }, []);
  const step = (by) => {
    const current = section.find(decodeURI(location.hash.slice(1))); // the state may be one rendering behind
    const next = rows.indexOf(current) + by;
    if (current >= 0 && rows[next] !== undefined) open(rows[next]);
  };
  useEffect(() => {
    const follow = () => {
      const row = section.find(decodeURI(location.hash.slice(1)));
      if (row >= 0) { setSelected(row); setOpen(true); }
    };
    follow();
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, [section]);
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
    <${Top} section=${section} filter=${filter} change=${change} onSelect=${open} />
    ${section.suite === "gradients" ? html`<${GradientMap} ...${shared} />` : html`<${Strip} ...${shared} onBrush=${(from, to) => change({ from, to })} />`}
    ${section.suite === "overflow" && html`<${OverflowGraph} ...${shared} />`}
    ${section.markup && html`<section class="panel suite-picture" aria-label="Picture of all records" dangerouslySetInnerHTML=${{ __html: section.markup }} />`}
    <${FilterBar} section=${section} filter=${filter} change=${change} rows=${rows} columns=${columns} />
    <div class="columns">
      <${TreeView} section=${section} tree=${tree} isShown=${isInTree} filter=${filter} selected=${selected} onCell=${setCell} onApi=${(api) => change({ api, cell: -1 })} onSelect=${open} />
      <section class="panel" id="table" aria-label="Records"><${Table} section=${section} rows=${rows} columns=${columns} sort=${sort} selected=${selected} onSort=${sortBy} onSelect=${open} onOpen=${() => setOpen(true)} /></section>
    </div>
    <${Pictures} ...${shared} isShown=${useLater(isShown)} change=${change} />
    ${isOpen && selected >= 0 && html`<${Details} section=${section} row=${selected} columns=${columns} onClose=${close} onStep=${step} onCell=${setCell} />`}
  </main>`;
}

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

function Top({ section, filter, change, onSelect }) {
  const { answer } = section;
  const fault = useMemo(() => rowsAtFault(section), [section]);
  const verdicts = useMemo(() => countVerdicts(section), [section]);
  const first = (section.suite === "overflow" ? firstNonfinite(section, allRows(section)) : undefined) ?? firstFailure(section, allRows(section)) ?? fault[0];
  const faults = answer.faults.filter(([api]) => section.suite !== "overflow" || api !== "first_anomaly");
  const state = answer.is_bad && !fault.length ? "bad" : fault.length ? (verdicts.some((one) => one.verdict === "explained" && one.count === fault.length) ? "explained" : "bad") : answer.outcomes.passed ? "good" : "none";
  return html`<section class=${`answer answer-${state}`} aria-label="Answer">
    <p class="suite">${section.title}</p>
    <h1>${answer.headline}</h1>
    <div class="verdicts" role="group" aria-label="Verdicts">${verdicts.map(({ verdict, title, count }) => html`<button key=${verdict} class=${`count count-${verdict}`} aria-pressed=${filter.verdict === verdict} onClick=${() => change({ verdict: filter.verdict === verdict ? "" : verdict })}><b>${number(count)}</b> ${title}</button>`)}</div>
    <div class="answer-columns">
      <div><ul class="points" tabindex="0" aria-label="What else is known">${answer.points.map((point) => html`<li key=${point} class=${point.startsWith("  ") ? "inner" : ""}>${point}</li>`)}</ul>
        ${faults.length > 0 && html`<p class="faults">Failing ${section.kinds}: ${faults.slice(0, 8).map(([api, count, total]) => html` <button class="chip" key=${api} aria-pressed=${filter.api >= 0 && section.apis[filter.api] === api} onClick=${() => { const at = section.apis.indexOf(api); change({ api: filter.api === at ? -1 : at, cell: -1 }); }}>${api} <b>${count}</b>/${total}</button>`)}${faults.length > 8 && ` and ${faults.length - 8} more`}</p>`}</div>
      <div class="commands">
        ${first !== undefined && html`<div class="command"><span class="command-title">First in order</span><button class="link" onClick=${() => onSelect(first)}>${section.title_(first)}</button>${section.cell[first] >= 0 && html`<span>in ${section.cells[section.cell[first]].name}</span>`}</div>`}
        ${first !== undefined && section.text("source", first) && html`<div class="command"><span class="command-title">Source line</span><code tabindex="0">${section.text("source", first)}</code></div>`}
        ${fault.length > 0 && html`<${Command} title="Judge only these again" text=${rerunCommand(section, fault)} />`}
        ${fault.length > 0 && section.suite === "precheck" && html`<${Command} title="Write a script that shows it" text=${rerunCommand(section, [first], ["--msprobe-reproducers=reproducers"])} />`}
      </div></div>
    ${section.runs.some((run) => run.header) && html`<details class="runs"><summary>What was judged, against what</summary><ul>${[...new Set(section.runs.flatMap((run) => run.header || []))].map((line) => html`<li key=${line}>${line.replace(/^msprobe: /, "")}</li>`)}</ul></details>`}
  </section>`;
}

function FilterBar({ section, filter, change, rows, columns }) {
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
  return html`<section class="filters" id="filters" aria-label="Filter">
    <label class="grow">Text<input id="search" type="search" placeholder="name, message, source line, Cell   ( / )" value=${filter.text} onInput=${(event) => change({ text: event.target.value })} /></label>
    ${select("verdict", "Verdict", [["", "all"], ...VERDICTS])}
    ${section.dtypes.filter(Boolean).length > 1 && select("dtype", "Dtype", [[-1, "all"], ...section.dtypes.map((name, index) => [index, name || "unknown"])])}
    ${useMemo(() => section.cells.length > 0 && select("cell", "Cell", [[-1, "all"], ...section.cells.map((cell, index) => [index, cell.name])]), [section, filter.cell])}
    ${ranks.length > 1 && select("rank", "Rank", [["", "all"], ...ranks.map((rank) => [rank, rank])])}
    ${steps.length > 1 && select("step", "Step", [["", "all"], ...steps.map((one) => [one, one])])}
    ${section.suite !== "gradients" && [place("from", "From"), place("to", "To")]}
    <div class="filter-end"><output id="shown"><b>${number(rows.length)}</b> of ${number(section.count)}</output>
      <button class="small" id="reset" disabled=${!is} onClick=${() => change(NO_FILTER)}>Show all</button>
      <${Copy} what="the rows shown, as Markdown" label="Copy as Markdown" text=${() => markdownOf(section, Array.from(rows), columns)} />
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
