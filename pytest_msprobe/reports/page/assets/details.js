// One record opened, and the commands that judge records again.

const DROPPED = /^(-[qvsx]+$|--msprobe-(jsonl|page|resume|shard|html-passes)|--html|--self-contained-html|--junitxml|--junit-xml|--lf|--last-failed|--ff|--failed-first|--collect-only|--co)(=|$)/;
const WITH_VALUE = new Set(["-k", "-m", "-n", "--numprocesses", "--html", "--junitxml", "--junit-xml", "--msprobe-jsonl", "--msprobe-page", "--msprobe-resume", "--msprobe-shard"]);
const KEEPS_VALUE = new Set(["-p", "-c", "-o", "-W", "--rootdir", "--confcutdir", "--tb"]);

function quoted(text) { return /^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replace(/'/g, `'"'"'`)}'`; }

// The arguments of the run without its reports and its choice of records.
function ownArguments(run) {
  const kept = [], given = (run && run.arguments) || [];
  for (let at = 0; at < given.length; at++) {
    const one = given[at];
    if (WITH_VALUE.has(one)) { at++; continue; }
    if (DROPPED.test(one) || /^-[kmn]./.test(one)) continue;
    if (KEEPS_VALUE.has(one)) { kept.push(one, given[at + 1] || ""); at++; continue; }
    if (/^--msprobe-\w[\w-]*$/.test(one) && at + 1 < given.length && !given[at + 1].startsWith("-")) { kept.push(`${one}=${given[++at]}`); continue; }
    if (one.startsWith("-")) kept.push(one);
  }
  return kept;
}

function nodeId(section, row) {
  const dump = section.dump(row).dump, own = section.columns.id[row];
  const folder = section.runs[0] && section.runs[0].folder;
  const file = folder && dump.startsWith(`${folder}/`) ? dump.slice(folder.length + 1) : dump;
  const usual = `${section.call(row)}::${section.part(row)}`;
  const rest = own ? section.texts[own].split("::").slice(1).join("::") : usual;
  return `${file}::${rest}`;
}

const MOST_IDS = 8;

function rerunCommand(section, rows, extra = []) {
  const isNamed = rows.length <= MOST_IDS; // a node id names its dump
  const own = [...ownArguments(section.runs[0]).filter((one) => !isNamed || !one.startsWith("--msprobe-dump")), ...extra];
  const chosen = isNamed ? rows.map((row) => nodeId(section, row))
    : ["-k", [...new Set(rows.map((row) => section.apis[section.api[row]]))].slice(0, MOST_IDS).join(" or ")];
  return ["python -m pytest", ...chosen.map(quoted), ...own.map(quoted)].join(" ");
}

// The rows to look at: failures that rounding does not explain; where there is none, all failures.
function rowsAtFault(section) {
  const failed = [], unexplained = [];
  for (let row = 0; row < section.count; row++) {
    if (section.status[row] !== ERROR) continue;
    failed.push(row);
    if (!section.explained[row]) unexplained.push(row);
  }
  return unexplained.length ? unexplained : failed;
}

function Command({ title, text }) {
  return html`<div class="command"><span class="command-title">${title}</span><code>${text.match(/'[^']*'|\S+/g).map((word, at) => html`${at ? " " : ""}<span key=${at} class="argument">${word}</span>`)}</code><${Copy} text=${() => text} what=${title} /></div>`;
}

function Copy({ text, what, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(text());
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button class="small copy" onClick=${copy} aria-label=${`${label}: ${what}`}>${done ? "Copied" : label}</button>`;
}

async function copyText(text) {
  try { await navigator.clipboard.writeText(text); return; } catch { /* a page from a file may not have it */ }
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function Details({ section, row, link, onClose, onStep, onCell, columns }) {
  const panel = useRef();
  const outputs = [];
  for (let output = section.firstOutput[row]; output < section.firstOutput[row + 1]; output++) outputs.push(output);
  const figures = inOrderOfMeasure(section).filter((figure) => outputs.some((output) => section.figureText(figure, output)));
  const fact = (title, text) => text && html`<div class="fact"><dt>${title}</dt><dd>${text}</dd></div>`;
  const path = section.cell[row] < 0 ? [] : cellTrail(section, section.cell[row]);
  const note = section.text("note", row), message = section.text("message", row);
  const standards = [...new Set(outputs.map((output) => section.outputText("standard", output)).filter(Boolean))].join(", ");
  return html`<aside class="details" ref=${panel} aria-label="Record">
    <div class="details-head"><h2><span class=${`mark mark-${markOf(section, row)}`} aria-hidden="true"></span>${section.title_(row)}</h2>
      <button class="small" onClick=${() => onStep(-1)} aria-label="Previous record">↑</button><button class="small" onClick=${() => onStep(1)} aria-label="Next record">↓</button>
      <button class="small" onClick=${onClose} aria-label="Close">✕</button></div>
    <p class=${`verdict-line row-${markOf(section, row)}`}><span class="verdict">${verdictText(section, row)}</span> ${message}</p>
    <dl>
      ${path.length > 0 && html`<div class="fact"><dt>In</dt><dd>${path.map((cell, at) => html`${at ? " › " : ""}<button class="link" onClick=${() => onCell(cell)}>${section.cells[cell].name}</button>`)}</dd></div>`}
      ${fact("Source", section.text("source", row))}
      ${fact("Compared with", section.text("partner", row))}
      ${fact("Tested", section.text("device", row))}
      ${fact("Benchmark", section.text("bench", row))}
      ${fact("Standard", standards)}
      ${fact("Baseline", baselineText(section, row))}
      ${fact("Dump", section.dump(row).dump)}
    </dl>
    ${note && html`<pre>${note}</pre>`}
    ${outputs.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Outputs"><table class="outputs"><thead><tr><th>Output</th><th>Verdict</th><th>Dtype</th><th>Shape</th>${figures.map((figure) => html`<th class="num">${figure.title}</th>`)}<th>What is known</th></tr></thead><tbody>
      ${outputs.slice(0, 100).map((output) => html`<tr class=${`row-${section.outputs.status[output]}`}><td>${section.outputText("label", output)}</td><td><span class="verdict">${["Passed", "Failed", "Not judged"][section.outputs.status[output]]}</span></td>
        <td>${dtypePair(section, output)}</td><td>${section.outputText("shape", output)}</td>${figures.map((figure) => html`<td class="num">${section.figureText(figure, output)}</td>`)}
        <td class="known">${known(section, output)}</td></tr>`)}
    </tbody></table></div>${outputs.length > 100 && html`<p>and ${outputs.length - 100} more</p>`}`}
    <${RecordPictures} section=${section} row=${row} />
    <${Command} title="Judge it again" text=${rerunCommand(section, [row])} />
    <div class="actions"><${Copy} what="link to this record" label="Copy link" text=${() => location.href.split("#")[0] + link()} />
      <${Copy} what="this record" label="Copy as Markdown" text=${() => markdownOf(section, [row], columns)} /></div>
  </aside>`;
}

const BASELINE = { new: "it is new", known: "as before", better: "as before, and better", worse: "worse than before", gone: "it failed before", unjudged: "not judged now" };

function baselineText(section, row) {
  const [state, why] = baselineOf(section, row);
  return [BASELINE[state], why].filter(Boolean).join(": ");
}

function known(section, output) {
  return ["pattern", "rounding", "message"].map((column) => section.outputText(column, output)).filter(Boolean).join("; ");
}

function dtypePair(section, output) {
  const tested = section.outputText("tested", output), against = section.outputText("against", output);
  return against && tested && against !== tested ? `${tested} / ${against}` : tested || against;
}

function cellTrail(section, cell) {
  const trail = [];
  for (let at = cell; at >= 0; at = section.cells[at].parent) trail.unshift(at);
  return trail;
}
