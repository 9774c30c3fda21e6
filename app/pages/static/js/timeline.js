// Memory over steps: bytes of each step before and after, the peaks named, and who holds them under a cursor.

import { grouped, size } from "./format.js";
import { byteTicks, countTicks, firstLargest, maxima } from "./scale.js";
import { drawScales, ink, label, savePng, Sheet } from "./sheet.js";
import { onTheme } from "./theme.js";

export const MARGINS = { left: 76, right: 16, top: 28, bottom: 30 };
const MOST_HOLDERS = 8;
const APART = 48; // pixels between two panels side by side

/**
 * One line of the picture.
 * @typedef {object} Series
 * @property {string} name shown beside the peak: "before", "after"
 * @property {string} ink name of a colour of the style sheet
 * @property {Float64Array} steps bytes of each step
 * @property {(step: number) => string} ran what runs at a step
 * @property {(step: number) => {rows: {name: string, bytes: number, note: string}[], count: number} | null} held
 *   the largest of what is held at a step, and how many there are; null where that is not known
 */

export class MemoryPicture {
  /**
   * @param {HTMLElement} root with two canvases, an element [data-part=holders] and an output
   * @param {Series[]} series drawn one above the other, the first below
   * @param {number | null} budget bytes
   */
  constructor(root, series, budget) {
    this.root = root;
    this.series = series.map((each) => {
      const at = firstLargest(each.steps);
      return { ...each, at, peak: at < 0 ? 0 : each.steps[at] };
    });
    this.apart = false;
    this.step = null; // under the cursor; null: each series at its own peak
    this.count = Math.max(1, ...series.map((each) => each.steps.length));
    Object.assign(this, topOf(this.series.map((each) => each.peak), budget));
    this.sheet = new Sheet(root.querySelector(".sheet"), MARGINS, (to) => this.draw(to), (to) => this.drawCursor(to));
    this.listen();
    onTheme(() => this.sheet.stale());
    this.sheet.stale();
    this.say();
  }

  listen() {
    const { above } = this.sheet;
    above.addEventListener("pointermove", (event) => this.show(this.stepAt(event)));
    above.addEventListener("pointerdown", (event) => this.show(this.stepAt(event)));
    above.addEventListener("pointerleave", () => document.activeElement !== above && this.show(null));
    above.addEventListener("blur", () => this.show(null));
    above.addEventListener("keydown", (event) => this.key(event));
    const apart = this.root.querySelector("[data-do=apart]");
    apart?.addEventListener("change", () => {
      this.apart = apart.checked;
      this.sheet.stale();
    });
    this.root.querySelector("[data-do=png]")?.addEventListener("click", (event) => {
      savePng(this.sheet, event.currentTarget.dataset.name);
    });
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const far = Math.max(1, Math.round(this.count / 50)), last = this.series.at(-1);
    const from = this.step ?? last.at;
    const to = {
      ArrowLeft: from - (event.shiftKey ? far : 1), ArrowRight: from + (event.shiftKey ? far : 1),
      PageUp: from - far, PageDown: from + far, Home: 0, End: this.count - 1, p: last.at, b: this.series[0].at,
      Escape: null,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.show(to === null ? null : Math.min(this.count - 1, Math.max(0, to)));
  }

  /** Moves the cursor to a step; null: back to the peaks. */
  show(step) {
    if (step === this.step) return;
    this.step = step;
    this.sheet.moved();
    this.say();
    this.root.dispatchEvent(new CustomEvent("remat:step", { detail: step }));
  }

  stepAt(event) {
    const { x, wide } = this.sheet.inside;
    let across = event.clientX - this.sheet.above.getBoundingClientRect().left - x;
    let room = wide;
    if (this.apart) {
      room = (wide - APART * (this.series.length - 1)) / this.series.length;
      across %= room + APART;
    }
    return Math.min(this.count - 1, Math.max(0, Math.floor((across / room) * this.count)));
  }

  /** The frame that series k is drawn in. */
  box(k) {
    const box = this.sheet.inside, many = this.series.length;
    if (!this.apart) return box;
    const wide = (box.wide - APART * (many - 1)) / many;
    return { ...box, x: box.x + k * (wide + APART), wide };
  }

  draw(context) {
    const frames = this.apart ? this.series.map((_, k) => this.box(k)) : [this.box(0)];
    frames.forEach((box, k) => {
      const [toX, toY] = this.scales(box);
      const columns = countTicks(0, this.count, box.wide / 90);
      const rows = byteTicks(0, this.top, Math.max(2, box.high / 44)).map(([at, text]) => [at, k ? "" : text]);
      drawScales(context, box, columns, rows, toX, toY);
    });
    this.series.forEach((each, k) => this.drawSeries(context, each, this.box(k)));
    if (this.budget) for (const box of frames) this.drawBudget(context, box, this.scales(box)[1]);
    this.drawPeaks(context);
  }

  scales(box) {
    return scales(box, this.count, this.top);
  }

  drawSeries(context, { steps, ink: colour }, box) {
    const highest = maxima(steps, Math.max(1, Math.round(box.wide * this.sheet.dense)));
    drawArea(context, highest, steps.length, ...this.scales(box), colour);
  }

  drawBudget(context, box, toY) {
    context.strokeStyle = ink("bound");
    context.setLineDash([7, 4]);
    context.beginPath();
    context.moveTo(box.x, toY(this.budget));
    context.lineTo(box.x + box.wide, toY(this.budget));
    context.stroke();
    context.setLineDash([]);
    label(context, `budget ${size(this.budget)}`, box.x + box.wide - 4, toY(this.budget) + 11, "right");
  }

  drawPeaks(context) {
    this.series.forEach((each, k) => {
      if (each.at < 0) return;
      const [toX, toY] = this.scales(this.box(k));
      const x = toX(each.at + 0.5), y = toY(each.peak), box = this.box(k);
      this.dot(context, x, y, each.ink);
      const text = `${each.name}: ${size(each.peak)}`;
      const beyond = x + 12 + context.measureText(text).width > box.x + box.wide;
      label(context, text, beyond ? x - 10 : x + 10, y - 11, beyond ? "right" : "left");
    });
  }

  dot(context, x, y, colour) {
    context.beginPath();
    context.arc(x, y, 4, 0, 7);
    context.fillStyle = ink("raised");
    context.fill();
    context.strokeStyle = ink(colour);
    context.lineWidth = 1.5;
    context.stroke();
  }

  drawCursor(context) {
    if (this.step === null) return;
    this.series.forEach((each, k) => {
      const box = this.box(k), [toX, toY] = this.scales(box), x = toX(this.step + 0.5);
      context.strokeStyle = ink("text");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, box.y);
      context.lineTo(x, box.y + box.high);
      context.stroke();
      if (this.step < each.steps.length) this.dot(context, x, toY(each.steps[this.step]), each.ink);
    });
  }

