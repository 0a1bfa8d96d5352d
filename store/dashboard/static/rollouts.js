// The list of rollouts: input previews, loaded once per rollout, and actions on selected rollouts.

const MOST = 50;

const known = new Map();
const asked = new Set();
const picked = new Set();

function showPreviews() {
  for (const cell of document.querySelectorAll("[data-preview]")) {
    const text = known.get(cell.dataset.preview);
    if (text === undefined) continue;
    cell.textContent = text;
    cell.title = text;
  }
}

async function askFor(ids) {
  const query = new URLSearchParams(ids.map((id) => ["id", id]));
  const answer = await fetch(`${document.body.dataset.base}/ui/previews.json?${query}`, { credentials: "same-origin" });
  if (!answer.ok) {
    for (const id of ids) asked.delete(id);
    return;
  }
  const { previews } = await answer.json();
  for (const id of ids) known.set(id, previews[id] ?? "");
  showPreviews();
}

function fillPreviews() {
  showPreviews();
  const cells = [...document.querySelectorAll("[data-preview]")];
  const lacking = cells.map((cell) => cell.dataset.preview).filter((id) => !asked.has(id));
  for (const id of lacking) asked.add(id);
  while (lacking.length) askFor(lacking.splice(0, MOST)).catch(() => {});
}

function showPicked() {
  const bar = document.getElementById("picked");
  for (const box of document.querySelectorAll("[data-pick]")) box.checked = picked.has(box.dataset.pick);
  bar.hidden = picked.size === 0;
  const ids = [...picked];
  bar.querySelector("[data-picked-count]").textContent = `${ids.length} picked`;
  const compare = bar.querySelector("[data-picked-compare]");
  compare.hidden = ids.length !== 2;
  if (ids.length === 2) compare.href = `${compare.dataset.pickedCompare}?${new URLSearchParams({ a: ids[0], b: ids[1] })}`;
  const download = bar.querySelector("[data-picked-download]");
  const query = new URLSearchParams([...ids.map((id) => ["id", id]), ["limit", String(Math.min(ids.length, 500))]]);
  download.href = `${download.dataset.pickedDownload}?${query}`;
}

function draw() {
  fillPreviews();
  showPicked();
}

document.addEventListener("change", (event) => {
  const { pick } = event.target.dataset;
  if (pick === undefined) return;
  if (event.target.checked) picked.add(pick);
  else picked.delete(pick);
  showPicked();
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-picked-none]")) return;
  picked.clear();
  showPicked();
});
document.addEventListener("rollbook:drawn", draw);
draw();
