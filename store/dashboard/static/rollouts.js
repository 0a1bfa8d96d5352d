// The list of rollouts: actions on selected rollouts.

const picked = new Set();

function boxes() {
  return [...document.querySelectorAll("[data-pick]")];
}

function showPicked() {
  const all = boxes();
  for (const box of all) {
    box.checked = picked.has(box.dataset.pick);
    box.closest("tr").setAttribute("aria-selected", String(box.checked));
  }
  const ofPage = document.querySelector("[data-pick-page]");
  if (ofPage) {
    const count = all.filter((box) => box.checked).length;
    ofPage.checked = count > 0 && count === all.length;
    ofPage.indeterminate = count > 0 && count < all.length;
  }
  const bar = document.getElementById("picked");
  bar.hidden = picked.size === 0;
  const ids = [...picked];
  bar.querySelector("[data-picked-count]").textContent = `${ids.length} selected`;
  const compare = bar.querySelector("[data-picked-compare]");
  compare.hidden = ids.length !== 2;
  if (ids.length === 2) compare.href = `${compare.dataset.pickedCompare}?${new URLSearchParams({ a: ids[0], b: ids[1] })}`;
  const download = bar.querySelector("[data-picked-download]");
  const query = new URLSearchParams([...ids.map((id) => ["id", id]), ["limit", String(Math.min(ids.length, 500))]]);
  download.href = `${download.dataset.pickedDownload}?${query}`;
}

document.addEventListener("change", (event) => {
  const { pick, pickPage } = event.target.dataset;
  const changed = pickPage === undefined ? (pick === undefined ? [] : [event.target]) : boxes();
  if (!changed.length) return;
  for (const box of changed) {
    if (event.target.checked) picked.add(box.dataset.pick);
    else picked.delete(box.dataset.pick);
  }
  showPicked();
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-picked-none]")) return;
  picked.clear();
  showPicked();
});
document.addEventListener("rollbook:drawn", showPicked);
showPicked();
