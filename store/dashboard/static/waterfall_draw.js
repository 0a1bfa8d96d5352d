// Drawing of one span in a row of the waterfall.

import { NAMES, icon, setIcon } from "./waterfall_kinds.js";
import { ROW_HEIGHT } from "./waterfall_rows.js";
import { duration } from "./waterfall_time.js";

const INDENT = 14;
const DEEPEST = 16;

export function make(tag, className, fields = {}) {
  return Object.assign(document.createElement(tag), { className }, fields);
}

export function makeRow() {
  const row = make("div", "wf-row");
  row.setAttribute("role", "row");
  for (const name of ["wf-name", "wf-took", "wf-time"]) {
    const cell = row.appendChild(make("div", name));
    cell.setAttribute("role", "gridcell");
  }
  const [name, , time] = row.children;
  name.append(make("span", "wf-toggle"), icon("other"), make("span", "wf-text"), make("span", "wf-tag"));
  time.append(make("i", "wf-bar"));
  return row;
}

export function fill(waterfall, element, at) {
  const { trace, tree, match, chosen, collapsed } = waterfall;
  const row = waterfall.rows[at];
  const span = tree.order[row];
  const isParent = tree.end[row] > row + 1;
  const isOpen = isParent && !collapsed.has(trace.id[span]);
  const [name, took, time] = element.children;
  const [toggle, sign, text, tag] = name.children;
  element.id = `wf-row-${at}`;
  element.dataset.row = at;
  element.dataset.status = trace.status[span];
  element.dataset.kind = trace.span_kind[span];
  setIcon(sign, trace.span_kind[span]);
  element.classList.toggle("chosen", trace.id[span] === chosen);
  element.classList.toggle("wf-aside", match !== null && !match(span));
  element.classList.toggle("wf-critical", waterfall.path !== null && waterfall.path[span] === 1);
  element.setAttribute("aria-level", tree.depth[row] + 1);
  element.setAttribute("aria-rowindex", at + 2);
  element.setAttribute("aria-selected", trace.id[span] === chosen);
  if (isParent) element.setAttribute("aria-expanded", isOpen);
  else element.removeAttribute("aria-expanded");
  name.style.paddingLeft = `${6 + INDENT * Math.min(tree.depth[row], DEEPEST)}px`;
  toggle.textContent = isParent ? (isOpen ? "▾" : "▸") : "";
  text.textContent = trace.name[span];
  name.title = hint(waterfall, span, tree.depth[row]);
  tag.textContent = remarks(waterfall, span, isParent && !isOpen ? tree.end[row] - row - 1 : 0);
  const [start, end] = [trace.start[span], trace.end[span]];
  took.textContent = start === null || end === null ? "–" : duration(end - start);
  fillBar(waterfall.stretch, time.firstChild, start, end);
}

function fillBar(stretch, bar, start, end) {
  const place = stretch.place(start, end === null ? stretch.whole.to : end);
  bar.hidden = place === null;
  if (!place) return;
  bar.classList.toggle("wf-open", end === null);
  bar.classList.toggle("wf-moment", end !== null && end <= start);
  bar.style.left = `${place.left * 100}%`;
  bar.style.width = `${place.width * 100}%`;
}

function hint({ trace, tree }, span, depth) {
  const notes = [`${trace.name[span]} (${NAMES[trace.span_kind[span]]})`];
  if (tree.adrift[span]) notes.push(`its parent ${trace.parent[span]} is missing or among its descendants`);
  if (trace.start[span] !== null && trace.end[span] < trace.start[span] && trace.end[span] !== null) notes.push("it ends before it starts");
  if (depth > DEEPEST) notes.push(`level ${depth + 1}`);
  return notes.join("\n");
}

function remarks({ trace, tree }, span, hidden) {
  const notes = [];
  if (hidden) notes.push(`+${hidden.toLocaleString("en")}`);
  if (trace.reward[span] !== null) notes.push(`reward ${Number(trace.reward[span].toPrecision(4))}`);
  if (trace.tokens_out[span] !== null) notes.push(`${trace.tokens_in[span] ?? "–"}/${trace.tokens_out[span]} tokens`);
  if (tree.adrift[span]) notes.push("no parent");
  return notes.join(" · ");
}

// Draw the ticks of the axis, and a stripe through all rows for each compressed gap, with its length in the axis.
export function drawAxis({ axis, gaps, rows, stretch }) {
  const at = (className, share, text) => {
    const mark = make("span", className, { textContent: text });
    mark.style.left = `${share * 100}%`;
    return mark;
  };
  const ticks = stretch.ticks(Math.floor(axis.clientWidth / 90)).map(({ share, text }) => at("wf-tick", share, text));
  let free = -1;
  const lengths = [];
  const stripes = stretch.marks().map(({ left, width, seconds }) => {
    const stripe = make("i", "wf-gap", { title: `${duration(seconds)} without work` });
    stripe.style.left = `${left * 100}%`;
    stripe.style.width = `${width * 100}%`;
    if (left > free && left < 0.95) {
      lengths.push(at("wf-gap-length", left, duration(seconds)));
      free = left + 64 / Math.max(axis.clientWidth, 1);
    }
    return stripe;
  });
  axis.replaceChildren(...ticks, ...lengths);
  gaps.style.left = `${axis.offsetLeft}px`;
  gaps.style.width = `${axis.clientWidth}px`;
  gaps.style.height = `${rows.length * ROW_HEIGHT}px`;
  gaps.replaceChildren(...stripes);
}
