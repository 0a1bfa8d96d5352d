// The time axis of a waterfall: the visible period, the positions of bars in it, and the labels of times.

const UNITS = [[3600, 60, "min", 1, "s"], [86400, 3600, "h", 60, "min"], [Infinity, 86400, "d", 3600, "h"]];
// Tick steps longer than a minute, in seconds.
const STEPS = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];

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
  // The visible part of the time from `from` to `to`.
  constructor() {
    this.whole = { from: 0, to: 1 };
    this.view = null;
  }

  get from() { return (this.view ?? this.whole).from; }
  get to() { return (this.view ?? this.whole).to; }
  get length() { return this.to - this.from; }

  show(from, to) {
    const { whole } = this;
    const least = Math.max((whole.to - whole.from) * 1e-7, 1e-6);
    const length = Math.max(to - from, least);
    const start = Math.min(Math.max(from, whole.from), Math.max(whole.to - length, whole.from));
    this.view = start <= whole.from && start + length >= whole.to ? null : { from: start, to: start + length };
  }

  zoom(factor, around = this.from + this.length / 2) {
    const share = (around - this.from) / this.length;
    const length = this.length * factor;
    this.show(around - share * length, around + (1 - share) * length);
  }

  move(share) {
    if (this.view) this.show(this.from + share * this.length, this.to + share * this.length);
  }

  at(share) {
    return this.from + share * this.length;
  }

  // The start and width of a bar as fractions of the visible period; null if it is not visible.
  place(start, end) {
    if (start === null) return null;
    const left = (start - this.from) / this.length;
    const right = (Math.max(end ?? start, start) - this.from) / this.length;
    if (right < 0 || left > 1) return null;
    const begin = Math.max(left, 0);
    return { left: begin, width: Math.min(right, 1) - begin };
  }

  // The visible ticks, as fractions of the visible period, with their labels.
  ticks(most) {
    const rough = this.length / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const decimal = [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= rough);
    const step = decimal > 30 ? STEPS.find((each) => each >= rough) ?? decimal : decimal;
    const found = [];
    const offset = this.from - this.whole.from;
    for (let number = Math.ceil(offset / step - 1e-9); found.length <= most; number += 1) {
      const share = (number * step - offset) / this.length;
      if (share > 0.97) break;
      found.push({ share, text: number ? duration(number * step) : "0" });
    }
    return found;
  }
}
