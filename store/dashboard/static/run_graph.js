// The graph of a run: selecting a node keeps the scroll position, and arrow keys move between nodes.

const places = new Map();

function keepPlaces() {
  document.addEventListener("scroll", (event) => {
    const name = event.target.dataset?.keepsScroll;
    if (name) places.set(name, event.target.scrollLeft);
  }, { capture: true, passive: true });
}

function restorePlaces() {
  for (const element of document.querySelectorAll("[data-keeps-scroll]")) {
    element.scrollLeft = places.get(element.dataset.keepsScroll) ?? 0;
  }
}

function isPlain(event) {
  return event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
}

let latest = 0;

async function show(url) {
  const turn = ++latest;
  const answer = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (!answer.ok || answer.redirected) { location.assign(url); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector(".rg");
  const shown = document.querySelector(".rg");
  // Another node was selected meanwhile.
  if (turn !== latest || !fresh || !shown) return;
  const focused = document.activeElement?.closest(".rg-node")?.id;
  shown.replaceWith(document.adoptNode(fresh));
  restorePlaces();
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  document.querySelector("#node-events")?.scrollIntoView({ block: "nearest" });
  fresh.dispatchEvent(new CustomEvent("rollbook:drawn", { bubbles: true }));
}

function onClick(event) {
  const link = event.target.closest(".rg .rg-node, .rg .rg-events > .page-head a[aria-label=Close]");
  if (!link || !isPlain(event)) return;
  event.preventDefault();
  history.pushState({ chosen: true }, "", link.href);
  show(link.href);
}

function beside(node, step) {
  const lane = node.closest(".rg-lane");
  const place = [...(lane ?? node.parentElement).querySelectorAll(".rg-node")].indexOf(node);
  let next = lane;
  do next = step > 0 ? next?.nextElementSibling : next?.previousElementSibling; while (next && !next.matches(".rg-lane"));
  const there = [...(next?.querySelectorAll(".rg-node") ?? [])];
  return there[Math.min(place, there.length - 1)];
}

function onKey(event) {
  const node = event.target.closest?.(".rg-node");
  if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...document.querySelectorAll(".rg-graph .rg-node")];
  const at = all.indexOf(node);
  const isAcross = !node.closest(".rg-lane");
  const next = {
    ArrowDown: () => all[at + 1],
    ArrowUp: () => all[at - 1],
    ArrowRight: () => (isAcross ? all[at + 1] : beside(node, 1)),
    ArrowLeft: () => (isAcross ? all[at - 1] : beside(node, -1)),
  }[event.key]?.();
  if (!next) return;
  event.preventDefault();
  next.focus();
}

keepPlaces();
document.addEventListener("click", onClick);
document.addEventListener("keydown", onKey);
document.addEventListener("rollbook:drawn", restorePlaces);
window.addEventListener("popstate", () => { if (document.querySelector(".rg")) show(location.href); });
