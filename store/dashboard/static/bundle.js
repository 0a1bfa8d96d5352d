// The list of a bundle: a field that filters the rows, and headings that sort them. Without a script it is a table.
(() => {
  const table = document.querySelector("table.rollouts");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter the rollouts";
  field.setAttribute("aria-label", "Filter the rollouts");
  const filters = document.createElement("div");
  filters.className = "filters";
  filters.append(field);
  document.querySelector(".page-head").after(filters);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  const value = (row, column) => {
    const cell = row.cells[column];
    const time = cell.querySelector("time");
    const text = (time ? time.getAttribute("datetime") : cell.textContent).trim();
    const number = Number.parseFloat(text.replaceAll(",", ""));
    return cell.classList.contains("num") ? (Number.isNaN(number) ? -Infinity : number) : text;
  };
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    if (heading.querySelector(".unseen")) return;
    const label = heading.textContent.replace(/[↓↑]/g, "").trim();
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = label;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const isAscending = heading.getAttribute("aria-sort") === "descending";
      for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
      const sign = isAscending ? 1 : -1;
      rows.sort((one, two) => {
        const [first, second] = [value(one, column), value(two, column)];
        return first === second ? 0 : first < second ? -sign : sign;
      });
      body.replaceChildren(...rows);
    });
  });
})();
