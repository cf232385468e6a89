// The tree of the model beside the table.

const MOST_CALLS = 150;

function TreeView({ section, tree, isShown, filter, selected, onCell, onApi, onSelect }) {
  const [open, setOpen] = useState(() => new Set(initiallyOpen(tree)));
  const [search, setSearch] = useState("");
  const [more, setMore] = useState({});
  const list = useRef();
  const facts = useMemo(() => tree.summarise(isShown), [tree, isShown]);
  const hasExpected = section.status.includes(EXPECTED), hasSkipped = section.status.includes(SKIP);
  const matching = useMemo(() => matchingNodes(section, tree, search), [tree, search]);
  useEffect(() => {
    if (selected < 0 || section.cell[selected] < 0) return;
    setOpen((before) => new Set([...before, ...tree.pathTo(section.cell[selected])]));
  }, [selected]);
  const entries = [];
  const visit = (node, depth) => {
    const own = facts.get(node.index);
    if (matching && !matching.has(node)) return;
    if (!own.counts.some(Boolean)) return;
    const isOpen = open.has(node.index) || Boolean(matching && matching.get(node));
    entries.push({ node, depth, own, isOpen });
    if (!isOpen) return;
    node.children.forEach((child) => visit(child, depth + 1));
    const rows = node.rows.filter((row) => isShown[row]);
    const most = MOST_CALLS * (1 + (more[node.index] || 0));
    rows.slice(0, most).forEach((row) => entries.push({ row, depth: depth + 1 }));
    if (rows.length > most) entries.push({ rest: rows.length - most, node, depth: depth + 1 });
  };
  tree.roots.forEach((node) => visit(node, 0));
  const toggle = (node) => setOpen((before) => {
    const after = new Set(before);
    if (!after.delete(node.index)) after.add(node.index);
    return after;
  });
  const choose = (node) => (node.api !== undefined ? onApi(filter.api === node.api ? -1 : node.api) : onCell(filter.cell === node.index ? -1 : node.index));
  const keys = (event) => {
    const items = [...list.current.querySelectorAll("[role=treeitem]")], at = items.indexOf(document.activeElement);
    const entry = entries[at];
    if (!entry) return;
    const go = (to) => { event.preventDefault(); items[Math.max(0, Math.min(items.length - 1, to))].focus(); };
    if (event.key === "ArrowDown") go(at + 1);
    else if (event.key === "ArrowUp") go(at - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(items.length - 1);
    else if (event.key === "ArrowRight" && entry.node && !entry.rest) { if (entry.isOpen) go(at + 1); else toggle(entry.node); }
    else if (event.key === "ArrowLeft") {
      if (entry.node && entry.isOpen) toggle(entry.node);
      else { let up = at; while (up >= 0 && entries[up].depth >= entry.depth) up--; if (up >= 0) go(up); }
    } else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); document.activeElement.click(); }
  };
  return html`<section class="panel" id="tree" aria-label="Model">
    <div class="panel-head"><h2>${tree.isOfCells ? "Model" : "Operations"}</h2>
      <input type="search" class="small" placeholder="Find a Cell or a call" aria-label="Find in the tree" value=${search} onInput=${(event) => setSearch(event.target.value)} /></div>
    <div class="tree-head" aria-hidden="true"><span>Worst</span><span>Failed</span>${hasExpected && html`<span>${["comparison", "sharded"].includes(section.suite) ? "Follow" : "Expected"}</span>`}<span class="of-passes">Passed</span>${hasSkipped && html`<span>Not judged</span>`}</div>
    <div class="tree" role="tree" aria-label="Model" ref=${list} onKeyDown=${keys}>
      ${entries.map((entry, index) => entry.rest ? html`<button class="tree-more" key=${`rest${entry.node.index}`} role="treeitem" style=${`padding-left:${entry.depth * 16 + 24}px`} onClick=${() => setMore((before) => ({ ...before, [entry.node.index]: (before[entry.node.index] || 0) + 1 }))}>and ${number(entry.rest)} more</button>`
        : entry.node ? html`<${TreeNode} key=${`n${entry.node.index}`} entry=${entry} index=${index} section=${section} hasExpected=${hasExpected} hasSkipped=${hasSkipped}
            isChosen=${(filter.cell >= 0 && filter.cell === entry.node.index) || (entry.node.api !== undefined && filter.api === entry.node.api)} onToggle=${toggle} onChoose=${choose} />`
        : html`<${TreeCall} key=${`r${entry.row}`} entry=${entry} section=${section} isChosen=${selected === entry.row} onSelect=${onSelect} />`)}
      ${!entries.length && html`<p class="empty">Nothing here fits the filter.</p>`}
    </div></section>`;
}

