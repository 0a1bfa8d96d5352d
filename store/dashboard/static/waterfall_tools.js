// The toolbar of a waterfall: filters, buttons and the number of spans.

import { duration } from "./waterfall_time.js";

const PAUSE = 120;

function button(text, title, act) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, title });
  made.addEventListener("click", act);
  return made;
}

function labelled(text, control) {
  const made = document.createElement("label");
  made.append(control, ` ${text}`);
  return made;
}

export function toolbar(waterfall, kinds) {
  const element = Object.assign(document.createElement("div"), { className: "wf-tools" });
  const text = Object.assign(document.createElement("input"), { type: "search", placeholder: "name contains, or an id" });
  text.setAttribute("aria-label", "Name contains");
  const kind = document.createElement("select");
  kind.setAttribute("aria-label", "Kind");
  kind.append(new Option("any kind", ""), ...kinds.map((each) => new Option(each, each)));
  const errors = Object.assign(document.createElement("input"), { type: "checkbox" });
  const status = Object.assign(document.createElement("span"), { className: "wf-status" });
  status.setAttribute("role", "status");
  const sum = Object.assign(document.createElement("span"), { className: "wf-sum" });
  const none = Object.assign(document.createElement("span"), { className: "wf-none", textContent: "No span matches.", hidden: true });

  const apply = () => waterfall.setFilter({ text: text.value.trim(), kind: kind.value, errors: errors.checked });
  let later = 0;
  text.addEventListener("input", () => { clearTimeout(later); later = setTimeout(apply, PAUSE); });
  for (const control of [kind, errors]) control.addEventListener("change", apply);

  const show = (filter) => {
    text.value = filter.text;
    kind.value = filter.kind;
    errors.checked = filter.errors;
  };
  show(waterfall.filter);

  const spread = Object.assign(document.createElement("span"), { className: "wf-buttons" });
  spread.append(
    button("Expand", "Expand all spans", () => waterfall.collapseAll(false)),
    button("Collapse", "Collapse everything below the first level", () => waterfall.collapseAll(true)),
  );
  const zoom = Object.assign(document.createElement("span"), { className: "wf-buttons" });
  const smaller = button("−", "Show a longer period: -", () => waterfall.zoom(2));
  const larger = button("+", "Show a shorter period: +, or drag over the axis", () => waterfall.zoom(0.5));
  smaller.setAttribute("aria-label", "Zoom out");
  larger.setAttribute("aria-label", "Zoom in");
  zoom.append(smaller, larger,
    button("Span", "Show the period of the selected span: z", () => waterfall.fit(true)),
    button("All", "Show the whole period: 0", () => waterfall.fit(false)));
  element.append(text, kind, labelled("errors", errors), spread, zoom, none, status, sum);

  return {
    element,
    show,
    tell: (what) => { status.textContent = what; },
    empty: (isEmpty) => { none.hidden = !isEmpty; },
    count: (trace, count, whole) => {
      let failed = 0;
      for (let span = 0; span < count; span += 1) failed += trace.status[span] === "ERROR" ? 1 : 0;
      const parts = [`${count.toLocaleString("en")} ${count === 1 ? "span" : "spans"}`];
      if (failed) parts.push(`${failed.toLocaleString("en")} failed`);
      parts.push(duration(whole.to - whole.from));
      sum.textContent = parts.join(" · ");
    },
  };
}
