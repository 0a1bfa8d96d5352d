// Curves: each [data-chart] is drawn from the data in its attribute, and reloaded when there are new events.

import { isLocal, redrawTimes } from "./times.js";

const HEIGHT = 220;
const PAUSE = 2000;
const COLOURS = { train: "--accent", val: "--warn", test: "--good" };
const DASHES = { val: [6, 3], test: [2, 3] };
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1000000];

const plots = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faint(value) {
  // The colours of the page have the form #rrggbb.
  return /^#[0-9a-f]{6}$/i.test(value) ? `${value}22` : value;
}

function short(value) {
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(4)));
}

function seconds(value) {
  if (value === 0) return "0 s";
  if (Math.abs(value) < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (Math.abs(value) < 60) return `${Number(value.toPrecision(3))} s`;
  if (Math.abs(value) < 3600) return `${Number((value / 60).toPrecision(3))} min`;
  return `${Number((value / 3600).toPrecision(3))} h`;
}

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return `${Number((100 * value).toPrecision(3))} %`;
  return unit === "s" ? seconds(value) : short(value);
}

function columns(chart) {
  const found = [chart.start];
  for (const line of chart.series) {
    found.push(line.mean);
    if (line.low.length) found.push(line.low, line.high);
  }
  return found;
}

function legend(plot, index, at) {
  const { series, unit } = plot.chart;
  const line = series[index];
  if (at === null || line.mean[at] === null) return "–";
  const band = line.low.length ? `, p10 ${shown(line.low[at], unit)}, p90 ${shown(line.high[at], unit)}` : "";
  return `${shown(line.mean[at], unit)}${band}, ${short(line.count[at])} rollouts`;
}

function lines(chart) {
  const made = [{
    label: chart.by === "time" ? "Time" : "Step",
    value: (plot, value) => (value === null ? "–" : chart.by === "time" ? moment(value) : String(value)),
  }];
  const bands = [];
  chart.series.forEach((line, index) => {
    const stroke = colour(COLOURS[line.mode] ?? "--soft");
    made.push({
      label: line.mode ?? "no mode",
      stroke, width: 2, dash: DASHES[line.mode], spanGaps: true,
      points: { show: chart.start.length <= 60, size: 6, fill: stroke, stroke },
      value: (plot, value, series, at) => legend(plot, index, at),
    });
    if (!line.low.length) return;
    const edge = { class: "edge", stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
    made.push({ ...edge, label: "p10" }, { ...edge, label: "p90" });
    bands.push({ series: [made.length - 1, made.length - 2], fill: faint(stroke) });
  });
  return { series: made, bands };
}

function moment(value) {
  const date = new Date(value * 1000);
  return isLocal() ? date.toLocaleString() : `${date.toISOString().replace("T", " ").slice(0, 19)} UTC`;
}

function clocks(splits, step) {
  let day = "";
  return splits.map((value) => {
    const date = new Date(value * 1000);
    const local = isLocal() ? new Date(date.getTime() - date.getTimezoneOffset() * 60000) : date;
    const [on, at] = local.toISOString().split("T");
    const isNew = on !== day;
    day = on;
    if (step >= 86400) return on.slice(5);
    const time = at.slice(0, step < 60 ? 8 : 5);
    return isNew ? `${time}\n${on}` : time;
  });
}

function around(chart) {
  return (plot, low, high) => {
    if (low === null || high === null) return [0, 1];
    if (low === high) return [low - chart.width, high + chart.width];
    return [low, high];
  };
}

function upright(chart) {
  return (plot, low, high) => {
    if (low === null || high === null) return [0, 1];
    if (chart.unit === "share") return [0, Math.min(1, Math.max(high * 1.15, 0.05))];
    if (chart.unit) return [0, high > 0 ? high * 1.1 : 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  };
}

function options(chart, width) {
  const { series, bands } = lines(chart);
  const axis = {
    stroke: colour("--soft"), font: `12px ${colour("--sans")}`,
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 4 },
  };
  const along = chart.by === "time"
    ? { values: (plot, splits, index, space, step) => clocks(splits, step), size: 46 }
    : { incrs: WHOLE_STEPS, values: (plot, splits) => splits.map(short), size: 32 };
  const values = (plot, splits) => splits.map((value) => (value === null ? "" : shown(value, chart.unit)));
  return {
    width, height: HEIGHT, series, bands,
    scales: { x: { time: chart.by === "time", range: around(chart) }, y: { range: upright(chart) } },
    axes: [{ ...axis, ...along }, { ...axis, values, size: 64 }],
    cursor: { sync: { key: "rewards" }, points: { size: 8 } },
    tzDate: (at) => (isLocal() ? new Date(at * 1e3) : window.uPlot.tzDate(new Date(at * 1e3), "Etc/UTC")),
    hooks: { setSelect: [(plot) => { plot.isZoomed ||= plot.select.width > 0; }] },
  };
}

// -- links from points to rollouts ------------------------------------------------------------------------------------

function nearest(plot, at) {
  const { series } = plot.chart;
  const distance = (line) => (line.mean[at] === null ? Infinity : Math.abs(plot.valToPos(line.mean[at], "y") - plot.cursor.top));
  return series.reduce((best, line) => (distance(line) < distance(best) ? line : best), series[0]);
}

function place(chart, at) {
  const start = chart.start[at];
  if (chart.by === "time") return { ended_min: start, ended_max: start + chart.width };
  if (chart.width === 1) return { step: start };
  return { step_min: start, step_max: start + chart.width - 1 };
}

function follow(plot) {
  const at = plot.cursor.idx;
  const target = new URL(document.getElementById("figures").dataset.target, location.href);
  if (at === null || at === undefined) return;
  const line = nearest(plot, at);
  const filters = { ...place(plot.chart, at), ...(line.mode && { mode: line.mode }) };
  for (const [name, value] of Object.entries(filters)) target.searchParams.set(name, value);
  location.assign(target);
}

function listen(plot) {
  let pressed = null;
  plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    if (pressed !== null && Math.abs(event.clientX - pressed) < 4) follow(plot);
  });
  plot.over.addEventListener("dblclick", () => { plot.isZoomed = false; });
}

