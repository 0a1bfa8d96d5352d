// Times: ages, and exact times in UTC or in local time.

const UNITS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

export function ago(seconds) {
  if (seconds < 0) return "just now";
  const [, unit, name] = UNITS.find(([limit]) => seconds < limit);
  return `${Math.floor(seconds / unit)} ${name} ago`;
}

export function isLocal() {
  return localStorage.getItem("rollbook.zone") === "local";
}

export function exact(date, local = isLocal()) {
  if (!local) return date.toISOString().replace("T", " ").replace("Z", " UTC");
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day} ${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function redrawTimes(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[data-time]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    const text = exact(date);
    element.title = text;
    const shown = element.dataset.time === "exact" ? text : ago((now - date) / 1000);
    if (element.textContent !== shown) element.textContent = shown;
  }
}

export function startClock() {
  redrawTimes();
  setInterval(redrawTimes, 5000);
  document.addEventListener("rollbook:drawn", (event) => redrawTimes(event.target));
}
