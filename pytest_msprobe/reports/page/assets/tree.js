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
  }

  groupByApi() {
    const groups = new Map();
    for (const row of this.outside.rows) {
      const api = this.section.api[row];
      if (!groups.has(api)) groups.set(api, { index: -10 - api, api, name: this.section.apis[api], parent: -1, children: [], rows: [] });
      groups.get(api).rows.push(row);
    }
    this.roots = [...groups.values()];
  }

  // Of a comparison: the golden Cell that most calls of a Cell were compared with.
  namePartners() {
    const { section } = this;
    if (!section.columns.partner_cell) return;
    for (const node of this.nodes) {
      const counts = new Map();
      for (const row of node.rows) {
        const partner = section.columns.partner_cell[row];
        if (partner >= 0) counts.set(partner, (counts.get(partner) || 0) + 1);
      }
      const [best] = [...counts].sort((a, b) => b[1] - a[1]);
      node.partner = best && section.cells[best[0]].name;
    }
  }

  // Counts, worst and dtypes of every node over `isShown` rows.
  summarise(isShown) {
    const { section } = this;
    const blank = () => ({ counts: [0, 0, 0, 0], unmatched: 0, heat: NaN, dtypes: new Set(), worst: -1 });
    const facts = new Map();
    const add = (node) => {
      const own = blank();
      facts.set(node.index, own);
      for (const row of node.rows) {
        if (!isShown[row]) continue;
        own.counts[section.status[row]]++;
        if (section.text("side", row) !== "both") own.unmatched++;
        if (!(section.heat[row] <= own.heat) && !Number.isNaN(section.heat[row])) { own.heat = section.heat[row]; own.worst = row; }
        if (section.dtypes[section.dtype[row]]) own.dtypes.add(section.dtypes[section.dtype[row]]);
      }
      for (const child of node.children) {
        const inner = add(child);
        inner.counts.forEach((count, status) => { own.counts[status] += count; });
        own.unmatched += inner.unmatched;
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

function statusOf(facts) {
  return [ERROR, EXPECTED, PASS].find((status) => facts.counts[status]) ?? SKIP;
}
