// The toolbar of a waterfall: filters, switches, zoom, the legend of kinds, and the number of spans.

import { NAMES, icon, timeTable } from "./waterfall_kinds.js";
import { duration } from "./waterfall_time.js";

const PAUSE = 120;

function element(tag, fields, ...children) {
  const built = Object.assign(document.createElement(tag), fields);
  built.append(...children);
  return built;
}

function button(text, title, act) {
  const built = element("button", { type: "button", textContent: text, title });
  built.addEventListener("click", act);
  return built;
}

function check(text, isChecked, act) {
  const box = element("input", { type: "checkbox", checked: isChecked });
  box.addEventListener("change", () => act(box.checked));
  return { box, label: element("label", {}, box, ` ${text}`) };
}

export function toolbar(waterfall) {
  const text = element("input", { type: "search", placeholder: "Name or id of a span" });
  text.setAttribute("aria-label", "Name contains");
  const status = element("span", { className: "wf-status" });
  status.setAttribute("role", "status");
  const sum = element("span", { className: "wf-sum" });
  const none = element("span", { className: "wf-none", textContent: "No span matches.", hidden: true });
  const legend = element("div", { className: "wf-legend" });
  legend.setAttribute("role", "group");
  legend.setAttribute("aria-label", "Kind");
  const table = element("div", { className: "scroll" });
  const times = element("details", { className: "wf-kind-times" }, element("summary", { textContent: "Time by kind" }), table);

  let kind = waterfall.filter.kind;
  const apply = () => waterfall.setFilter({ text: text.value.trim(), kind, errors: errors.box.checked });
  let later = 0;
  text.addEventListener("input", () => { clearTimeout(later); later = setTimeout(apply, PAUSE); });
  const errors = check("Errors only", waterfall.filter.errors, apply);
  const gaps = check("Compress gaps", waterfall.compresses, (isOn) => waterfall.setSwitch("compresses", isOn));
  const path = check("Critical path", waterfall.marksPath, (isOn) => waterfall.setSwitch("marksPath", isOn));
  gaps.label.title = "Times in which no model, tool or reward worked take little room";
  path.label.title = "The spans without which the attempt would have ended earlier";

  const press = () => { for (const one of legend.querySelectorAll("[data-kind]")) one.setAttribute("aria-pressed", String(one.dataset.kind === kind)); };
  legend.addEventListener("click", (event) => {
    const one = event.target.closest("[data-kind]");
    if (!one) return;
    kind = one.dataset.kind === kind ? "" : one.dataset.kind;
    press();
    apply();
  });
  const show = (filter) => {
    text.value = filter.text;
    kind = filter.kind;
    errors.box.checked = filter.errors;
    press();
  };
  show(waterfall.filter);

  const spread = element("span", { className: "wf-buttons" },
    button("Expand all", "Show all spans", () => waterfall.collapseAll(false)),
    button("Collapse all", "Show the first two levels only", () => waterfall.collapseAll(true)));
  const smaller = button("−", "Show a longer period: -", () => waterfall.zoom(2));
  const larger = button("+", "Show a shorter period: +, or drag over the axis", () => waterfall.zoom(0.5));
  smaller.setAttribute("aria-label", "Zoom out");
  larger.setAttribute("aria-label", "Zoom in");
  const zoom = element("span", { className: "wf-buttons" }, smaller, larger,
    button("Zoom to span", "Show the period of the selected span: z", () => waterfall.fit(true)),
    button("Show all", "Show the whole period: 0", () => waterfall.fit(false)));
  const bar = element("div", { className: "wf-tools" }, text, errors.label, gaps.label, path.label, spread, zoom, none, status, sum);

  return {
    element: element("div", { className: "wf-top" }, bar, element("div", { className: "wf-second" }, legend, times)),
    show,
    tell: (what) => { status.textContent = what; },
    empty: (isEmpty) => { none.hidden = !isEmpty; },
    count: (count, measured) => {
      const failed = measured.times.reduce((total, each) => total + each.errors, 0);
      const parts = [`${count.toLocaleString("en")} ${count === 1 ? "span" : "spans"}`];
      if (failed) parts.push(`${failed.toLocaleString("en")} failed`);
      parts.push(duration(measured.total));
      sum.textContent = parts.join(" · ");
      const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.kind : null;
      legend.replaceChildren(...measured.times.map((each) => {
        const one = button("", `Show ${NAMES[each.name]} spans only`, () => {});
        one.dataset.kind = each.name;
        one.append(icon(each.name), ` ${NAMES[each.name]} `, element("span", { className: "soft", textContent: duration(each.seconds) }));
        return one;
      }), ...(measured.idle ? [element("span", { className: "soft", textContent: `idle ${duration(measured.idle)}` })] : []));
      press();
      if (focused) legend.querySelector(`[data-kind="${focused}"]`)?.focus();
      table.replaceChildren(timeTable(measured));
    },
  };
}