// -- drawing ---------------------------------------------------------------------------------------------------------

function shape(chart) {
  return JSON.stringify([chart.by, chart.width, chart.start.length <= 60, chart.series.map((line) => line.mode)]);
}

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const plot = plots.get(target.id);
    const width = Math.floor(contentRect.width);
    if (plot && width > 0 && plot.width !== width) plot.setSize({ width, height: HEIGHT });
  }
});

function draw(host) {
  const chart = JSON.parse(host.dataset.chart);
  const known = plots.get(host.id);
  if (known && shape(known.chart) === shape(chart)) {
    known.chart = chart;
    host.replaceChildren(known.root);
    known.setData(columns(chart), !known.isZoomed);
    if (known.isZoomed) known.redraw();
  } else {
    known?.destroy();
    const plot = new window.uPlot(options(chart, host.clientWidth || 320), null, host);
    plot.chart = chart;
    plot.setData(columns(chart));
    listen(plot);
    plots.set(host.id, plot);
  }
  sizes.observe(host);
}

function drawAll() {
  const hosts = [...document.querySelectorAll("[data-chart]")];
  for (const [id, plot] of plots) {
    if (hosts.some((host) => host.id === id)) continue;
    plot.destroy();
    plots.delete(id);
  }
  hosts.forEach(draw);
}

function redrawAll() {
  for (const plot of plots.values()) plot.destroy();
  plots.clear();
  drawAll();
}

// -- live updates ----------------------------------------------------------------------------------------------------

let isAsking = false;
let isStale = false;

async function refresh() {
  if (isAsking || document.hidden) { isStale = true; return; }
  isAsking = true;
  isStale = false;
  const began = performance.now();
  try {
    const { whole } = document.getElementById("figures").dataset;
    const answer = await fetch(whole, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok || answer.redirected) return;
    put(new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("figures"));
  } finally {
    // Expensive pages are reloaded less often.
    setTimeout(() => {
      isAsking = false;
      if (isStale) refresh();
    }, Math.max(PAUSE, 5 * (performance.now() - began)));
  }
}

function put(fresh) {
  const old = document.getElementById("figures");
  const used = old?.querySelector(":focus");
  if (!fresh || !old || used?.matches("td a")) return;
  for (const details of old.querySelectorAll("details[open][id]")) fresh.querySelector(`#${details.id}`)?.setAttribute("open", "");
  old.replaceWith(document.adoptNode(fresh));
  if (used?.matches("summary")) fresh.querySelector(`#${used.parentElement.id} > summary`)?.focus({ preventScroll: true });
  redrawTimes(fresh);
  drawAll();
}

drawAll();
// With many rollouts, the page loads the curves by a second request.
if (document.querySelector("#figures[data-awaited]")) refresh();
document.addEventListener("rollbook:news", refresh);
document.addEventListener("rollbook:theme", redrawAll);
document.addEventListener("click", (event) => {
  // The theme changes only after this event has reached the document.
  if (event.target.closest("[data-switch=zone]")) setTimeout(redrawAll);
});
document.addEventListener("visibilitychange", () => { if (isStale) refresh(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
