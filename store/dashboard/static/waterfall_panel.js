// The details of the selected span beside the waterfall: the page of the span without its frame.

function path(part, id) {
  const quoted = encodeURIComponent(id).replace(/\.json$/, "%2Ejson");
  return `${part.dataset.spans}/${quoted}?${new URLSearchParams({ attempt: part.dataset.attempt })}`;
}

export class Panel {
  constructor(waterfall) {
    this.waterfall = waterfall;
    this.element = Object.assign(document.createElement("aside"), { className: "wf-panel", hidden: true, tabIndex: -1 });
    this.element.setAttribute("aria-label", "Selected span");
    this.body = Object.assign(document.createElement("div"), { className: "wf-panel-body" });
    const close = Object.assign(document.createElement("button"), { type: "button", className: "quiet wf-close", textContent: "✕", title: "Close: Escape" });
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this.close());
    this.element.append(close, this.body);
    this.element.addEventListener("click", (event) => this.follow(event));
  }

  get isOpen() {
    return !this.element.hidden;
  }

  open(id) {
    if (this.shown === id && this.isOpen) return;
    this.shown = id;
    this.element.hidden = false;
    this.show(path(this.waterfall.part, id));
  }

  close() {
    if (!this.isOpen) return;
    const hadFocus = this.element.contains(document.activeElement);
    this.element.hidden = true;
    this.shown = null;
    if (hadFocus) this.waterfall.scroller.focus({ preventScroll: true });
  }

  // Only the response to the latest request is shown.
  async show(url) {
    this.asked = url;
    this.element.setAttribute("aria-busy", "true");
    let shown;
    try {
      const answer = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      shown = page.getElementById("span") ?? page.querySelector("[role=alert]");
    } catch (error) {
      shown = Object.assign(document.createElement("p"), { className: "notice bad", textContent: `The span could not be read: ${error.message}` });
    }
    if (this.asked !== url) return;
    this.element.removeAttribute("aria-busy");
    this.body.replaceChildren(...(shown ? [document.adoptNode(shown)] : []));
    this.element.scrollTop = 0;
    this.body.dispatchEvent(new CustomEvent("rollbook:drawn", { bubbles: true }));
  }

  follow(event) {
    const link = event.target.closest("a[data-whole], a[data-span]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (link.dataset.span !== undefined && !this.waterfall.find(link.dataset.span, true)) return;
    event.preventDefault();
    if (link.dataset.span === undefined) this.show(link.href);
  }
}
