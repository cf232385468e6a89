"use strict";
// The rows as columns, typed where they are numbers, and how values are written.

const { h, render } = preact;
const { useState, useReducer, useEffect, useLayoutEffect, useMemo, useRef, useCallback } = preactHooks;
const html = htm.bind(h);

// EXPECTED: an error that pytest does not count, by an xfail mark or since the suite says that it is inherited.
const PASS = 0, ERROR = 1, SKIP = 2, EXPECTED = 3;
const EXPLAINED = "explained by rounding";
// The parts of a difference as the strip stacks them: what an operation adds that is not at fault is rounding.
const PARTS = [["inherited", "inherited"], ["rounding", "rounding"], ["defined", "defined differently"], ["born", "arises here"]];

async function readContent(element) {
  const text = element.textContent.trim();
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : decodeBase64(text);
  element.textContent = "";
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function decodeBase64(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

// A figure: null stays missing (NaN here), NaN and infinities are words.
function asNumber(value) {
  if (value === null || value === undefined) return NaN;
  return typeof value === "number" ? value : value === "-inf" ? -Infinity : Infinity;
}

class Section {
  constructor(raw) {
    Object.assign(this, { suite: raw.suite, title: raw.title, noun: raw.noun, kinds: raw.kinds, measure: raw.measure });
    Object.assign(this, { answer: raw.answer, diagnosis: raw.diagnosis, baseline: raw.baseline, markup: raw.markup, pairs: Object.fromEntries(Object.entries(raw.pairs).map(([dump, pair]) => [dump, { ...pair, opened: new Set() }])), runs: raw.runs, slots: raw.slots, texts: raw.texts });
    this.figures = raw.figures.map(([name, title, form, isLowBad]) => ({ name, title, form, isLowBad }));
    this.columns = raw.rows;
    this.outputs = raw.outputs;
    this.count = raw.counts.length;
    this.status = Uint8Array.from(raw.rows.status || []);
    (raw.rows.outcome || []).forEach((outcome, row) => { if (this.texts[outcome] === "xfailed" && this.status[row] === ERROR) this.status[row] = EXPECTED; });
    this.slot = Int32Array.from(raw.rows.slot || []);
    this.order = Int32Array.from(raw.rows.order || []);
    this.cell = Int32Array.from(raw.rows.cell || []);
    this.heat = Float64Array.from((raw.rows.heat || []).map(asNumber));
    this.hasHeights = this.heat.some((heat) => heat > 0); // else every height is 0, and an axis would measure nothing
    this.firstOutput = new Int32Array(this.count + 1);
    raw.counts.forEach((count, row) => { this.firstOutput[row + 1] = this.firstOutput[row] + count; });
    this.hasLimit = raw.measure[0] === "ratio";
    this.measureTitle = raw.measure.map((name) => (this.figure(name) || { title: name }).title).join(" + ");
    if (this.figure(raw.measure[0])?.isLowBad) this.measureTitle = `1 - ${this.measureTitle.toLowerCase()}`;
    this.cells = raw.cells.map(([name, parent]) => ({ name, parent }));
    this.nameApis();
    this.nameDtypes();
    this.makeLanes();
    this.hasPairs = this.lanes.length > 0 && this.slots.length === this.lanes.length && this.slots.every((slot) => this.pairs[slot.dump]);
    this.explained = new Uint8Array(this.count);
    for (let row = 0; row < this.count; row++) this.explained[row] = this.isExplained(row) ? 1 : 0;
    this.splitDifferences();
  }

  figure(name) { return this.figures.find((figure) => figure.name === name); }
  text(column, row) { return this.texts[this.columns[column][row]]; }
  outputText(column, output) { return this.texts[this.outputs[column][output]]; }
  call(row) { return this.text("call", row); }
  part(row) { return this.text("part", row); }
  isBackward(row) { return this.part(row).startsWith("backward"); }
  label(row) { const part = this.part(row); return /^(forward|backward)(-|$)|^record$/.test(part) ? part : ""; }
  title_(row) { return `${this.call(row)} ${this.label(row)}`.trim(); }
  outcome(row) { return this.text("outcome", row); }
  dump(row) { return this.slots[this.slot[row]]; }
  worst(row) { const worst = this.columns.worst[row]; return worst < 0 ? -1 : this.firstOutput[row] + worst; }

  // What there is to look at first: 0 at fault, 1 a failure that rounding explains, 2 an expected one, 3 not judged, 4 passed.
  urgency(row) {
    if (this.isCause(row)) return 0;
    if (this.suite === "overflow" && this.text("level", row) === "origin") return 0;
    const status = this.status[row];
    return status === ERROR ? this.explained[row] : status === EXPECTED ? 2 : status === SKIP ? 3 : 4;
  }

  // Whether the answer names the row's item as a cause: what rounding explains is none.
  isCause(row) {
    if (!this.causes) this.causes = new Set(this.diagnosis.findings.filter(({ kind }) => kind !== "limits").map(({ id }) => this.item(id)));
    return this.causes.has(row);
  }

  // The row of a pytest item; undefined where the page has none.
  item(id) {
    if (!this.items) {
      this.items = new Map();
      for (let row = 0; row < this.count; row++) {
        const own = this.columns.id[row];
        this.items.set(own ? this.texts[own] : `${this.dump(row).id}::${this.call(row)}::${this.part(row)}`, row);
      }
    }
    return this.items.get(id);
  }

  // The name in links: that of the call, with its dump where there are several.
  link(row) {
    const place = this.slots.length > 1 ? this.dump(row).name : "";
    return [place, `${this.call(row)}.${this.part(row)}`].filter(Boolean).join("/");
  }

  find(link) {
    if (!this.links) {
      this.links = new Map();
      for (let row = this.count - 1; row >= 0; row--) this.links.set(this.link(row), row);
    }
    const row = this.links.get(link);
    return row === undefined ? -1 : row;
  }

  figureOf(name, output) { return output < 0 ? NaN : asNumber(this.outputs[`f_${name}`][output]); }

  figureText(figure, output) {
    if (output < 0) return "";
    const value = this.outputs[`f_${figure.name}`][output];
    return value === null ? "" : formatted(value, figure.form);
  }

  isExplained(row) {
    if (this.status[row] !== ERROR) return false;
    let failed = 0;
    for (let output = this.firstOutput[row]; output < this.firstOutput[row + 1]; output++) {
      if (this.outputs.status[output] !== ERROR) continue;
      if (this.outputText("rounding", output) !== EXPLAINED) return false;
      failed++;
    }
    return failed > 0;
  }

  // Of a comparison that accounts for differences: of each row the parts of one output's difference, in `PARTS`, which
  // add up to 1: of the output that the row made most of, where it failed, else of its worst one.
  splitDifferences() {
    this.split = null;
    if (!this.figure("inherited") || !(this.outputs.f_inherited || []).some((share) => share !== null)) return;
    this.split = new Float32Array(this.count * PARTS.length).fill(NaN);
    const shares = (output) => ["born", "inherited", "defined"].map((name) => Math.abs(this.figureOf(name, output)));
    for (let row = 0; row < this.count; row++) {
      const isFault = this.status[row] === ERROR;
      let best = null, most = -1;
      for (let output = this.firstOutput[row]; output < this.firstOutput[row + 1]; output++) {
        const [born, inherited, defined] = shares(output), sum = born + inherited + defined;
        if (!(sum > 0)) continue;
        const weight = isFault ? (born + defined) / sum : asNumber(this.outputs.heat[output]) || 0;
        if (weight > most) { most = weight; best = [born / sum, inherited / sum, defined / sum]; }
      }
      if (!best) continue;
      const [born, inherited, defined] = best;
      this.split.set(isFault ? [inherited, 0, defined, born] : [inherited, born + defined, 0, 0], row * PARTS.length);
    }
  }

  // The parts of a row as `[name, share]`, largest first; empty where its difference was not split.
  partsOf(row) {
    if (!this.split || Number.isNaN(this.split[row * PARTS.length])) return [];
    return PARTS.map(([name, title], at) => [name, this.split[row * PARTS.length + at], title]);
  }

  // What ran, without the number of the call, as numbers of `apis`.
  nameApis() {
    const known = new Map(), byCall = new Map();
    this.apis = [];
    this.api = Int32Array.from({ length: this.count }, (_, row) => {
      const call = this.columns.call[row];
      if (!byCall.has(call)) {
        const name = this.texts[call].replace(/\.[^.]*$/, "") || this.texts[call];
        if (!known.has(name)) known.set(name, this.apis.push(name) - 1);
        byCall.set(call, known.get(name));
      }
      return byCall.get(call);
    });
  }

  nameDtypes() {
    const known = new Map();
    this.dtypes = [];
    this.dtype = Int32Array.from({ length: this.count }, (_, row) => {
      const output = this.worst(row);
      const name = output < 0 ? "" : this.outputText("tested", output) || this.outputText("against", output);
      if (!known.has(name)) known.set(name, this.dtypes.push(name) - 1);
      return known.get(name);
    });
  }

  // One lane per dump; where there are too many, one per rank. `position` is the place of a row in its lane.
  makeLanes() {
    const byRank = this.slots.length > 16;
    const lanes = new Map();
    this.position = new Int32Array(this.count);
    this.lane = new Int32Array(this.count);
    for (let row = 0; row < this.count; row++) {
      const slot = this.slots[this.slot[row]];
      const key = byRank ? slot.rank : this.slot[row];
      if (!lanes.has(key)) lanes.set(key, { number: lanes.size, name: byRank ? `rank ${slot.rank}` : slotName(slot), rows: [] });
      const lane = lanes.get(key);
      this.lane[row] = lane.number;
      this.position[row] = lane.rows.push(row) - 1;
    }
    this.lanes = [...lanes.values()];
    this.longest = Math.max(1, ...this.lanes.map((lane) => lane.rows.length));
  }

  cellPath(cell) {
    const path = [];
    for (let at = cell; at >= 0; at = this.cells[at].parent) path.unshift(this.cells[at].name);
    return path;
  }
}

function slotName(slot) {
  const parts = [];
  if (slot.step !== null) parts.push(`step ${slot.step}`);
  if (slot.rank !== null) parts.push(`rank ${slot.rank}`);
  return parts.join(", ") || slot.name || slot.dump;
}

// A number in a format of Python: .3g, .9f, .2e.
function formatted(value, form) {
  if (typeof value === "string") return value;
  const [, digits, kind] = /\.(\d+)([efg])/.exec(form) || [0, 3, "g"];
  if (kind === "f") return value.toFixed(digits);
  if (kind === "e") return value.toExponential(digits);
  return short(value, Number(digits));
}

// A long name with its beginning and its end, which tell it from others.
function middle(text, most) {
  if (text.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
}

function short(value, digits = 3) {
  if (Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return value > 0 ? "inf/NaN" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-4 || size >= 1e6 ? value.toExponential(digits - 1) : size >= 10 ** digits ? String(Number(value.toPrecision(digits))) : value.toPrecision(digits);
  return text.replace(/(\.\d*?)0+(e|$)/, "$1$2").replace(/\.(e|$)/, "$1");
}

const number = (value) => value.toLocaleString("en-US");