  /** Writes who holds what under the cursor, or at the peaks. */
  say() {
    const room = this.root.querySelector("[data-part=holders]");
    room.replaceChildren(...this.series.map((each) => this.told(each)));
  }

  told(each) {
    const step = this.step ?? each.at, part = document.createElement("section");
    const head = part.appendChild(document.createElement("h3"));
    const where = part.appendChild(document.createElement("p"));
    where.className = "small";
    if (step < 0 || step >= each.steps.length) {
      head.textContent = each.name;
      where.textContent = each.steps.length ? `ended at step ${each.steps.length - 1}` : "no steps";
      return part;
    }
    const isPeak = each.steps[step] === each.peak;
    head.textContent = `${each.name}: ${size(each.steps[step])}${isPeak ? ", the peak" : ""}`;
    const ran = each.ran(step);
    where.textContent = `step ${grouped(step)} of ${grouped(each.steps.length)}${ran ? `, ${ran}` : ""}`;
    const held = each.held(step);
    if (held === null) {
      part.appendChild(document.createElement("p")).textContent = "Who holds what is known for the peak alone.";
      return part;
    }
    const list = part.appendChild(document.createElement("ol"));
    list.className = "holders";
    for (const { name, bytes, note } of held.rows) {
      const row = list.appendChild(document.createElement("li"));
      row.append(Object.assign(document.createElement("span"), { className: "name", textContent: name, title: name }));
      row.append(Object.assign(document.createElement("span"), { textContent: note, className: "small" }));
      row.append(Object.assign(document.createElement("span"), { className: "count", textContent: size(bytes) }));
    }
    const more = held.count - held.rows.length;
    if (more > 0) part.appendChild(document.createElement("p")).textContent = `and ${grouped(more)} more`;
    if (!held.rows.length) part.appendChild(document.createElement("p")).textContent = "Nothing is held here.";
    return part;
  }

  /** The cursor in words, for who does not see it. */
  get words() {
    return this.series
      .filter((each) => (this.step ?? each.at) >= 0 && (this.step ?? each.at) < each.steps.length)
      .map((each) => {
        const step = this.step ?? each.at, held = each.held(step)?.rows ?? [];
        const who = held.slice(0, 3).map((row) => `${row.name} ${size(row.bytes)}`).join(", ");
        return `${each.name}: ${size(each.steps[step])} at step ${step}, ${each.ran(step)}${who ? `; holds ${who}` : ""}`;
      })
      .join(". ");
  }
}

/** [pixel of a step, pixel of bytes] in a box that shows `count` steps and bytes up to `top`. */
export function scales(box, count, top) {
  return [(step) => box.x + (box.wide * step) / count, (bytes) => box.y + box.high * (1 - bytes / top)];
}

/** How far up a picture of these peaks goes, and the budget where it is drawn: far above them it would flatten all. */
export function topOf(peaks, budget) {
  const peak = Math.max(1, ...peaks), shown = budget && budget <= 1.25 * peak ? budget : null;
  return { top: 1.06 * Math.max(peak, shown ?? 0), budget: shown };
}

/** A line over `steps` steps with the area below it; `highest` has the most of each of so many equal parts. */
export function drawArea(context, highest, steps, toX, toY, colour) {
  if (!steps) return;
  context.beginPath();
  context.moveTo(toX(0), toY(0));
  for (let i = 0; i < highest.length; i++) {
    context.lineTo(toX((i * steps) / highest.length), toY(highest[i]));
    context.lineTo(toX(((i + 1) * steps) / highest.length), toY(highest[i]));
  }
  context.lineTo(toX(steps), toY(0));
  context.fillStyle = context.strokeStyle = ink(colour);
  context.globalAlpha = 0.2;
  context.fill();
  context.globalAlpha = 1;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
}

/** The holders of a step among rectangles or spans. */
export function heldIn(spans, bytes, nameOf, noteOf) {
  return (step) => {
    const { largest, count } = spans.largest(step, bytes, MOST_HOLDERS);
    return { count, rows: largest.map((i) => ({ name: nameOf(i), bytes: bytes[i], note: noteOf(i) })) };
  };
}

/** Holders at the peak alone, as the report names them. */
export function heldAtPeak(rows, steps) {
  const top = steps[firstLargest(steps)];
  const shown = rows.slice(0, MOST_HOLDERS).map(({ value, bytes }) => ({ name: value, bytes, note: "" }));
  return (step) => steps[step] === top ? { count: rows.length, rows: shown } : null;
}
