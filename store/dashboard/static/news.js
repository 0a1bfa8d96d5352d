// Live updates: one event stream per page reports changes; parts marked data-live are then reloaded.
//
// data-live="rollout/ID …" names the streams that a part depends on; "" stands for any. Each such part has an id. The
// whole page is requested again and the parts are taken from the response, so missed changes are included. A part with
// data-again gives another URL to request instead.

const PAUSE = 700;
const SCROLLED = ".scroll, .notes, .attempt-lanes";

let position = 0;
let asking = false;
let again = false;
let owed = false;

function parts() {
  return [...document.querySelectorAll("[data-live][id]")];
}

function concerns(part, streams) {
  if (!streams || !part.dataset.live) return true;
  const wanted = part.dataset.live.split(" ");
  return streams.some((stream) => wanted.includes(stream));
}

function isInUse(part) {
  const active = document.activeElement;
  return part.contains(active) && active.matches("input:not([type=checkbox]), textarea, select, dialog *") || part.querySelector("dialog[open], details.menu[open]");
}

export function put(part, fresh) {
  if (part.innerHTML === fresh.innerHTML) return;
  const open = new Set([...part.querySelectorAll("details[open][id]")].map((element) => element.id));
  const places = [...part.querySelectorAll(SCROLLED)].map((element) => [element.scrollLeft, element.scrollTop]);
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  const row = part.contains(document.activeElement) && !focused ? document.activeElement.closest("tr[id]")?.id : "";
  part.replaceWith(fresh);
  fresh.querySelectorAll(SCROLLED).forEach((element, number) => element.scrollTo(...(places[number] ?? [0, 0])));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (row) document.getElementById(row)?.querySelector("a")?.focus({ preventScroll: true });
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  window.htmx?.process(fresh);
  fresh.dispatchEvent(new CustomEvent("rollbook:drawn", { bubbles: true }));
}

function address() {
  return document.querySelector("[data-again]")?.dataset.again ?? location.href;
}

export async function refresh(streams = null) {
  const wanted = parts().filter((part) => concerns(part, streams));
  if (!wanted.length) return;
  if (asking) { again = true; return; }
  asking = true;
  try {
    const wantedAt = address();
    const answer = await fetch(wantedAt, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (answer.redirected) { location.reload(); return; }
    if (!answer.ok) { owed = true; return; }
    const text = await answer.text();
    // The user has moved on, through time or to another node: this response is outdated.
    if (address() !== wantedAt) { again = true; return; }
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of wanted) {
      const fresh = page.getElementById(part.id);
      if (!fresh || !part.isConnected) continue;
      // A part that the user works with is replaced later.
      if (isInUse(part)) owed = true;
      else put(part, document.adoptNode(fresh));
    }
    document.dispatchEvent(new CustomEvent("rollbook:refreshed"));
  } catch {
    // The server is down; the page is requested again when it is back.
    owed = true;
  } finally {
    setTimeout(() => {
      asking = false;
      if (again) { again = false; refresh(); }
    }, PAUSE);
  }
}

// Parts that could not be replaced are replaced at the next opportunity.
function catchUp() {
  if (!owed) return;
  owed = false;
  refresh();
}

function show(state, text) {
  const element = document.getElementById("live-state");
  if (!element) return;
  element.hidden = false;
  element.dataset.state = state;
  element.textContent = text;
}

function listen(base) {
  const source = new EventSource(`${base}/ui/live?after=${position}`);
  source.addEventListener("open", () => {
    show("live", "live");
    catchUp();
  });
  source.addEventListener("news", (event) => {
    const news = JSON.parse(event.data);
    position = news.position;
    document.body.dataset.heard = String(position);
    for (const element of document.querySelectorAll("[data-position-now]")) element.textContent = position.toLocaleString("en-US");
    document.dispatchEvent(new CustomEvent("rollbook:news", { detail: news }));
    refresh(news.streams);
  });
  source.addEventListener("error", () => {
    show("lost", "reconnecting");
    // An error response ends an EventSource permanently, so a new one is opened.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(base), 2000);
  });
  // Browsers allow six connections to one server, so a hidden page closes its stream.
  const close = () => source.close();
  window.addEventListener("pagehide", close, { once: true });
}

export function startNews() {
  const { base, position: drawn } = document.body.dataset;
  if (drawn === undefined) return;
  position = Number(drawn);
  for (const done of ["focusout", "close", "toggle"]) document.addEventListener(done, () => setTimeout(catchUp), true);
  window.addEventListener("pageshow", (event) => { if (event.persisted) listen(base); });
  listen(base);
}
