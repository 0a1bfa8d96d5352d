// The transcript: the find box, keys that jump, the current turn in the outline, open folds, and follow mode.

const HIGHLIGHT = "find";
let follows = false;
let filter = "";

const outline = () => document.querySelector(".outline");
const stops = (selector) => [...document.querySelectorAll(`.transcript ${selector}`)].filter((stop) => !stop.closest(".is-miss"));

function top() {
  const margin = getComputedStyle(document.querySelector(".read")).getPropertyValue("scroll-margin-top");
  const first = document.querySelector(".transcript [data-stop]");
  return first ? Number.parseFloat(getComputedStyle(first).scrollMarginTop) : Number.parseFloat(margin) || 0;
}

// A target inside closed folds is opened first, so that a jump leads to it.
function reveal(element) {
  for (let fold = element?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
}

function jump(selector, step) {
  const all = stops(selector);
  const line = top() + 2;
  const place = (element) => {
    const fold = element.closest("details:not([open])");
    return (fold ?? element).getBoundingClientRect().top;
  };
  const focused = all.indexOf(document.activeElement?.closest?.(selector));
  let next;
  if (focused >= 0) next = all[focused + step];
  else next = step > 0 ? all.find((element) => place(element) > line) : all.findLast((element) => place(element) < line - 4);
  if (!next) return;
  reveal(next);
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "start" });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !document.querySelector(".read")) return;
  if (event.key === "Escape" && event.target.id === "find") { event.target.value = ""; find(""); event.target.blur(); return; }
  if (event.target.closest("input:not([type=checkbox], [type=radio], [type=range]), textarea, select, dialog[open]")) return;
  const jumps = { t: "[data-turn]", e: "[data-error]", r: "[data-reward]" };
  const selector = jumps[event.key.toLowerCase()];
  if (!selector) return;
  event.preventDefault();
  jump(selector, event.shiftKey ? -1 : 1);
}

// -- find: blocks without the text are hidden, and each match is marked. ------------------------------------------------

function textNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  return nodes;
}

function ranges(root, text) {
  const matches = [];
  for (const node of textNodes(root)) {
    const content = node.data.toLowerCase();
    for (let at = content.indexOf(text); at >= 0; at = content.indexOf(text, at + text.length)) {
      if (at + text.length > node.length) break;
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + text.length);
      matches.push(range);
    }
  }
  return matches;
}

function find(text) {
  filter = text.trim().toLowerCase();
  const output = document.querySelector("[data-find] output");
  const marked = [];
  let blocks = 0;
  for (const block of document.querySelectorAll(".transcript .msg")) {
    const matches = filter ? ranges(block, filter) : [];
    block.classList.toggle("is-miss", Boolean(filter) && !matches.length);
    if (matches.length) {
      blocks += 1;
      reveal(block);
      for (const match of matches) reveal(match.startContainer.parentElement);
    }
    marked.push(...matches);
  }
  if (CSS.highlights) {
    if (marked.length) CSS.highlights.set(HIGHLIGHT, new Highlight(...marked));
    else CSS.highlights.delete(HIGHLIGHT);
  }
  if (output) output.textContent = filter ? `${marked.length} in ${blocks}` : "";
}

// -- the outline --------------------------------------------------------------------------------------------------------

function showPlace() {
  const nav = outline();
  if (!nav) return;
  const line = top() + 8;
  let current = null;
  for (const link of nav.querySelectorAll("ol a")) {
    const target = document.getElementById(link.hash.slice(1));
    if (!target || !target.checkVisibility()) continue;
    if (target.getBoundingClientRect().top > line && current) break;
    current = link;
  }
  if (scrollY + innerHeight >= document.documentElement.scrollHeight - 4 && scrollY > 0) current = [...nav.querySelectorAll("ol a")].at(-1) ?? current;
  const before = nav.querySelector("[aria-current]");
  if (before === current) return;
  before?.removeAttribute("aria-current");
  current?.setAttribute("aria-current", "true");
  if (current && getComputedStyle(nav).position === "sticky") {
    const [at, height] = [current.offsetTop, nav.clientHeight];
    if (at < nav.scrollTop + 120 || at > nav.scrollTop + height - 60) nav.scrollTop = at - height / 2;
  }
}

let isDue = false;
function onScroll() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; showPlace(); });
}

function toggleFolds(button) {
  const opens = button.textContent === "Open all";
  for (const fold of document.querySelectorAll(".transcript details.fold")) fold.open = opens;
  button.textContent = opens ? "Close all" : "Open all";
}

function toEnd() {
  if (follows) document.getElementById("transcript-end")?.scrollIntoView({ block: "end" });
}

// The tab is replaced when there is news: the choices of the reader are set again.
let shown = "outline-all";
let written = "";
function restore() {
  const radio = document.getElementById(shown);
  if (radio) radio.checked = true;
  const box = document.querySelector("[data-follow]");
  if (box) box.checked = follows;
  else follows = false;
  const input = document.getElementById("find");
  if (input && written) { input.value = written; find(written); }
  toEnd();
  showPlace();
}

document.addEventListener("keydown", onKey);
document.addEventListener("input", (event) => {
  if (event.target.id === "find") { written = event.target.value; find(written); }
});
document.addEventListener("submit", (event) => {
  // A transcript with several pages is searched by the server.
  if (!event.target.matches("[data-find]") || event.target.matches("[data-pages]")) return;
  event.preventDefault();
  const first = document.querySelector(".transcript .msg:not(.is-miss)");
  first?.scrollIntoView({ block: "start" });
});
document.addEventListener("change", (event) => {
  if (event.target.name === "outline") shown = event.target.id;
  if (event.target.matches("[data-follow]")) { follows = event.target.checked; toEnd(); }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-folds]");
  if (button) { toggleFolds(button); return; }
  const link = event.target.closest(".outline a[href^='#']");
  if (link) reveal(document.getElementById(link.hash.slice(1)));
});
document.addEventListener("scroll", onScroll, { passive: true });
document.addEventListener("rollbook:drawn", restore);
window.addEventListener("hashchange", () => reveal(document.getElementById(location.hash.slice(1))));
if (location.hash) reveal(document.getElementById(location.hash.slice(1)));
// The place in the outline needs the layout of the page, so it waits for the first frame.
onScroll();

// On wide screens, the waterfall is beside the transcript.
const wide = matchMedia("(min-width: 1600px)");
const showBeside = () => { if (wide.matches && document.querySelector("[data-beside]")) import("./transcript_beside.js"); };
wide.addEventListener("change", showBeside);
showBeside();
