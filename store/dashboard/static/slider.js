// Time travel: the slider steps through the event numbers of a rollout, and every part marked data-at is rendered again
// as of that event. The page is requested by its own URL, so a shared link shows the same.

import { put } from "./news.js";

const PAUSE = 120;

let waiting = 0;
let asked = null;

function form() {
  return document.getElementById("slider");
}

function range() {
  return form().elements.at;
}

function show(value) {
  form().querySelector("output").textContent = String(value);
}

function address(at) {
  const url = new URL(location.href);
  if (at === null) url.searchParams.delete("at");
  else url.searchParams.set("at", String(at));
  return url;
}

async function draw(at) {
  asked?.abort();
  asked = new AbortController();
  const url = address(at);
  const parts = [...document.querySelectorAll("[data-at][id]")];
  try {
    const answer = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin", signal: asked.signal });
    if (answer.redirected || !answer.ok) { location.assign(url); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    history.replaceState(history.state, "", url);
    for (const part of parts) {
      const fresh = page.getElementById(part.id);
      if (fresh && part.isConnected) put(part, document.adoptNode(fresh));
    }
    document.body.dataset.at = at === null ? "" : String(at);
    document.dispatchEvent(new CustomEvent("rollbook:moved", { detail: { at } }));
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

export function go(at) {
  const last = Number(range().max);
  const value = at === null ? last : Math.min(Math.max(at, 1), last);
  range().value = String(value);
  show(value);
  clearTimeout(waiting);
  waiting = setTimeout(() => draw(at === null ? null : value), PAUSE);
}

function step(by) {
  const value = Number(range().value);
  const isNow = !new URL(location.href).searchParams.has("at");
  if (by === "first") go(1);
  else if (by === "now") go(null);
  else if (!(isNow && Number(by) > 0)) go(value + Number(by));
}

function follow() {
  // The rollout may continue while the page is open.
  const last = document.getElementById("rollout-last")?.value;
  if (!last || last === range().max) return;
  const stays = new URL(location.href).searchParams.has("at");
  range().max = last;
  form().querySelector("[data-slider-last]").textContent = last;
  if (!stays) { range().value = last; show(last); }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input:not([type=range]), textarea, select, dialog[open]")) return;
  if (event.key === "[") step("-1");
  else if (event.key === "]") step("1");
}

if (form()) {
  form().addEventListener("input", () => go(Number(range().value)));
  form().addEventListener("submit", (event) => { event.preventDefault(); go(Number(range().value)); });
  form().addEventListener("click", (event) => {
    const button = event.target.closest("[data-step]");
    if (button) step(button.dataset.step);
  });
  document.addEventListener("keydown", onKey);
  document.addEventListener("rollbook:drawn", follow);
  document.addEventListener("rollbook:refreshed", follow);
}
