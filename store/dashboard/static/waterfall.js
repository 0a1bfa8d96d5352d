// The waterfall: spans as a tree on a time axis. Its rows are loaded page by page from the JSON twin of the span list,
// and only visible rows are drawn. The state of the view survives when the part around it is rendered again.

import { drawAxis, fill, make, makeRow } from "./waterfall_draw.js";
import { criticalPath, measure } from "./waterfall_kinds.js";
import { Panel } from "./waterfall_panel.js";
import { Rows } from "./waterfall_rows.js";
import { Stretch } from "./waterfall_time.js";
import { Trace, above, extent, plant, shown } from "./waterfall_tree.js";
import { toolbar } from "./waterfall_tools.js";

const FIRST_PAGE = 1000;
const PAGE = 10000;
const HEAD = 40;
const PAUSE = 150;

class Waterfall {
  constructor(part) {
    this.trace = new Trace();
    this.collapsed = new Set();
    this.stretch = new Stretch();
    this.until = null;
    this.rows = [];
    this.chosen = null;
    this.scrolled = 0;
    this.hadFocus = false;
    this.filter = { text: "", kind: "", errors: false };
    this.path = null;
    this.planted = 0;
    this.readAddress();
    this.build(part);
  }

  // -- the elements ---------------------------------------------------------------------------------------------------

  build(part) {
    this.element = make("div", "wf");
    this.tools = toolbar(this);
    this.scroller = make("div", "wf-scroll", { tabIndex: 0 });
    this.scroller.setAttribute("role", "treegrid");
    this.scroller.setAttribute("aria-label", "Spans");
    const head = make("div", "wf-head");
    head.setAttribute("role", "row");
    for (const [name, text] of [["wf-name", "Span"], ["wf-took", "Duration"], ["wf-time wf-axis", "Time"]]) {
      head.append(make("div", name, { textContent: name.includes("axis") ? "" : text }));
      head.lastChild.setAttribute("role", "columnheader");
      head.lastChild.setAttribute("aria-label", text);
    }
    this.axis = head.lastChild;
    this.gaps = make("div", "wf-gaps");
    this.gaps.setAttribute("aria-hidden", "true");
    const body = make("div", "wf-rows");
    body.setAttribute("role", "rowgroup");
    this.scroller.append(head, this.gaps, body);
    this.panel = new Panel(this);
    const columns = make("div", "wf-columns");
    columns.append(this.scroller, this.panel.element);
    this.element.append(this.tools.element, columns);
    this.list = new Rows(this.scroller, body, makeRow, (element, row) => fill(this, element, row));
    this.listen(body);
  }

