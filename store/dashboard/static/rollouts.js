// The list of rollouts: actions on selected rollouts.

// The maximum number of rollouts that are compared with one another.
const MOST_COMPARED = 8;

const picked = new Set();
// Whether all rollouts that match the filters are selected, also those of other pages.
let isAll = false;

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
  const whole = bar.querySelector("[data-picked-all]");
  const total = Number(whole?.dataset.pickedAll ?? 0);
  if (whole) whole.hidden = isAll;
  bar.querySelector("[data-picked-count]").textContent = `${(isAll ? total : ids.length).toLocaleString("en-US")} selected`;
  const compare = bar.querySelector("[data-picked-compare]");
  compare.hidden = isAll || ids.length < 2 || ids.length > MOST_COMPARED;
  const query = new URLSearchParams(ids.map((id, index) => [index ? "b" : "a", id]));
  if (!compare.hidden) compare.href = `${compare.dataset.pickedCompare}?${query}`;
  bar.querySelector("[data-picked-filters]").disabled = !isAll;
  bar.querySelector("[data-picked-ids]").replaceChildren(...(isAll ? [] : ids).map((id) =>
    Object.assign(document.createElement("input"), { type: "hidden", name: "id", value: id })));
}

document.addEventListener("change", (event) => {
  const { pick, pickPage } = event.target.dataset;
  const changed = pickPage === undefined ? (pick === undefined ? [] : [event.target]) : boxes();
  if (!changed.length) return;
  isAll = false;
  for (const box of changed) {
    if (event.target.checked) picked.add(box.dataset.pick);
    else picked.delete(box.dataset.pick);
  }
  showPicked();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-picked-none], [data-picked-all]");
  if (!button) return;
  isAll = button.dataset.pickedAll !== undefined;
  if (!isAll) picked.clear();
  for (const box of isAll ? boxes() : []) picked.add(box.dataset.pick);
  showPicked();
});
document.addEventListener("rollbook:drawn", showPicked);
showPicked();
