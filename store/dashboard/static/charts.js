// Curves: each [data-chart] is drawn from the data in its attribute, and reloaded when there are new events.
//
// Further attributes: data-markers (points of the axis with labels), data-target (the list to which points lead),
// data-smooth (a number of buckets) and data-scale ("log").

import { isLocal, redrawTimes } from "./times.js";

const HEIGHT = 220;
const PAUSE = 2000;
const COLOURS = { train: "--accent", val: "--warn", test: "--good" };
const DASHES = { val: [6, 3], test: [2, 3] };
const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
const FALLBACKS = ["--accent", "--warn", "--good", "--bad", "--soft", "--ink"];
// Validation has the colour of its version. It is dotted, because the versions have dashes.
const DOTS = [1, 5];
const VERSION_DASHES = [undefined, [6, 3], [2, 3], [10, 3, 2, 3], [4, 2], [8, 2]];
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1000000];

const plots = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faint(value) {
  return `color-mix(in srgb, ${value} 13%, transparent)`;
}

function short(value) {
  if (Math.abs(value) >= 1e13) return Number(value.toPrecision(4)).toExponential().replace("+", "");
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(3))}${unit}`;
  }
  // Small numbers, such as learning rates, have labels as short as others.
  const rounded = Number(value.toPrecision(4));
  return rounded && Math.abs(rounded) < 1e-4 ? rounded.toExponential() : String(rounded);
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

function reward(value) {
  const text = Math.abs(value) < 1000 ? value.toFixed(3) : short(value);
  return text.replace("-", "\u2212");
}

// -- lines ------------------------------------------------------------------------------------------------------------

function values(line) {
  return line.mean_counted.length ? line.mean_counted : line.mean;
}

// A bucket whose rollouts have no known value is a gap (null). A bucket without ended rollouts of this line is no gap
// (undefined): validation every tenth step is one line.
function gapped(line, numbers) {
  return numbers.map((value, at) => (value === null && !line.ended[at] ? undefined : value));
}

function smoothed(line, size) {
  const numbers = values(line);
  const filled = numbers.flatMap((value, at) => (value === null ? [] : [at]));
  const result = numbers.map(() => null);
  filled.forEach((at, place) => {
    const near = filled.slice(Math.max(0, place - (size >> 1)), place + (size >> 1) + 1);
    result[at] = near.reduce((sum, other) => sum + numbers[other], 0) / near.length;
  });
  return result;
}

function columns(chart) {
  const data = [chart.start];
  for (const line of chart.series) {
    data.push(gapped(line, chart.smooth ? smoothed(line, chart.smooth) : values(line)));
    if (chart.smooth) data.push(gapped(line, values(line)));
    else if (line.band_low.length) data.push(gapped(line, line.band_low), gapped(line, line.band_high));
  }
  return data;
}

function described(chart, line, at) {
  const value = values(line)[at];
  if (!line.count.length) return shown(value, chart.unit);
  const noun = chart.noun === "calls" ? " calls" : "";
  if (line.part.length) return `${shown(value, chart.unit)}, ${short(line.part[at])} of ${short(line.count[at])}${noun}`;
  if (!line.counted.length) return `${shown(value, chart.unit)}, ${line.count[at].toLocaleString("en")} ${chart.noun}`;
  const low = line.band_low[at];
  const half = low === null ? "" : ` ± ${reward((line.band_high[at] - low) / 2)}`;
  const [rewarded, ended] = [line.rewarded[at], line.ended[at]].map((number) => number.toLocaleString("en"));
  return `${value === null ? "–" : reward(value)}${half}, ${rewarded} of ${ended} rewarded`;
}

function legend(plot, index, at) {
  const { chart } = plot;
  const line = chart.series[index];
  const last = values(line).findLastIndex((value) => value !== null);
  if (at === null) return last < 0 ? "no data" : `${described(chart, line, last)}, last`;
  return values(line)[at] === null ? "–" : described(chart, line, at);
}

function look(line, chart) {
  if (line.version === null) return { stroke: colour(COLOURS[line.mode] ?? (line.count.length ? "--soft" : "--accent")), dash: DASHES[line.mode] };
  const versions = [...new Set(chart.series.map((other) => other.version))];
  const place = versions.indexOf(line.version) % PALETTE.length;
  const dash = line.mode === "val" ? DOTS : VERSION_DASHES[place];
  return { stroke: colour(PALETTE[place]) || colour(FALLBACKS[place]), dash };
}

function label(line) {
  const mode = line.mode ?? "no mode";
  return line.version === null ? mode : `v${line.version} ${mode}`;
}

// Of a line with many points, those without a neighbour are drawn, because no line leads to them.
function alone(plot, index, isShown) {
  if (isShown) return null;
  const numbers = plot.data[index];
  const isGap = (at, step) => {
    let near = at + step;
    while (numbers[near] === undefined && near >= 0 && near < numbers.length) near += step;
    return numbers[near] === null || numbers[near] === undefined;
  };
  return numbers.flatMap((value, at) => (typeof value === "number" && isGap(at, -1) && isGap(at, 1) ? [at] : []));
}

function lines(chart) {
  const drawn = [{
    label: chart.by === "time" ? "Time" : "Step",
    value: (plot, value) => (value === null ? "last" : chart.by === "time" ? moment(value) : String(value)),
  }];
  const bands = [];
  chart.series.forEach((line, index) => {
    const { stroke, dash } = look(line, chart);
    drawn.push({
      label: label(line), stroke, dash, width: 2, spanGaps: false,
      points: { show: chart.start.length <= 60, filter: alone, size: 6, fill: stroke, stroke },
      value: (plot, value, series, at) => legend(plot, index, at),
    });
    const edge = { class: "edge", width: 1, spanGaps: false, points: { show: false } };
    if (chart.smooth) drawn.push({ ...edge, label: "raw", stroke: faint(stroke), width: 2 });
    else if (line.band_low.length) {
      // Only one band is filled. Several filled bands would mix their colours to grey, so the others are outlines.
      const outline = index ? { stroke: `color-mix(in srgb, ${stroke} 45%, transparent)`, dash: [1, 3] } : { stroke: "transparent" };
      drawn.push({ ...edge, ...outline, label: "low" }, { ...edge, ...outline, label: "high" });
      if (!index) bands.push({ series: [drawn.length - 1, drawn.length - 2], fill: faint(stroke) });
    }
  });
  return { series: drawn, bands };
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

function isLog(chart) {
  const numbers = chart.series.flatMap(values).filter((value) => value !== null);
  return chart.scale === "log" && ["tokens", "s"].includes(chart.unit) && numbers.every((value) => value > 0);
}

// Lines at the versions and notes. A label that would touch its neighbour is left out; the list below has all.
function mark(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  let free = -Infinity;
  ctx.save();
  ctx.font = `${11 * ratio}px ${colour("--sans")}`;
  ctx.lineWidth = ratio;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  for (const marker of plot.chart.markers) {
    const x = plot.valToPos(marker.at, "x", true);
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
    ctx.strokeStyle = ctx.fillStyle = colour("--soft");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top - 3 * ratio);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const { width } = ctx.measureText(marker.label);
    const left = Math.min(x + 3 * ratio, bbox.left + bbox.width - width);
    if (left < free) continue;
    ctx.fillText(marker.label, left, bbox.top - 2 * ratio);
    free = left + width + 6 * ratio;
  }
  ctx.restore();
}

function options(chart, width) {
  const { series, bands } = lines(chart);
  const axis = {
    stroke: colour("--soft"), font: `12px ${colour("--sans")}`,
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 4 },
  };
  const along = chart.by === "time"
    ? { values: (plot, splits, index, space, step) => clocks(splits, step), size: 46, space: 88 }
    : { incrs: WHOLE_STEPS, values: (plot, splits) => splits.map(short), size: 32 };
  const upwards = (plot, splits) => splits.map((value) => (value === null ? "" : shown(value, chart.unit)));
  return {
    width, height: HEIGHT, series, bands, padding: [chart.markers.length ? 20 : null, null, null, null],
    scales: {
      x: { time: chart.by === "time", range: around(chart) },
      y: isLog(chart) ? { distr: 3 } : { range: upright(chart) },
    },
    axes: [{ ...axis, ...along }, { ...axis, values: upwards, size: 64 }],
    cursor: { sync: { key: "rewards" }, points: { size: 8 } },
    tzDate: (at) => (isLocal() ? new Date(at * 1e3) : window.uPlot.tzDate(new Date(at * 1e3), "Etc/UTC")),
    hooks: { draw: [mark], setSelect: [(plot) => { plot.isZoomed ||= plot.select.width > 0; }] },
  };
}

// -- links from points to rollouts ------------------------------------------------------------------------------------

function nearest(plot, at) {
  const { series } = plot.chart;
  const distance = (line) => (values(line)[at] === null ? Infinity : Math.abs(plot.valToPos(values(line)[at], "y") - plot.cursor.top));
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
  const target = new URL(plot.chart.target, location.href);
  if (at === null || at === undefined) return;
  const line = nearest(plot, at);
  const filters = { ...place(plot.chart, at), ...(line.mode && line.count.length && { mode: line.mode }), ...(line.version !== null && { version: line.version }) };
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
  const drawn = chart.series.map((line) => [line.mode, line.version]);
  return JSON.stringify([chart.by, chart.width, chart.start.length <= 60, chart.smooth, isLog(chart), chart.markers.length > 0, drawn]);
}

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const plot = plots.get(target.id);
    const width = Math.floor(contentRect.width);
    if (plot && width > 0 && plot.width !== width) plot.setSize({ width, height: HEIGHT });
  }
});

function draw(host) {
  const { markers, smooth, scale, target } = host.dataset;
  const chart = { ...JSON.parse(host.dataset.chart), markers: JSON.parse(markers || "[]"), smooth: Number(smooth), scale, target };
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
  if (!document.getElementById("figures")) return;
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
document.addEventListener("rollbook:drawn", drawAll);
document.addEventListener("rollbook:theme", redrawAll);
document.addEventListener("click", (event) => {
  // The theme changes only after this event has reached the document.
  if (event.target.closest("[data-switch=zone]")) setTimeout(redrawAll);
});
document.addEventListener("visibilitychange", () => { if (isStale) refresh(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
