// The time axis of a waterfall: the visible period, the positions of bars in it, and the labels of times. All times are
// in seconds since the epoch; "drawn" times are those of the axis, on which long gaps take little room.

const UNITS = [[3600, 60, "min", 1, "s"], [86400, 3600, "h", 60, "min"], [Infinity, 86400, "d", 3600, "h"]];
// Tick steps longer than a minute, in seconds.
const STEPS = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];
// The room of a compressed gap, as a fraction of the time in which spans worked.
const ROOM = 0.02;

export function duration(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return "–";
  const sign = seconds < 0 ? "-" : "";
  const much = Math.abs(seconds);
  const digits = (value) => String(Number(value.toPrecision(3)));
  if (much === 0) return "0 s";
  if (much < 0.001) return `${sign}${digits(much * 1e6)} µs`;
  if (much < 1) return `${sign}${digits(much * 1e3)} ms`;
  if (much < 60) return `${sign}${digits(much)} s`;
  for (const [larger, unit, name, rest, smaller] of UNITS) {
    if (much >= larger) continue;
    const left = Math.floor((much % unit) / rest);
    return `${sign}${Math.floor(much / unit)} ${name}${left ? ` ${left} ${smaller}` : ""}`;
  }
}

export class Stretch {
  // The visible part of the time from `from` to `to`; without a view, all of it.
  constructor() {
    this.whole = { from: 0, to: 1 };
    this.view = null;
    this.gaps = [];
    this.addressed = null;
  }

  // Read a period from the address, in seconds from the start. It applies once all spans are loaded.
  read(text) {
    const [from, to] = text.split("-").map(Number);
    this.addressed = to > from ? { from, to } : null;
  }

  // Show the period of the address. Returns whether there was one.
  showAddressed() {
    const period = this.addressed;
    this.addressed = null;
    if (period) this.show(this.whole.from + period.from, this.whole.from + period.to);
    return period !== null;
  }

  // The period as a text for the address; empty if all of it is visible.
  get text() {
    const { from } = this.whole;
    const period = this.addressed ?? (this.view && { from: this.view.from - from, to: this.view.to - from });
    const digits = (seconds) => Math.max(seconds, 0).toFixed(5).replace(/\.?0+$/, "");
    return period ? `${digits(period.from)}-${digits(period.to)}` : "";
  }

  // Draw gaps, the disjoint periods in which no span worked in order, with little room each.
  compress(gaps) {
    const idle = gaps.reduce((sum, { from, to }) => sum + to - from, 0);
    const room = Math.max((this.whole.to - this.whole.from - idle) * ROOM, 1e-6);
    let saved = 0;
    this.gaps = gaps.filter(({ from, to }) => to - from > 2 * room).map(({ from, to }) => {
      const gap = { from, to, room, before: saved };
      saved += to - from - room;
      return gap;
    });
  }

  drawn(time) {
    const gap = this.gaps[last(this.gaps, (each) => each.from <= time)];
    if (!gap) return time;
    if (time >= gap.to) return time - gap.before - (gap.to - gap.from - gap.room);
    return gap.from - gap.before + (time - gap.from) * gap.room / (gap.to - gap.from);
  }

  time(drawn) {
    const gap = this.gaps[last(this.gaps, (each) => each.from - each.before <= drawn)];
    if (!gap) return drawn;
    const into = drawn - (gap.from - gap.before);
    return into < gap.room ? gap.from + into * (gap.to - gap.from) / gap.room : gap.to + into - gap.room;
  }

  get from() { return this.drawn((this.view ?? this.whole).from); }
  get to() { return this.drawn((this.view ?? this.whole).to); }
  get length() { return this.to - this.from; }

  show(from, to) {
    const { whole } = this;
    this.showDrawn(this.drawn(Math.max(from, whole.from)), this.drawn(Math.min(to, whole.to)));
  }

  showDrawn(from, to) {
    const [first, end] = [this.drawn(this.whole.from), this.drawn(this.whole.to)];
    const length = Math.max(to - from, (end - first) * 1e-7, 1e-6);
    const start = Math.min(Math.max(from, first), Math.max(end - length, first));
    // The view is in seconds, so that it stays where it is when gaps change.
    this.view = start <= first && start + length >= end ? null : { from: this.time(start), to: this.time(start + length) };
  }

  zoom(factor, around = this.at(0.5)) {
    const share = (this.drawn(around) - this.from) / this.length;
    const length = this.length * factor;
    this.showDrawn(this.drawn(around) - share * length, this.drawn(around) + (1 - share) * length);
  }

  move(share) {
    if (this.view) this.showDrawn(this.from + share * this.length, this.to + share * this.length);
  }

  at(share) {
    return this.time(this.from + share * this.length);
  }

  // The start and width of a bar as fractions of the visible period; null if it is not visible.
  place(start, end) {
    if (start === null) return null;
    const { from, length } = this;
    const left = (this.drawn(start) - from) / length;
    const right = (this.drawn(Math.max(end ?? start, start)) - from) / length;
    if (right < 0 || left > 1) return null;
    const begin = Math.max(left, 0);
    return { left: begin, width: Math.min(right, 1) - begin };
  }

  // The visible compressed gaps, as fractions of the visible period, with their lengths in seconds.
  marks() {
    return this.gaps.map(({ from, to }) => ({ ...this.place(from, to), seconds: to - from })).filter(({ width }) => width > 0);
  }

  // The visible ticks, as fractions of the visible period, with their labels. No tick lies in a compressed gap.
  ticks(most) {
    const rough = this.length / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const decimal = [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= rough);
    const step = decimal > 30 ? STEPS.find((each) => each >= rough) ?? decimal : decimal;
    const ticks = [];
    for (const { from, to } of this.parts()) {
      const offset = from - this.whole.from;
      for (let number = Math.ceil(offset / step - 1e-9); ticks.length <= most; number += 1) {
        const time = this.whole.from + number * step;
        const share = (this.drawn(time) - this.from) / this.length;
        if (time > to || share > 0.97) break;
        if (ticks.length && share - ticks[ticks.length - 1].share < 0.9 / most) continue;
        ticks.push({ share, text: number ? duration(number * step) : "0" });
      }
    }
    return ticks;
  }

  // The visible periods between compressed gaps.
  parts() {
    const { from, to } = this.view ?? this.whole;
    const edges = [from, ...this.gaps.filter((gap) => gap.to > from && gap.from < to).flatMap((gap) => [gap.from, gap.to]), to];
    const parts = [];
    for (let at = 0; at < edges.length; at += 2) if (edges[at + 1] >= edges[at]) parts.push({ from: edges[at], to: edges[at + 1] });
    return parts;
  }
}

// The index of the last entry of a sorted list that meets a condition; -1 if there is none.
function last(entries, meets) {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (meets(entries[middle])) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