function TreeNode({ entry, index, section, hasExpected, hasSkipped, isChosen, onToggle, onChoose }) {
  const { node, own, depth, isOpen } = entry;
  const status = own.isOrigin ? ERROR : statusOf(own);
  const dtypes = [...own.dtypes].join(", ");
  const difference = differenceOf(node), only = onlySide(section, own);
  const words = (node.differences || []).map(([part, one]) => `; ${part}: ${one}`).join("");
  const unmatched = own.unmatched ? `, ${own.unmatched} only on one side` : "";
  const partner = node.partner && node.partner !== node.name ? node.partner : "";
  return html`<div role="treeitem" tabindex=${index ? -1 : 0} aria-level=${depth + 1} aria-expanded=${isOpen} aria-selected=${isChosen}
    class=${`node ${isChosen ? "chosen" : ""}`} style=${`padding-left:${depth * 16 + 4}px`} onClick=${() => onChoose(node)}
    title=${`${node.name}: ${own.counts[1]} failed, ${own.counts[0]} passed, ${own.counts[3] ? `${own.counts[3]} ${expectedWord(section).toLowerCase()}, ` : ""}${own.counts[2]} not judged${unmatched}${words}${dtypes && `; ${dtypes}`}`}>
    <span class="twist" aria-hidden="true" onClick=${(event) => { event.stopPropagation(); onToggle(node); }}>${isOpen ? "▾" : "▸"}</span>
    <span class=${`mark mark-${status}`} aria-hidden="true"></span>
    <span class="node-name">${lastWords(node)}${partner && html`<i class="partner"> ↔ ${partner}</i>`}</span>
    ${only && html`<i class=${`one-sided side-${only}`} title=${onlyIn(only)}>${only} only</i>`}
    ${difference && html`<i class=${`level level-${difference.kind}`}>${difference.part === "backward" && html`<span role="img" aria-label="backward: ">▼ </span>`}${difference.words}${difference.isPassedOn && html`<span role="img" aria-label=", passed on"> →</span>`}</i>`}
    <span class="node-facts">${own.unmatched > 0 && !only && html`<i class="one-sided">${own.unmatched} one-sided</i>`}${!difference && html`<i class="dtypes">${dtypes}</i>`}</span>
    <span class=${`num ${status === ERROR ? "bad" : ""}`}>${short(own.heat, 2)}</span>
    <span class=${`num ${own.counts[1] ? "bad" : ""}`}>${own.counts[1] || ""}</span>
    ${hasExpected && html`<span class="num expected">${own.counts[3] || ""}</span>`}
    <span class="num of-passes">${own.counts[0] || ""}</span>
    ${hasSkipped && html`<span class="num muted">${own.counts[2] || ""}</span>`}
  </div>`;
}

function onlyIn(side) { return `only in the ${side === "golden" ? "golden dump" : "target"}`; }

function TreeCall({ entry, section, isChosen, onSelect }) {
  const { row, depth } = entry, output = section.worst(row), side = section.text("side", row);
  const partner = section.text("partner", row);
  const bare = partner.replace(/\.(forward|backward)$/, "");
  return html`<div role="treeitem" tabindex="-1" aria-level=${depth + 1} aria-selected=${isChosen} class=${`node call ${isChosen ? "chosen" : ""}`}
    style=${`padding-left:${depth * 16 + 24}px`} onClick=${() => onSelect(row)}>
    <span class=${`mark mark-${markOf(section, row)}`} aria-hidden="true"></span>
    <span class="node-name">${section.call(row).replace(/^golden\./, "")}${section.label(row) && html` <i class="part">${section.label(row)}</i>`}
      ${side !== "both" && html` <i class=${`one-sided side-${side}`}>${onlyIn(side)}</i>`}
      ${bare && side === "both" && bare !== section.call(row) && !partner.startsWith(section.call(row)) && html`<i class="partner"> ↔ ${bare}</i>`}</span>
    <span class="node-facts"><i class="dtypes">${output >= 0 && `${section.outputText("tested", output)} ${section.outputText("shape", output)}`}</i></span>
    <span class=${`num ${section.status[row] === ERROR ? "bad" : ""}`}>${short(section.heat[row], 2)}</span>
    <span class="num wide">${statusWord(section, row)}</span>
  </div>`;
}

// Of `bs.0.a.qkv.Linear` inside of `bs.0.a.Attn` only `qkv.Linear`.
function lastWords(node) {
  return node.shortName === undefined ? node.name : node.shortName;
}

function shortenNames(tree) {
  for (const node of tree.nodes) {
    const parent = node.parent >= 0 ? tree.nodes[node.parent] : { name: "" };
    const words = node.name.split(".");
    const same = (name) => { // a golden Cell stands below a target's, whose partner it is named after
      const above = name.split(".");
      let count = 0;
      while (count < above.length && count < words.length - 1 && words[count] === above[count]) count++;
      return count;
    };
    node.shortName = words.slice(Math.max(same(parent.name), same(parent.partner || ""))).join(".");
  }
}

// Two levels, and the way to the first failure.
function initiallyOpen(tree) {
  const open = [];
  if (tree.roots.length === 1) open.push(tree.roots[0].index);
  const first = firstFailure(tree.section, allRows(tree.section));
  if (first !== undefined && tree.section.cell[first] >= 0) open.push(...tree.pathTo(tree.section.cell[first]));
  return open;
}

// Nodes to show for a search, and whether they are to be open; null without one.
function matchingNodes(section, tree, search) {
  const word = search.trim().toLowerCase();
  if (!word) return null;
  const found = new Map();
  const texts = textsWith(section, word);
  const visit = (node) => {
    const isNamed = node.name.toLowerCase().includes(word) || (node.partner || "").toLowerCase().includes(word);
    const inside = node.children.map(visit).some(Boolean) || node.rows.some((row) => texts[section.columns.call[row]]);
    if (isNamed || inside) found.set(node, inside);
    return isNamed || inside;
  };
  tree.roots.forEach(visit);
  return found;
}
