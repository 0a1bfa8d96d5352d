// The scatter plot: a drag selects a box and fills the fields of the form; a click opens the nearest rollout.

const svg = document.querySelector("svg[data-points]");
const form = document.getElementById("scatter-form");
const NEAR = 12;
const MOVED = 4;

function place(event) {
  const frame = svg.getBoundingClientRect();
  const { width, height } = svg.viewBox.baseVal;
  return [((event.clientX - frame.left) * width) / frame.width, ((event.clientY - frame.top) * height) / frame.height];
}

// The value at a place of an axis, with as many digits as the axis can tell apart. Halves, because a difference of
// large numbers could overflow.
function value([low, high, start, end], at) {
  const share = Math.min(Math.max((at - start) / (end - start), 0), 1);
  const number = low + 2 * share * (high / 2 - low / 2);
  const width = Math.abs(high / 2 - low / 2) / 500;
  const digits = Math.ceil(Math.log10(Math.max(Math.abs(number), width) / width)) + 1;
  return String(Number(number.toPrecision(Math.min(Math.max(digits, 1), 17))));
}

function shape(name, attributes) {
  const element = svg.querySelector(`.${attributes.class}`) ?? svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, text] of Object.entries(attributes)) element.setAttribute(key, text);
  return element;
}

function start() {
  const points = JSON.parse(svg.dataset.points);
  const [x, y] = [JSON.parse(svg.dataset.x), JSON.parse(svg.dataset.y)];
  const output = document.getElementById("point");
  let pressed = null;

  function nearest([left, top]) {
    let best = null;
    let distance = NEAR;
    for (const point of points) {
      const away = Math.hypot(point[0] - left, point[1] - top);
      if (away < distance) [best, distance] = [point, away];
    }
    return best;
  }

  function hover(event) {
    const point = nearest(place(event));
    if (!point) {
      svg.querySelector(".near")?.remove();
      output.textContent = "\u00a0";
      return;
    }
    shape("circle", { class: "near", cx: point[0], cy: point[1], r: 6 });
    output.textContent = `${point[2]}: ${Number(point[3].toPrecision(6))}, ${Number(point[4].toPrecision(6))}${point[5] && `, ${point[5]}`}`;
  }

  svg.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    pressed = place(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!pressed) {
      hover(event);
      return;
    }
    const [left, top] = place(event);
    shape("rect", {
      class: "box", x: Math.min(left, pressed[0]), y: Math.min(top, pressed[1]),
      width: Math.abs(left - pressed[0]), height: Math.abs(top - pressed[1]),
    });
  });
  svg.addEventListener("pointercancel", () => { pressed = null; });
  svg.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const [from, to] = [pressed, place(event)];
    pressed = null;
    if (Math.hypot(to[0] - from[0], to[1] - from[1]) < MOVED) {
      const point = nearest(to);
      if (point) location.assign(`${svg.dataset.target}/${encodeURIComponent(point[2])}`);
      return;
    }
    const fields = form.elements;
    [fields.x_min.value, fields.x_max.value] = [Math.min(from[0], to[0]), Math.max(from[0], to[0])].map((at) => value(x, at));
    [fields.y_min.value, fields.y_max.value] = [Math.max(from[1], to[1]), Math.min(from[1], to[1])].map((at) => value(y, at));
    form.requestSubmit();
  });
}

if (svg) start();
