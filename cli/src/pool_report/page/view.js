// A picture with the width of the page that can be zoomed and moved with the mouse, fingers or keys.

/** All pictures: they highlight the same memory. */
const views = [];

/** The highlighted frames: pairs of the first frame and the end. */
let marked = [];
/** The picture whose highlight is kept, or null. */
let kept = null;

function mark(frames) {
  marked = frames;
  for (const view of views) view.later("over");
}

/**
 * A part of a picture is an object with `start` and `end`, and `row` if there are several rows. A subclass has
 * `paint(context, width)`, `part(x, y)`, `neighbour(part, by)`, `edge(row, last)` and `describe(part)`; if it shows
 * memory,
 * also `framesOf(part)` and `paintMarks(context, width)`.
 */
class View {
  constructor(parent, { name, begin = 0, end, least, height, unit }) {
    Object.assign(this, { parent, begin, end: Math.max(end, begin + least), least, height, unit, current: null, wanted: new Set() });
    [this.low, this.high] = [this.begin, this.end];
    this.base = document.createElement("canvas");
    this.over = document.createElement("canvas");
    this.base.className = "base";
    this.over.className = "over";
    this.base.tabIndex = 0;
    this.base.setAttribute("role", "application");
    this.base.setAttribute("aria-roledescription", "picture to zoom and move");
    this.base.setAttribute("aria-label", name);
    for (const canvas of [this.base, this.over]) canvas.style.height = `${height}px`;
    parent.append(this.base, this.over, this.buttons());
    views.push(this);
    this.listen();
  }

  buttons() {
    const box = document.createElement("div");
    box.className = "zoom";
    for (const [text, label, act] of [
      ["−", "Zoom out", () => this.zoom(2)], ["+", "Zoom in", () => this.zoom(0.5)], ["all", "Show all", () => this.show(this.begin, this.end)],
    ]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
      box.append(button);
    }
    return box;
  }

  listen() {
    new ResizeObserver(() => this.later("base")).observe(this.parent);
    // Pictures off the screen are drawn when they become visible.
    new IntersectionObserver(entries => {
      this.seen = entries[entries.length - 1].isIntersecting;
      if (this.seen) this.later("base");
    }, { rootMargin: "200px" }).observe(this.parent);
    dark.addEventListener("change", () => this.later("base"));
    const on = (name, act, options) => this.base.addEventListener(name, act, options);
    on("wheel", event => this.wheel(event), { passive: false });
    on("pointerdown", event => { this.drag = { x: event.clientX, low: this.low, moved: false, id: event.pointerId }; });
    on("pointermove", event => this.pointer(event));
    on("pointerup", event => {
      if (this.drag && !this.drag.moved) this.keep(this.at(event));
      this.drag = null;
    });
    on("pointercancel", () => { this.drag = null; });
    on("pointerleave", () => { if (!this.drag) this.leave(); });
    on("dblclick", event => this.zoom(0.25, this.value(event.offsetX)));
    on("keydown", event => this.key(event));
    on("focus", () => { if (this.current && this.base.matches(":focus-visible")) this.tell(); });
    on("blur", () => this.leave());
  }

