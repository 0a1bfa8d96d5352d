// Keys: j and k move through the rows of the first table, Enter opens a row, / focuses the search field.

function rows() {
  return [...document.querySelectorAll("table[data-keys] tbody tr")];
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("chosen"));
  const next = all[Math.min(Math.max(at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step, 0), all.length - 1)];
  for (const row of all) row.classList.toggle("chosen", row === next);
  next.scrollIntoView({ block: "nearest" });
}

function open() {
  rows().find((row) => row.classList.contains("chosen"))?.querySelector("a")?.click();
}

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    const acts = {
      j: () => move(1),
      k: () => move(-1),
      Enter: () => { if (event.target === document.body || event.target.id === "main") open(); },
      "/": () => { event.preventDefault(); document.querySelector("input[type=search]")?.focus(); },
    };
    acts[event.key]?.();
  });
}
