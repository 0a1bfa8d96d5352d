// Keys: j and k move the focus through the rows of the first table, / goes to the search, ? opens the list of keys.

let lastRow = "";

function rows() {
  return [...document.querySelectorAll("table[data-keys] tbody tr")].filter((row) => row.querySelector("a"));
}

function focusRow(row) {
  row?.querySelector("a")?.focus();
}

function move(step) {
  const all = rows();
  const current = document.activeElement.closest("tr") ?? document.getElementById(lastRow);
  const at = all.indexOf(current);
  const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1);
  focusRow(all[next]);
}

function search() {
  return document.querySelector("[data-search]") ?? document.querySelector("main input[type=search]");
}

// Escape closes an open menu, or leaves a field.
function leave(event) {
  const menu = document.querySelector("details.menu[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  } else if (event.target.matches("input, textarea, select") && !event.target.closest("dialog")) {
    document.getElementById("main").focus({ preventScroll: true });
  }
}

export function startKeys() {
  document.addEventListener("focusin", (event) => {
    lastRow = event.target.closest("table[data-keys] tbody tr")?.id || lastRow;
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") leave(event);
    if (event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, dialog[open]")) return;
    const acts = {
      j: () => move(1),
      k: () => move(-1),
      "/": () => { event.preventDefault(); search()?.focus(); },
      "?": () => document.getElementById("keyboard")?.showModal(),
    };
    acts[event.key]?.();
  });
}
