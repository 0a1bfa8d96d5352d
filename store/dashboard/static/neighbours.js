// Previous and next rollout within the list from which the visitor came, such as a filtered list, failures or a search.
// The page of the list is requested once and its rollouts are remembered for this tab; without such a list, the links to
// the rollouts of the group remain.

const KEY = "rollbook.list";
const base = document.body.dataset.base;

function rolloutOf(href) {
  const url = new URL(href, location.href);
  const path = `${base}/ui/rollouts/`;
  if (url.origin !== location.origin || !url.pathname.startsWith(path)) return null;
  const [id, ...rest] = url.pathname.slice(path.length).split("/");
  return id && !rest.length ? decodeURIComponent(id) : null;
}

function isListPage(href) {
  if (!href) return false;
  const { origin, pathname } = new URL(href);
  return origin === location.origin && pathname.startsWith(`${base}/ui/`) && !pathname.startsWith(`${base}/ui/rollouts/`);
}

async function listFrom(href) {
  const answer = await fetch(href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (!answer.ok) return null;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const links = [...page.querySelectorAll("main tbody a[href]")].map((link) => rolloutOf(link.getAttribute("href")));
  return { href, ids: [...new Set(links.filter((id) => id !== null))] };
}

function link(text, id, rel) {
  if (id === undefined) return Object.assign(document.createElement("span"), { textContent: text });
  return Object.assign(document.createElement("a"), { textContent: text, rel, href: `${base}/ui/rollouts/${encodeURIComponent(id).replace(/\.json$/, "%2Ejson")}` });
}

function draw(list, current) {
  const nav = document.querySelector(".rollout-neighbours");
  const at = list.ids.indexOf(current);
  if (!nav || at < 0 || list.ids.length < 2) return;
  const back = Object.assign(document.createElement("a"), { href: list.href, textContent: `${at + 1} of ${list.ids.length} in the list` });
  nav.setAttribute("aria-label", "Rollouts of the list");
  nav.replaceChildren(link("‹ Previous", list.ids[at - 1], "prev"), back, link("Next ›", list.ids[at + 1], "next"));
}

async function start() {
  const current = document.querySelector("[data-rollout-id]")?.dataset.rolloutId;
  if (current === undefined) return;
  let list = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  // A reload has the same referrer; its list is remembered already.
  if (isListPage(document.referrer) && list?.href !== document.referrer) {
    list = await listFrom(document.referrer);
    sessionStorage.setItem(KEY, JSON.stringify(list));
  }
  if (!list) return;
  draw(list, current);
  document.addEventListener("rollbook:drawn", () => draw(list, current));
}

start();
