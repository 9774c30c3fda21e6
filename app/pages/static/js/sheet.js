// Common parts of canvas charts: size in device pixels, margins with scales, one drawing per frame.

import { byteTicks, countTicks } from "./scale.js";
import { colour, onTheme } from "./theme.js";

export const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const inks = new Map();
onTheme(() => inks.clear());

/** A colour of the style sheet, cached per theme: looking it up takes longer than drawing with it. */
export function ink(name) {
  if (!inks.has(name)) inks.set(name, colour(name));
  return inks.get(name);
}

const MAX_DENSITY = 2; // device pixels per CSS pixel
const LABEL_WIDTH = 90, LABEL_HEIGHT = 44; // pixels between labels of the scales

/** A canvas, an overlay canvas for cursors, and margins for scales. Sizes are in CSS pixels. */
export class Sheet {
  /** `root` has two canvases; `draw` and `drawAbove` are called at most once per frame, after `stale` and `moved`. */
  constructor(root, margins, draw, drawAbove) {
    [this.canvas, this.above] = root.querySelectorAll("canvas");
    this.margins = margins;
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.contextAbove = this.above.getContext("2d");
    this.draw = draw;
    this.drawAbove = drawAbove;
    this.frames = 0; // drawn so far, for benchmarks
    this.isStale = this.hasMoved = false;
    this.observer = new ResizeObserver(() => this.fit() && this.stale());
    this.observer.observe(this.canvas);
    this.fit();
  }

  /** Releases the canvases for another sheet. */
  release() {
    this.observer.disconnect();
  }

  /** Sets the canvases to their displayed size; returns whether it changed. */
  fit() {
    const dense = Math.min(MAX_DENSITY, window.devicePixelRatio || 1);
    const wide = this.canvas.clientWidth, high = this.canvas.clientHeight;
    if (this.wide === wide && this.high === high && this.dense === dense) return false;
    Object.assign(this, { wide, high, dense });
    for (const canvas of [this.canvas, this.above]) {
      canvas.width = Math.max(1, Math.round(wide * dense));
      canvas.height = Math.max(1, Math.round(high * dense));
    }
    return true;
  }

  /** The area inside the margins: corner and extent. */
  get inside() {
    const { left, right, top, bottom } = this.margins;
    return {
      x: left, y: top, wide: Math.max(1, this.wide - left - right), high: Math.max(1, this.high - top - bottom),
    };
  }

  /** Redraws both canvases in the next frame. */
  stale() {
    this.isStale = true;
    this.moved();
  }

  /** Redraws the overlay in the next frame. */
  moved() {
    if (this.hasMoved) return;
    this.hasMoved = true;
    requestAnimationFrame(() => this.now());
  }

  /** Draws what is stale, at once. */
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

  /** Position of a pointer inside the margins, as fractions of width and of height from below; may exceed [0, 1]. */
  shares(event) {
    const box = this.above.getBoundingClientRect(), { x, y, wide, high } = this.inside;
    return [(event.clientX - box.left - x) / wide, 1 - (event.clientY - box.top - y) / high];
  }
}

/** Lines at each value of `rows` across the box, and at each of `columns` from the height `top` to `bottom`. */
export function drawGrid(context, box, rows, columns, toX, toY, [top, bottom]) {
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
    context.moveTo(x, top);
    context.lineTo(x, bottom);
  }
  context.stroke();
}

/** Grid, ticks and labels for ranges [low, high] of steps and bytes; `toX` and `toY` map them to pixels. */
export function drawScales(context, box, steps, bytes, toX, toY, hasByteLabels = true) {
  const columns = countTicks(...steps, box.wide / LABEL_WIDTH);
  const rows = byteTicks(...bytes, Math.max(2, box.high / LABEL_HEIGHT));
  drawGrid(context, box, rows, columns, toX, toY, [box.y + box.high, box.y + box.high + 4]);
  context.textAlign = "right";
  if (hasByteLabels) for (const [value, label] of rows) context.fillText(label, box.x - 6, toY(value));
  context.textAlign = "center";
  for (const [value, label] of columns) context.fillText(label, toX(value), box.y + box.high + 13);
  nameSteps(context, box, 13);
}

/** The unit of an axis of steps, before its first label, `below` a panel. */
export function nameSteps(context, box, below) {
  context.textAlign = "right";
  context.fillText("step", box.x - 12, box.y + box.high + below);
}

/** Outline of the area inside the margins. */
export function drawFrame(context, box) {
  context.strokeStyle = ink("line");
  context.strokeRect(box.x - 0.5, box.y - 0.5, box.wide + 1, box.high + 1);
}

/** Text on a background of its own, legible above a chart. */
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

/** Saves the canvas with its overlay as PNG. */
export function savePng(sheet, name) {
  const canvas = document.createElement("canvas");
  canvas.width = sheet.canvas.width;
  canvas.height = sheet.canvas.height;
  const context = canvas.getContext("2d");
  context.drawImage(sheet.canvas, 0, 0);
  context.drawImage(sheet.above, 0, 0);
  canvas.toBlob((blob) => save(blob, name), "image/png");
}

/** Saves a file by the browser. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
