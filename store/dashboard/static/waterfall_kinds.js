// The kinds of spans: the time of each, the gaps in which no span worked, and the critical path.

import { duration } from "./waterfall_time.js";

export const NAMES = { agent: "agent", chain: "chain", llm: "model", tool: "tool", retriever: "retriever", reward: "reward", other: "other" };
const CONTAINERS = new Set(["agent", "chain"]);

// The union of periods, given as start and end alternately, as disjoint periods in order.
function union(periods) {
  const count = periods.length / 2;
  const order = Uint32Array.from({ length: count }, (_, at) => at).sort((a, b) => periods[2 * a] - periods[2 * b]);
  const parts = [];
  for (const at of order) {
    const [from, to] = [periods[2 * at], periods[2 * at + 1]];
    const part = parts[parts.length - 1];
    if (part && from <= part.to) part.to = Math.max(part.to, to);
    else parts.push({ from, to });
  }
  return parts;
}

function seconds(parts) {
  return parts.reduce((sum, { from, to }) => sum + to - from, 0);
}

// The time of each kind of the first spans of a trace, and the gaps between the spans that worked. Agents, chains and
// other spans that contain spans do not work: they wait for the calls inside them.
export function measure(trace, tree, whole) {
  const kinds = new Map();
  const work = [];
  for (let row = 0; row < tree.count; row += 1) {
    const span = tree.order[row];
    const name = trace.span_kind[span];
    if (!kinds.has(name)) kinds.set(name, { name, spans: 0, errors: 0, longest: 0, sum: 0, periods: [] });
    const kind = kinds.get(name);
    kind.spans += 1;
    if (trace.status[span] === "ERROR") kind.errors += 1;
    const from = trace.start[span];
    if (from === null) continue;
    const to = Math.max(trace.end[span] ?? whole.to, from);
    kind.periods.push(from, to);
    kind.sum += to - from;
    kind.longest = Math.max(kind.longest, to - from);
    const isParent = tree.end[row] > row + 1;
    if (!CONTAINERS.has(name) && !(name === "other" && isParent)) work.push(from, to);
  }
  const times = Object.keys(NAMES).filter((name) => kinds.has(name)).map((name) => {
    const { periods, ...kind } = kinds.get(name);
    return { ...kind, seconds: seconds(union(periods)) };
  });
  const busy = union(work);
  const gaps = [];
  let from = whole.from;
  for (const part of [...busy, { from: whole.to, to: whole.to }]) {
    if (busy.length && part.from > from) gaps.push({ from, to: part.from });
    from = Math.max(from, part.to);
  }
  return { times, gaps, idle: busy.length ? seconds(gaps) : null, total: whole.to - whole.from };
}

// The spans without which the trace would have ended earlier, as marks by span: from the end, each time the span that
// ended last before the span after it began.
export function criticalPath(trace, tree) {
  const marks = new Uint8Array(trace.count);
  const pending = [{ first: 0, end: tree.count, until: Infinity }];
  while (pending.length) {
    const { first, end, until } = pending.pop();
    const rows = [];
    for (let row = first; row < end; row = tree.end[row]) if (trace.start[tree.order[row]] !== null) rows.push(row);
    const ended = (row) => trace.end[tree.order[row]] ?? Infinity;
    rows.sort((a, b) => ended(b) - ended(a));
    let left = until;
    let isLast = true;
    for (const row of rows) {
      const span = tree.order[row];
      // The last span may end after its parent; the others end before the next one begins.
      if (trace.start[span] >= left || (!isLast && ended(row) > left)) continue;
      marks[span] = 1;
      pending.push({ first: row + 1, end: tree.end[row], until: Math.min(ended(row), left) });
      left = trace.start[span];
      isLast = false;
    }
  }
  return marks;
}

export function icon(kind) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "use"));
  setIcon(svg, kind);
  return svg;
}

export function setIcon(svg, kind) {
  svg.setAttribute("class", `kind-icon kind-${kind}`);
  svg.firstChild.setAttribute("href", `#k-${kind}`);
}

// A table of the time by kind.
export function timeTable({ times, idle, total }) {
  const table = Object.assign(document.createElement("table"), { className: "grid wf-times" });
  const line = (tag, cells, label) => {
    const row = document.createElement("tr");
    cells.forEach((text, at) => {
      const cell = document.createElement(at ? tag : "th");
      if (!at || tag === "th") cell.scope = tag === "th" ? "col" : "row";
      if (at) cell.className = "num";
      if (!at && label) cell.append(label, " ");
      cell.append(text);
      row.append(cell);
    });
    return row;
  };
  const share = (value) => (total > 0 ? `${Math.round(100 * value / total)} %` : "–");
  const head = document.createElement("thead");
  head.append(line("th", ["Kind", "Spans", "Errors", "Time", "Share", "Sum of durations", "Longest"]));
  const body = document.createElement("tbody");
  for (const time of times) {
    body.append(line("td", [NAMES[time.name], time.spans.toLocaleString("en"), time.errors.toLocaleString("en"), duration(time.seconds),
      share(time.seconds), duration(time.sum), duration(time.longest)], icon(time.name)));
  }
  if (idle !== null) body.append(line("td", ["idle", "", "", duration(idle), share(idle), "", ""]));
  table.append(head, body);
  return table;
}
