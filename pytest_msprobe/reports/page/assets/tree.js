// The model: Cells with what their rows amount to. Where no Cell is known, the types of APIs take their place.

class ModelTree {
  constructor(section) {
    this.section = section;
    this.isOfCells = section.cells.length > 0;
    this.nodes = section.cells.map((cell, index) => ({ index, name: cell.name, parent: cell.parent, children: [], rows: [] }));
    this.roots = [];
    for (const node of this.nodes) (node.parent < 0 ? this.roots : this.nodes[node.parent].children).push(node);
    this.outside = { index: -2, name: this.isOfCells ? "outside of every Cell" : "all records", parent: -1, children: [], rows: [] };
    for (let row = 0; row < section.count; row++) (section.cell[row] < 0 ? this.outside : this.nodes[section.cell[row]]).rows.push(row);
    if (!this.isOfCells) this.groupByApi();
    else if (this.outside.rows.length) this.roots.push(this.outside);
    this.namePartners();
    this.nameDifferences();
  }

  groupByApi() {
    const groups = new Map();
    for (const row of this.outside.rows) {
      const api = this.section.api[row];
      if (!groups.has(api)) groups.set(api, { index: -10 - api, api, name: this.section.apis[api], parent: -1, children: [], rows: [] });
      groups.get(api).rows.push(row);
    }
    const failed = (group) => group.rows.some((row) => this.section.urgency(row) === 0);
    this.roots = [...groups.values()].sort((a, b) => failed(b) - failed(a));
  }

  // Of a comparison: the golden Cell that most calls of a Cell were compared with.
  namePartners() {
    const { section } = this;
    if (!section.columns.partner_cell) return;
    for (const node of this.nodes) {
      const counts = new Map();
      for (const row of node.rows) {
        const partner = section.text("partner_cell", row);
        if (partner) counts.set(partner, (counts.get(partner) || 0) + 1);
      }
      const [best] = [...counts].sort((a, b) => b[1] - a[1]);
      node.partner = best && best[0];
    }
  }

  // Of a comparison: what the own records of a Cell say of its difference, [direction, words].
  nameDifferences() {
    const { section } = this;
    if (section.suite !== "comparison") return;
    for (const node of this.nodes) {
      node.differences = node.rows.filter((row) => section.text("level", row)).map((row) => [section.part(row), section.text("level", row)]);
    }
  }

  // Counts, worst and dtypes of every node over `isShown` rows.
  summarise(isShown) {
    const { section } = this;
    const blank = () => ({ isOrigin: false, counts: [0, 0, 0, 0], sides: new Set(), unmatched: 0, heat: NaN, dtypes: new Set(), worst: -1 });
    const facts = new Map();
    const add = (node) => {
      const own = blank();
      facts.set(node.index, own);
      for (const row of node.rows) {
        if (!isShown[row]) continue;
        own.counts[section.status[row]]++;
        own.isOrigin = own.isOrigin || (section.status[row] === PASS && section.urgency(row) === 0);
        const side = section.columns.side[row];
        own.sides.add(side);
        if (section.texts[side] !== "both") own.unmatched++;
        if (!(section.heat[row] <= own.heat) && !Number.isNaN(section.heat[row])) { own.heat = section.heat[row]; own.worst = row; }
        if (section.dtypes[section.dtype[row]]) own.dtypes.add(section.dtypes[section.dtype[row]]);
      }
      for (const child of node.children) {
        const inner = add(child);
        inner.counts.forEach((count, status) => { own.counts[status] += count; });
        own.isOrigin = own.isOrigin || inner.isOrigin;
        own.unmatched += inner.unmatched;
        inner.sides.forEach((side) => own.sides.add(side));
        if (!(inner.heat <= own.heat) && !Number.isNaN(inner.heat)) { own.heat = inner.heat; own.worst = inner.worst; }
        inner.dtypes.forEach((dtype) => own.dtypes.add(dtype));
      }
      return own;
    };
    this.roots.forEach(add);
    return facts;
  }

  // The Cells that lead to a node, outermost first.
  pathTo(cell) {
    const path = [];
    for (let at = cell; at >= 0; at = this.nodes[at].parent) path.unshift(at);
    return path;
  }
}

// A Cell in short: what arose inside comes before what it inherits, its forward before its backward.
function differenceOf(node) {
  const found = (node.differences || []).map(([part, words]) => ({
    part, words: words.replace(/, passed on$/, ""), isPassedOn: words.endsWith("passed on"),
    kind: / inside by rounding/.test(words) ? "rounding" : / inside/.test(words) ? "born" : "inherited",
  }));
  const rank = (one) => 2 * ["born", "rounding", "inherited"].indexOf(one.kind) + (one.part !== "forward");
  return found.sort((left, right) => rank(left) - rank(right))[0];
}

// The side that alone has all of a node; "" where both have a part.
function onlySide(section, facts) {
  const [side] = facts.sides;
  return facts.sides.size === 1 && section.texts[side] !== "both" ? section.texts[side] : "";
}

function statusOf(facts) {
  return [ERROR, EXPECTED, PASS].find((status) => facts.counts[status]) ?? SKIP;
}