  listen(body) {
    const { scroller } = this;
    scroller.addEventListener("scroll", () => { this.scrolled = scroller.scrollTop; }, { passive: true });
    scroller.addEventListener("focus", () => { this.hadFocus = true; });
    scroller.addEventListener("blur", () => { if (scroller.isConnected) this.hadFocus = false; });
    scroller.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey ? event.deltaY : event.deltaX;
      if (!this.stretch.view || Math.abs(sideways) <= Math.abs(event.shiftKey ? 0 : event.deltaY)) return;
      event.preventDefault();
      this.stretch.move(sideways / this.axis.clientWidth);
      this.rescale();
    }, { passive: false });
    body.addEventListener("click", (event) => {
      const row = event.target.closest(".wf-row");
      if (!row) return;
      const at = Number(row.dataset.row);
      if (event.target.closest(".wf-toggle")) this.toggle(at);
      else this.choose(at, true);
    });
    this.axis.addEventListener("pointerdown", (event) => this.drag(event));
    new ResizeObserver(() => this.drawAxis()).observe(this.axis);
  }

  // Move the view into the newly rendered part, and load the spans recorded since.
  attach(part) {
    this.part = part;
    this.isBeside = part.dataset.beside !== undefined;
    this.until = part.dataset.until === "" ? null : Number(part.dataset.until);
    part.append(this.element);
    if (this.trace.count) {
      this.grow();
      this.scroller.scrollTop = this.scrolled;
      if (this.hadFocus) this.scroller.focus({ preventScroll: true });
    }
    return this.load();
  }

  // -- data -----------------------------------------------------------------------------------------------------------

  async load() {
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    try {
      let more = this.until === null || this.trace.last < this.until;
      while (more) {
        const { spans, attempt } = this.part.dataset;
        const wanted = new URLSearchParams({ attempt, after: this.trace.last, limit: this.trace.count ? PAGE : FIRST_PAGE });
        if (this.until !== null) wanted.set("until", this.until);
        const answer = await fetch(`${spans}.json?${wanted}`, { credentials: "same-origin" });
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        const page = await answer.json();
        this.trace.add(page.columns);
        more = page.next !== null;
        this.tools.tell(more ? `${this.trace.count.toLocaleString("en")} spans, and more to come …` : "");
        // Each tree costs as much as all spans so far, so a long trace is drawn again when it has doubled.
        if (!more || this.trace.count >= 2 * this.planted) this.grow();
      }
      this.isWhole = true;
      if (this.stretch.showAddressed()) this.redraw();
      this.openAddressed();
    } catch (error) {
      this.tools.tell(`Not all spans could be read: ${error.message}. Reload the page.`);
    } finally {
      this.loading = false;
      if (this.again) { this.again = false; this.load(); }
    }
  }

  grow() {
    // The table that is shown without JavaScript, or until there are rows.
    this.part.querySelector(".wf-plain")?.remove();
    const count = this.trace.upTo(this.until);
    this.planted = count;
    this.tree = plant(this.trace, count);
    this.stretch.whole = extent(this.trace, count);
    this.measured = measure(this.trace, this.tree, this.stretch.whole);
    this.tools.count(count, this.measured);
    this.applySwitches();
    this.refresh();
  }

  applySwitches() {
    if (!this.tree) return;
    this.stretch.compress(this.compresses ? this.measured.gaps : []);
    this.path = this.marksPath ? criticalPath(this.trace, this.tree) : null;
    this.element.classList.toggle("wf-with-path", this.marksPath);
    this.element.classList.toggle("wf-with-gaps", this.stretch.gaps.length > 0);
  }

  setSwitch(name, isOn) {
    this[name] = isOn;
    this.applySwitches();
    this.redraw();
    this.writeAddress();
  }

  matches() {
    const { text, kind, errors } = this.filter;
    if (!text && !kind && !errors) return null;
    const { trace } = this;
    const wanted = text.toLowerCase();
    return (span) => (!kind || trace.span_kind[span] === kind) && (!errors || trace.status[span] === "ERROR")
      && (!wanted || trace.name[span].toLowerCase().includes(wanted) || trace.id[span] === text);
  }

  refresh() {
    if (!this.tree) return;
    this.match = this.matches();
    this.rows = shown(this.trace, this.tree, this.collapsed, this.match);
    this.scroller.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.tools.empty(this.rows.length === 0);
    this.redraw();
  }

  redraw() {
    this.drawAxis();
    this.list.show(this.rows.length);
    this.point();
  }

  drawAxis() {
    drawAxis(this);
  }

  // Draw another period. The address follows when the movement ends, because browsers limit how often it changes.
  rescale() {
    this.redraw();
    clearTimeout(this.later);
    this.later = setTimeout(() => this.writeAddress(), PAUSE);
  }

  // -- actions --------------------------------------------------------------------------------------------------------

  // The visible row of the selected span; -1 if it is hidden.
  at() {
    if (this.chosen === null || !this.tree) return -1;
    const row = this.rowOf(this.chosen);
    return row < 0 ? -1 : this.rows.indexOf(row);
  }

  rowOf(id) {
    const span = this.trace.id.indexOf(id);
    return span < 0 || span >= this.tree.count ? -1 : this.tree.row[span];
  }

  point() {
    const at = this.at();
    if (at < 0) this.scroller.removeAttribute("aria-activedescendant");
    else this.scroller.setAttribute("aria-activedescendant", `wf-row-${at}`);
  }

  choose(at, opens = false) {
    if (!this.rows.length) return;
    const row = this.rows[Math.min(Math.max(at, 0), this.rows.length - 1)];
    this.chosen = this.trace.id[this.tree.order[row]];
    this.list.show(this.rows.length);
    this.list.reveal(Math.min(Math.max(at, 0), this.rows.length - 1), HEAD);
    this.point();
    this.writeAddress();
    // Beside a transcript, the transcript shows the span.
    if (this.isBeside) this.part.dispatchEvent(new CustomEvent("rollbook:span", { bubbles: true, detail: this.chosen }));
    else if (opens || this.panel.isOpen) this.panel.open(this.chosen);
  }

  // Select any span: collapsed ancestors are expanded, and filters that hide it are removed.
  find(id, opens = false) {
    const row = this.tree ? this.rowOf(id) : -1;
    if (row < 0) return false;
    for (const each of above(this.tree, row)) this.collapsed.delete(this.trace.id[this.tree.order[each]]);
    this.refresh();
    if (this.rows.indexOf(row) < 0) {
      this.filter = { text: "", kind: "", errors: false };
      this.tools.show(this.filter);
      this.refresh();
    }
    this.choose(this.rows.indexOf(row), opens);
    return true;
  }

  toggle(at, opens) {
    const row = this.rows[at];
    const id = this.trace.id[this.tree.order[row]];
    const isOpen = !this.collapsed.has(id);
    if (opens === isOpen || this.tree.end[row] === row + 1) return;
    if (isOpen) this.collapsed.add(id);
    else this.collapsed.delete(id);
    this.refresh();
  }

  collapseAll(closes) {
    this.collapsed.clear();
    for (let row = 0; closes && row < this.tree.count; row += 1) {
      if (this.tree.end[row] > row + 1 && this.tree.depth[row] > 0) this.collapsed.add(this.trace.id[this.tree.order[row]]);
    }
    this.refresh();
  }

  zoom(factor) {
    const span = this.chosen === null ? -1 : this.trace.id.indexOf(this.chosen);
    const start = span < 0 ? null : this.trace.start[span];
    const isInView = start !== null && this.stretch.place(start, this.trace.end[span]) !== null;
    this.stretch.zoom(factor, isInView ? (start + (this.trace.end[span] ?? start)) / 2 : undefined);
    this.rescale();
  }

  fit(toSpan) {
    const span = this.chosen === null ? -1 : this.trace.id.indexOf(this.chosen);
    this.stretch.view = null;
    if (toSpan && span >= 0 && this.trace.start[span] !== null) {
      const from = this.trace.start[span];
      const length = Math.max((this.trace.end[span] ?? from) - from, 0);
      this.stretch.show(from - length * 0.05, from + length * 1.05);
    }
    this.rescale();
  }

  drag(event) {
    const box = this.axis.getBoundingClientRect();
    const share = (x) => Math.min(Math.max((x - box.left) / box.width, 0), 1);
    const from = share(event.clientX);
    const mark = this.axis.appendChild(make("i", "wf-mark"));
    this.axis.setPointerCapture(event.pointerId);
    const move = ({ clientX }) => {
      const to = share(clientX);
      mark.style.left = `${Math.min(from, to) * 100}%`;
      mark.style.width = `${Math.abs(to - from) * 100}%`;
    };
    const end = ({ clientX }) => {
      this.axis.removeEventListener("pointermove", move);
      const to = share(clientX);
      if (Math.abs(to - from) > 0.01) this.stretch.show(this.stretch.at(Math.min(from, to)), this.stretch.at(Math.max(from, to)));
      this.rescale();
    };
    this.axis.addEventListener("pointermove", move);
    this.axis.addEventListener("pointerup", end, { once: true });
  }

  sideways(at, opens) {
    const row = this.rows[at];
    const isOpen = this.tree.end[row] > row + 1 && !this.collapsed.has(this.trace.id[this.tree.order[row]]);
    if (opens && isOpen) this.choose(at + 1);
    else if (opens) this.toggle(at, true);
    else if (isOpen) this.toggle(at, false);
    else {
      const parents = above(this.tree, row);
      if (parents.length) this.choose(this.rows.indexOf(parents[parents.length - 1]));
    }
  }

  // Whether the key was handled.
  key(key) {
    const at = this.at();
    const acts = {
      ArrowDown: () => this.choose(at + 1),
      ArrowUp: () => this.choose(at < 0 ? this.rows.length - 1 : at - 1),
      PageDown: () => this.choose(at + this.list.page),
      PageUp: () => this.choose(at - this.list.page),
      Home: () => this.choose(0),
      End: () => this.choose(this.rows.length - 1),
      ArrowRight: () => at >= 0 && this.sideways(at, true),
      ArrowLeft: () => at >= 0 && this.sideways(at, false),
      Enter: () => at >= 0 && this.choose(at, true),
      Escape: () => this.panel.close(),
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.fit(false),
      z: () => this.fit(true),
    };
    const act = acts[{ j: "ArrowDown", k: "ArrowUp" }[key] ?? key];
    if (!act) return false;
    act();
    return true;
  }

  // -- the address ----------------------------------------------------------------------------------------------------

  readAddress() {
    const given = new URLSearchParams(location.search);
    // Earlier addresses have `model` for `llm`.
    const kind = given.get("kind") === "model" ? "llm" : given.get("kind") ?? "";
    this.filter = { text: given.get("q") ?? "", kind, errors: given.get("errors") === "1" };
    this.compresses = given.get("gaps") !== "1";
    this.marksPath = given.get("path") === "1";
    this.addressed = given.get("span");
    this.stretch.read(given.get("zoom") ?? "");
  }

  writeAddress() {
    const url = new URL(location.href);
    const { text, kind, errors } = this.filter;
    for (const [name, value] of [["span", this.chosen], ["q", text], ["kind", kind], ["errors", errors ? "1" : ""],
      ["gaps", this.compresses ? "" : "1"], ["path", this.marksPath ? "1" : ""], ["zoom", this.stretch.text]]) {
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url);
  }

  openAddressed() {
    if (this.addressed === null) return;
    if (!this.find(this.addressed, true)) this.tools.tell(`This attempt has no span ${this.addressed}.`);
    this.addressed = null;
  }

  setFilter(filter) {
    this.filter = filter;
    this.scroller.scrollTop = 0;
    this.refresh();
    this.writeAddress();
  }
}

const known = new Map();
let current = null;

function start() {
  const part = document.querySelector("[data-waterfall]");
  // The surrounding part already states that there are no spans.
  if (!part || part.querySelector(".wf, .empty") || !part.checkVisibility()) return;
  const { rollout, attempt } = part.dataset;
  const name = JSON.stringify([rollout, attempt]);
  if (!known.has(name)) known.set(name, new Waterfall(part));
  current = known.get(name);
  current.attach(part);
}

export function find(id) {
  return Boolean(current?.element.isConnected) && current.find(id);
}

document.addEventListener("rollbook:drawn", start);
document.addEventListener("keydown", (event) => {
  if (!current?.element.isConnected || event.ctrlKey || event.metaKey || event.altKey) return;
  const isInGrid = event.target === current.scroller;
  const isElsewhere = event.target.closest("input, textarea, select, button, a, summary, dialog[open]");
  const isOurs = isInGrid || (!isElsewhere && !current.isBeside && ["j", "k", "Enter", "Escape", "+", "-", "z"].includes(event.key));
  const closes = event.key === "Escape" && current.panel.isOpen && !event.target.closest("dialog[open]");
  if ((isOurs || closes) && current.key(event.key)) event.preventDefault();
});
start();
