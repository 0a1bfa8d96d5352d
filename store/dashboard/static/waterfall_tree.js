// A trace as a tree of rows, also if parents are missing, circular or recorded late.

const COLUMNS = ["position", "id", "parent", "name", "kind", "span_kind", "start", "end", "status", "sequence", "reward", "tokens_in", "tokens_out", "model"];

export class Trace {
  // The spans of one attempt as columns, in the order in which they were recorded.
  constructor() {
    this.count = 0;
    for (const name of COLUMNS) this[name] = [];
  }

  get last() {
    return this.count ? this.position[this.count - 1] : 0;
  }

  add(columns) {
    const lists = { name: columns.names, kind: columns.kinds, span_kind: columns.span_kinds };
    const from = this.last;
    for (let at = 0; at < columns.position.length; at += 1) {
      // Rows that were requested twice are added once.
      if (columns.position[at] <= from) continue;
      for (const name of COLUMNS) {
        const value = columns[name][at];
        this[name].push(lists[name] ? lists[name][value] : value);
      }
      this.count += 1;
    }
  }

  // The number of spans recorded up to a position; null stands for all.
  upTo(position) {
    if (position === null) return this.count;
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.position[middle] <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

function earlierFirst(trace) {
  return (one, other) => {
    const a = trace.start[one] ?? Infinity;
    const b = trace.start[other] ?? Infinity;
    if (a !== b) return a < b ? -1 : 1;
    // Of spans that start together, the longer one contains the other.
    const first = trace.end[one] ?? Infinity;
    const second = trace.end[other] ?? Infinity;
    if (first !== second) return first > second ? -1 : 1;
    return trace.sequence[one] - trace.sequence[other] || one - other;
  };
}

// The first `count` spans of a trace as rows from top to bottom: `order` has the span of each row, `depth` its depth,
// `end` the row after its last descendant, `row` the row of each span. `adrift` marks spans whose parent is missing or
// one of their descendants.
export function plant(trace, count) {
  const places = new Map();
  for (let span = 0; span < count; span += 1) places.set(trace.id[span], span);
  const sorted = Array.from({ length: count }, (_, span) => span).sort(earlierFirst(trace));
  const first = new Int32Array(count).fill(-1);
  const last = new Int32Array(count).fill(-1);
  const next = new Int32Array(count).fill(-1);
  const adrift = new Uint8Array(count);
  const roots = [];
  for (const span of sorted) {
    const name = trace.parent[span];
    const parent = name === null ? undefined : places.get(name);
    if (parent === undefined || parent === span) {
      adrift[span] = name === null ? 0 : 1;
      roots.push(span);
    } else if (first[parent] < 0) {
      first[parent] = last[parent] = span;
    } else {
      next[last[parent]] = span;
      last[parent] = span;
    }
  }
  const order = new Int32Array(count);
  const depth = new Int32Array(count);
  const row = new Int32Array(count).fill(-1);
  let rows = 0;
  const stack = [];
  const descend = (root) => {
    stack.push(root, 0);
    while (stack.length) {
      const level = stack.pop();
      const span = stack.pop();
      if (row[span] >= 0) continue;
      row[span] = rows;
      order[rows] = span;
      depth[rows] = level;
      rows += 1;
      const children = [];
      for (let child = first[span]; child >= 0; child = next[child]) children.push(child);
      for (let at = children.length - 1; at >= 0; at -= 1) stack.push(children[at], level + 1);
    }
  };
  for (const root of roots) descend(root);
  // Spans that no root reaches belong to a cycle or descend from one: the cycle is cut at its earliest span.
  for (const span of sorted) {
    if (row[span] >= 0) continue;
    adrift[span] = 1;
    descend(span);
  }
  return { count, order, depth, row, adrift, end: ends(depth) };
}

function ends(depth) {
  const end = new Int32Array(depth.length);
  const open = [];
  for (let row = 0; row < depth.length; row += 1) {
    while (open.length && depth[open[open.length - 1]] >= depth[row]) end[open.pop()] = row;
    open.push(row);
  }
  while (open.length) end[open.pop()] = depth.length;
  return end;
}

// The visible rows: without descendants of collapsed spans; with a filter, only matches and their ancestors.
export function shown(trace, tree, collapsed, matches) {
  const found = [];
  const keeps = matches && kept(tree, matches);
  for (let row = 0; row < tree.count;) {
    if (keeps && !keeps[row]) { row = tree.end[row]; continue; }
    found.push(row);
    row = collapsed.has(trace.id[tree.order[row]]) ? tree.end[row] : row + 1;
  }
  return found;
}

function kept(tree, matches) {
  const keeps = new Uint8Array(tree.count);
  const path = [];
  for (let row = 0; row < tree.count; row += 1) {
    path[tree.depth[row]] = row;
    if (!matches(tree.order[row])) continue;
    for (let level = tree.depth[row]; level >= 0 && !keeps[path[level]]; level -= 1) keeps[path[level]] = 1;
  }
  return keeps;
}

// The ancestors of a row, the outermost first.
export function above(tree, row) {
  const found = [];
  let level = tree.depth[row];
  for (let at = row - 1; at >= 0 && level > 0; at -= 1) {
    if (tree.depth[at] < level) {
      found.unshift(at);
      level = tree.depth[at];
    }
  }
  return found;
}

// The earliest and the latest time of all spans, in seconds since the epoch.
export function extent(trace, count) {
  let from = Infinity;
  let to = -Infinity;
  for (let span = 0; span < count; span += 1) {
    for (const at of [trace.start[span], trace.end[span]]) {
      if (at === null) continue;
      if (at < from) from = at;
      if (at > to) to = at;
    }
  }
  return from <= to ? { from, to: Math.max(to, from + 1e-6) } : { from: 0, to: 1 };
}
