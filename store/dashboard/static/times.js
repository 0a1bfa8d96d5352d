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

const HALF_A_DAY = 12 * 3600e3;

// The time of day, with the date if the time is not near.
export function clock(date, now, local = isLocal()) {
  const text = exact(date, local);
  return Math.abs(now - date) < HALF_A_DAY ? text.slice(11, 19) : text.slice(5, 16);
}

export function redrawTimes(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[data-time]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    const text = exact(date);
    element.title = text;
    const kind = element.dataset.time;
    const shown = kind === "exact" ? text : kind === "clock" ? clock(date, now) : ago((now - date) / 1000);
    if (element.textContent !== shown) element.textContent = shown;
  }
}

export function startClock() {
  redrawTimes();
  setInterval(redrawTimes, 5000);
  document.addEventListener("rollbook:drawn", (event) => redrawTimes(event.target));
}