  get width() { return this.base.clientWidth; }
  x(value) { return (value - this.low) / (this.high - this.low) * this.width; }
  value(x) { return this.low + x / this.width * (this.high - this.low); }
  at(event) { return this.part(event.offsetX, event.offsetY); }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 120), this.value(event.offsetX));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.move((event.deltaX || event.deltaY) / this.width);
    } else {
      return;
    }
    event.preventDefault();
  }

  pointer(event) {
    const { drag } = this;
    if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 3)) {
      if (!drag.moved) this.base.setPointerCapture(drag.id);
      drag.moved = true;
      const span = this.high - this.low;
      const low = drag.low - (event.clientX - drag.x) / this.width * span;
      this.show(low, low + span);
      hideTip();
      return;
    }
    const part = this.at(event);
    this.current = part;
    if (part) showTip(this.describe(part), event.clientX, event.clientY); else hideTip();
    if (!kept) mark(part && this.framesOf ? this.framesOf(part) : []);
    this.later("over");
  }

  leave() {
    hideTip();
    if (!kept) mark([]);
    this.current = null;
    this.later("over");
  }

  keep(part) {
    const frames = part && this.framesOf ? this.framesOf(part) : [];
    kept = frames.length > 0 ? this : null;
    mark(frames);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = this.current?.row ?? 0;
    const step = by => this.go(this.current ? this.neighbour(this.current, by) : this.edge(0, false));
    const act = {
      ArrowLeft: () => event.shiftKey ? this.move(-0.2) : step(-1),
      ArrowRight: () => event.shiftKey ? this.move(0.2) : step(1),
      ArrowUp: () => this.change(-1),
      ArrowDown: () => this.change(1),
      Home: () => this.go(this.edge(row, false)),
      End: () => this.go(this.edge(row, true)),
      "+": () => this.zoom(0.5, this.middle()),
      "=": () => this.zoom(0.5, this.middle()),
      "-": () => this.zoom(2, this.middle()),
      "0": () => this.show(this.begin, this.end),
      Enter: () => this.current && this.show(this.current.start - (this.current.end - this.current.start) * 0.1,
        this.current.end + (this.current.end - this.current.start) * 0.1),
      Escape: () => { kept = null; this.leave(); },
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    if (this.current) this.tell();
  }

  /** The middle of the current part, or of the visible range. */
  middle() {
    const middle = this.current ? (this.current.start + this.current.end) / 2 : NaN;
    return middle >= this.low && middle <= this.high ? middle : (this.low + this.high) / 2;
  }

  /** Goes to another row, if there are several. */
  change() {}

  go(part) {
    if (!part) return;
    this.current = part;
    const span = this.high - this.low;
    const inSight = Math.min(part.end, this.high) - Math.max(part.start, this.low);
    if (inSight < 0 || inSight < Math.min(part.end - part.start, span) / 4) {
      const low = (part.start + part.end) / 2 - span / 2;
      this.show(low, low + span);
    }
    if (this.framesOf) { kept = null; mark(this.framesOf(part)); }
    this.later("over");
  }

  /** Shows the tooltip of the current part next to it. */
  tell() {
    const box = this.base.getBoundingClientRect();
    const left = Math.max(0, Math.min(this.width, this.x(this.current.start)));
    showTip(this.describe(this.current), box.left + left, box.top + this.height * 0.6);
  }

  move(part) {
    const by = (this.high - this.low) * part;
    this.show(this.low + by, this.high + by);
  }

  zoom(factor, around = (this.low + this.high) / 2) {
    this.show(around - (around - this.low) * factor, around + (this.high - around) * factor);
  }

  /** Shows a range, limited to the whole. */
  show(low, high) {
    const span = Math.min(this.end - this.begin, Math.max(this.least, high - low));
    this.low = Math.max(this.begin, Math.min(this.end - span, low + (high - low - span) / 2));
    this.high = this.low + span;
    this.later("base");
  }

  /** Draws before the next frame of the screen: everything, or only the overlay. */
  later(what) {
    this.wanted.add(what);
    if (this.wanted.size > 1 && what === "over") return;
    if (this.waiting || !this.seen) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.wanted.has("base")) this.draw(this.base, context => this.paint(context, this.width));
      this.draw(this.over, context => this.paintOver(context));
      this.wanted.clear();
    });
  }

  draw(canvas, paint) {
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    paint(context);
  }

  paintOver(context) {
    if (this.paintMarks && marked.length > 0) this.paintMarks(context, this.width);
    const { current } = this;
    if (current && this.box) this.outline(context, current, 2.5);
  }

  outline(context, part, thick) {
    const { y, height } = this.box(part);
    const [left, right] = [Math.max(-4, this.x(part.start)), Math.min(this.width + 4, this.x(part.end))];
    context.strokeStyle = colours.mark;
    context.lineWidth = thick;
    context.strokeRect(left, y, Math.max(right - left, 2), height);
  }

  /** Ticks along the lower edge, at round numbers. */
  axis(context, y) {
    const step = this.unit.step((this.high - this.low) / Math.max(1, this.width / 90));
    context.fillStyle = colours.muted;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.textAlign = "left";
    for (let value = Math.ceil(this.low / step) * step; value <= this.high; value += step) {
      const x = Math.round(this.x(value)) + 0.5;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x, y + 5);
      context.stroke();
      // The buttons are at the right end.
      const text = this.unit.text(value, step);
      if (x + 3 + context.measureText(text).width < this.width - 95) context.fillText(text, x + 3, y + 9);
    }
  }
}

const roundStep = least => {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find(times => power * times >= least) ?? 10);
};
const BYTES = { step: least => 2 ** Math.max(0, Math.ceil(Math.log2(least))), text: bytes };
const NUMBERS = { step: least => Math.max(1, roundStep(least)), text: value => `#${value}` };
const SECONDS = {
  step: roundStep,
  text: (value, step) => `${value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))} s`,
};
