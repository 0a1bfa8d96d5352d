// Buttons: theme and time zone, copying, dialogs. Events are delegated, so that later elements work too.

import { isLocal, redrawTimes } from "./times.js";

const THEMES = ["auto", "light", "dark"];

function showTheme() {
  const theme = document.documentElement.dataset.theme;
  for (const button of document.querySelectorAll("[data-switch=theme]")) button.textContent = `Theme: ${theme}`;
}

function showZone() {
  for (const button of document.querySelectorAll("[data-switch=zone]")) button.textContent = isLocal() ? "Local" : "UTC";
}

function nextTheme() {
  const root = document.documentElement;
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  document.cookie = `rollbook_theme=${root.dataset.theme}; Path=/; SameSite=Strict; Max-Age=31536000`;
  showTheme();
  document.dispatchEvent(new CustomEvent("rollbook:theme"));
}

function nextZone() {
  localStorage.setItem("rollbook.zone", isLocal() ? "utc" : "local");
  showZone();
  redrawTimes();
}

async function copy(button) {
  const text = button.dataset.copy.replaceAll("{origin}", location.origin);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers allow clipboard access only on localhost or over TLS.
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

function onClick(event) {
  const target = event.target.closest("[data-switch], [data-copy], [data-opens], [data-closes]");
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  if (!target) return;
  if (target.dataset.switch === "theme") nextTheme();
  else if (target.dataset.switch === "zone") nextZone();
  else if (target.dataset.copy !== undefined) copy(target);
  else if (target.dataset.opens) document.getElementById(target.dataset.opens)?.showModal();
  else if (target.dataset.closes !== undefined) target.closest("dialog")?.close();
}

// Scroll to the open tab if the tabs are wider than the page.
function showWhereWeAre() {
  for (const link of document.querySelectorAll(".tabs [aria-current]")) {
    const row = link.parentElement;
    row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
  }
}

export function startControls() {
  showTheme();
  showZone();
  // Its layout waits for the first frame.
  requestAnimationFrame(showWhereWeAre);
  document.addEventListener("click", onClick);
  // The address of a filtered page contains the fields that have a value.
  document.addEventListener("formdata", (event) => {
    if (event.target.method !== "get") return;
    for (const name of new Set(event.formData.keys())) {
      const values = event.formData.getAll(name).filter(Boolean);
      event.formData.delete(name);
      for (const value of values) event.formData.append(name, value);
    }
  });
  // A select or checkbox in a filter form applies at once.
  document.addEventListener("change", (event) => {
    if (event.target.matches("form[data-applies] select, form[data-applies] input[type=checkbox]")) event.target.form.requestSubmit();
  });
}
