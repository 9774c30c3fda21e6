// What pictures on a canvas share: sizes in device pixels, margins with scales, and drawing once a frame.

import { colour, onTheme } from "./theme.js";

export const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const inks = new Map();
onTheme(() => inks.clear());

/** A colour of the style sheet, looked up once a theme: asking the browser costs more than drawing with it. */
export function ink(name) {
  if (!inks.has(name)) inks.set(name, colour(name));
  return inks.get(name);
}

const MOST_DENSE = 2; // device pixels drawn for one of the page

/** A canvas with another one above it for what moves, and margins for scales. Sizes are in pixels of the page. */
export class Sheet {
  /** `root` has two canvases; `draw` and `drawAbove` are called at most once a frame, after `stale` and `moved`. */
  constructor(root, margins, draw, drawAbove) {
    [this.canvas, this.above] = root.querySelectorAll("canvas");
    this.margins = margins;
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.contextAbove = this.above.getContext("2d");
    this.draw = draw;
    this.drawAbove = drawAbove;
    this.frames = 0; // drawn so far, for who measures
    this.isStale = this.hasMoved = false;
    this.observer = new ResizeObserver(() => this.fit() && this.stale());
    this.observer.observe(this.canvas);
    this.fit();
  }

  /** Leaves the canvases to another sheet. */
  end() {
    this.observer.disconnect();
  }

  /** Gives the canvases the size they are shown at; whether that changed. */
  fit() {
    const dense = Math.min(MOST_DENSE, window.devicePixelRatio || 1);
    const wide = this.canvas.clientWidth, high = this.canvas.clientHeight;
    if (this.wide === wide && this.high === high && this.dense === dense) return false;
    Object.assign(this, { wide, high, dense });
    for (const canvas of [this.canvas, this.above]) {
      canvas.width = Math.max(1, Math.round(wide * dense));
      canvas.height = Math.max(1, Math.round(high * dense));
    }
    return true;
  }

  /** The part inside the margins: its corner and extent. */
  get inside() {
    const { left, right, top, bottom } = this.margins;
    return {
      x: left, y: top, wide: Math.max(1, this.wide - left - right), high: Math.max(1, this.high - top - bottom),
    };
  }

  /** All is to be drawn again. */
  stale() {
    this.isStale = true;
    this.moved();
  }

  /** What is above is to be drawn again. */
  moved() {
    if (this.hasMoved) return;
    this.hasMoved = true;
    requestAnimationFrame(() => this.now());
  }

  /** Draws what is to be drawn. */
  now() {
    const whole = this.isStale;
    this.hasMoved = this.isStale = false;
    if (whole) {
      this.begin(this.context);
      this.context.fillStyle = ink("raised");
      this.context.fillRect(0, 0, this.wide, this.high);
      this.draw(this.context);
      this.frames++;
    }
    this.begin(this.contextAbove);
    this.contextAbove.clearRect(0, 0, this.wide, this.high);
    this.drawAbove(this.contextAbove);
  }

  begin(context) {
    context.setTransform(this.dense, 0, 0, this.dense, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
  }

  /** Where a pointer is, inside the margins; shares of width and of height from below, which may be outside [0, 1]. */
  shares(event) {
    const box = this.above.getBoundingClientRect(), { x, y, wide, high } = this.inside;
    return [(event.clientX - box.left - x) / wide, 1 - (event.clientY - box.top - y) / high];
  }
}

/** Lines and labels of both scales; `columns` and `rows` are [value, label], `toX` and `toY` give pixels. */
export function drawScales(context, box, columns, rows, toX, toY) {
  context.strokeStyle = ink("line");
  context.fillStyle = ink("faint");
  context.lineWidth = 1;
  context.beginPath();
  for (const [value] of rows) {
    const y = Math.round(toY(value)) + 0.5;
    context.moveTo(box.x, y);
    context.lineTo(box.x + box.wide, y);
  }
  for (const [value] of columns) {
    const x = Math.round(toX(value)) + 0.5;
    context.moveTo(x, box.y + box.high);
    context.lineTo(x, box.y + box.high + 4);
  }
  context.stroke();
  context.textAlign = "right";
  for (const [value, label] of rows) context.fillText(label, box.x - 6, toY(value));
  context.textAlign = "center";
  for (const [value, label] of columns) context.fillText(label, toX(value), box.y + box.high + 13);
}

/** Text on a ground of its own, so that it can be read on whatever is below it. */
export function label(context, text, x, y, align = "left") {
  const wide = context.measureText(text).width;
  const left = align === "right" ? x - wide : align === "center" ? x - wide / 2 : x;
  context.fillStyle = ink("raised");
  context.globalAlpha = 0.85;
  context.fillRect(left - 3, y - 8, wide + 6, 16);
  context.globalAlpha = 1;
  context.fillStyle = ink("text");
  context.textAlign = "left";
  context.fillText(text, left, y);
}

/** Saves the canvas, with what is above it, as PNG. */
export function savePng(sheet, name) {
  const whole = document.createElement("canvas");
  whole.width = sheet.canvas.width;
  whole.height = sheet.canvas.height;
  const context = whole.getContext("2d");
  context.drawImage(sheet.canvas, 0, 0);
  context.drawImage(sheet.above, 0, 0);
  whole.toBlob((blob) => save(blob, name), "image/png");
}

/** Offers the browser a file. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
