// Virtual rows of a list: only the visible rows have elements, however many rows there are.

export const ROW_HEIGHT = 24;
const BEYOND = 10;

export class Rows {
  // `scroller` scrolls `body`; `make()` returns an element for a row, and `fill(element, row)` draws a row into it.
  constructor(scroller, body, make, fill) {
    Object.assign(this, { scroller, body, make, fill, count: 0, slots: [], waiting: false });
    scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    new ResizeObserver(() => this.soon()).observe(scroller);
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  // Draw all visible rows again: the number of rows and any row may have changed.
  show(count) {
    this.count = count;
    this.body.style.height = `${count * ROW_HEIGHT}px`;
    for (const slot of this.slots) slot.row = -1;
    this.draw();
  }

  draw() {
    const { scroller, count } = this;
    if (!scroller.isConnected) return;
    const first = Math.max(Math.floor(scroller.scrollTop / ROW_HEIGHT) - BEYOND, 0);
    const needed = Math.ceil(scroller.clientHeight / ROW_HEIGHT) + 2 * BEYOND;
    while (this.slots.length < needed) {
      const element = this.make();
      this.slots.push({ element, row: -1 });
      this.body.append(element);
    }
    // A row keeps its element while it is visible, so scrolling by one row draws one row.
    const size = this.slots.length;
    const top = Math.max(Math.min(first, count - size), 0);
    for (let row = top; row < top + size; row += 1) {
      const slot = this.slots[row % size];
      if (slot.row === row) continue;
      slot.row = row;
      slot.element.hidden = row >= count;
      if (row >= count) continue;
      slot.element.style.transform = `translateY(${row * ROW_HEIGHT}px)`;
      this.fill(slot.element, row);
    }
  }

  // Scroll to a row; a distant row is centred.
  reveal(row, head) {
    const { scroller } = this;
    const above = row * ROW_HEIGHT;
    const height = scroller.clientHeight - head;
    const isNear = Math.abs(above - scroller.scrollTop) < 2 * height;
    if (above < scroller.scrollTop) scroller.scrollTop = isNear ? above : above - height / 2;
    else if (above + ROW_HEIGHT > scroller.scrollTop + height) {
      scroller.scrollTop = isNear ? above + ROW_HEIGHT - height : above - height / 2;
    }
    this.draw();
  }

  get page() {
    return Math.max(Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2, 1);
  }
}
