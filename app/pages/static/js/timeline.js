// Chart of memory over steps: bytes of each step before and after, labelled peaks, live values at the cursor.

import { grouped, size } from "./format.js";
import { firstLargest, maxima } from "./scale.js";
import { drawScales, ink, label, savePng, Sheet } from "./sheet.js";
import { onTheme } from "./theme.js";

export const MARGINS = { left: 76, right: 16, top: 28, bottom: 30 };
const MAX_LIVE_VALUES = 8; // listed per series
const PANEL_GAP = 48; // pixels between two panels side by side
const ANNOUNCE_DELAY_MS = 150;

/**
 * One series of the chart.
 * @typedef {object} Series
 * @property {string} name label at the peak: "before", "after"
 * @property {string} ink colour of the style sheet
 * @property {Float64Array} steps bytes of each step
 * @property {(step: number) => string} nodeAt node that runs at a step
 * @property {(step: number) => {rows: {name: string, bytes: number, note: string}[], count: number} | null} liveAt
 *   largest live values at a step, and the number of all; null: unknown
 * @property {string} [unknown] text where live values are unknown
 */

export class MemoryChart {
  /**
   * @param {HTMLElement} root with two canvases and an element [data-part=holders]
   * @param {Series[]} series drawn in order, the last on top
   * @param {number | null} budget bytes
   */
  constructor(root, series, budget) {
    this.root = root;
    this.series = series.map((each) => {
      const at = firstLargest(each.steps);
      return { ...each, at, peak: at < 0 ? 0 : each.steps[at] };
    });
    this.isSideBySide = false;
    this.step = null; // at the cursor; null: each series at its own peak
    this.count = Math.max(1, ...series.map((each) => each.steps.length));
    this.allowed = budget;
    Object.assign(this, chartHeight(this.series.map((each) => each.peak), budget));
    this.sheet = new Sheet(root.querySelector(".sheet"), MARGINS, (to) => this.draw(to), (to) => this.drawCursor(to));
    this.listen();
    onTheme(() => this.sheet.stale());
    this.sheet.stale();
    this.listLiveValues();
  }

  /** Adds a series, or replaces the one of the same name. */
  add(series) {
    const at = firstLargest(series.steps);
    const added = { ...series, at, peak: at < 0 ? 0 : series.steps[at] };
    this.series = [...this.series.filter((each) => each.name !== series.name), added];
    this.count = Math.max(1, ...this.series.map((each) => each.steps.length));
    Object.assign(this, chartHeight(this.series.map((each) => each.peak), this.allowed));
    this.sheet.stale();
    this.listLiveValues();
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
      this.isSideBySide = apart.checked;
      this.sheet.stale();
    });
    this.root.querySelector("[data-do=png]")?.addEventListener("click", (event) => {
      savePng(this.sheet, event.currentTarget.dataset.name);
    });
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const far = Math.max(1, Math.round(this.count / 50)), last = this.series[1];
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

  /** Moves the cursor to a step; null: to the peaks. */
  show(step) {
    if (step === this.step) return;
    this.step = step;
    this.sheet.moved();
    this.listLiveValues();
    this.root.dispatchEvent(new CustomEvent("remat:step", { detail: step }));
  }

  stepAt(event) {
    const { x, wide } = this.sheet.inside;
    let across = event.clientX - this.sheet.above.getBoundingClientRect().left - x;
    let room = wide;
    if (this.isSideBySide) {
      room = (wide - PANEL_GAP * (this.series.length - 1)) / this.series.length;
      across %= room + PANEL_GAP;
    }
    return Math.min(this.count - 1, Math.max(0, Math.floor((across / room) * this.count)));
  }

  /** The area of series k. */
  box(k) {
    const box = this.sheet.inside, many = this.series.length;
    if (!this.isSideBySide) return box;
    const wide = (box.wide - PANEL_GAP * (many - 1)) / many;
    return { ...box, x: box.x + k * (wide + PANEL_GAP), wide };
  }

  draw(context) {
    const panels = this.isSideBySide ? this.series.map((_, k) => this.box(k)) : [this.box(0)];
    panels.forEach((box, k) => drawScales(context, box, [0, this.count], [0, this.top], ...this.scales(box), k === 0));
    this.series.forEach((each, k) => this.drawSeries(context, each, this.box(k)));
    if (this.budget) for (const box of panels) this.drawBudget(context, box, this.scales(box)[1]);
    this.drawPeaks(context);
  }

  scales(box) {
    return scales(box, this.count, this.top);
  }

  drawSeries(context, { steps, ink: colour }, box) {
    const heights = maxima(steps, Math.max(1, Math.round(box.wide * this.sheet.dense)));
    drawArea(context, heights, steps.length, ...this.scales(box), colour);
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

  /** Lists the live values at the cursor, or at the peaks. */
  listLiveValues() {
    const place = this.root.querySelector("[data-part=holders]");
    place.replaceChildren(...this.series.map((each) => this.liveValuesOf(each)));
  }

  liveValuesOf(each) {
    const step = this.step ?? each.at, part = document.createElement("section");
    const head = part.appendChild(document.createElement("h3"));
    const where = part.appendChild(document.createElement("p"));
    where.className = "small";
    if (step < 0 || step >= each.steps.length) {
      head.textContent = each.name;
      where.textContent = each.steps.length ? `ends at step ${each.steps.length - 1}` : "no steps";
      return part;
    }
    const isPeak = each.steps[step] === each.peak;
    head.textContent = `${each.name}: ${size(each.steps[step])}${isPeak ? ", peak" : ""}`;
    const node = each.nodeAt(step), live = each.liveAt(step);
    where.textContent = `step ${grouped(step)} of ${grouped(each.steps.length)}${node ? `, ${node}` : ""}`;
    const addText = (text) => { part.appendChild(document.createElement("p")).textContent = text; };
    if (live === null) {
      addText(each.unknown ?? "Live values are known at the peak only.");
      return part;
    }
    const list = part.appendChild(document.createElement("ol"));
    list.className = "holders";
    for (const { name, bytes, note } of live.rows) {
      const row = list.appendChild(document.createElement("li"));
      row.append(Object.assign(document.createElement("span"), { className: "name", textContent: name, title: name }));
      row.append(Object.assign(document.createElement("span"), { textContent: note, className: "small" }));
      row.append(Object.assign(document.createElement("span"), { className: "count", textContent: size(bytes) }));
    }
    const more = live.count - live.rows.length;
    if (more > 0) addText(`and ${grouped(more)} more`);
    if (!live.rows.length) addText("No live values.");
    return part;
  }

  /** The cursor as text, for screen readers. */
  get description() {
    return this.series
      .filter((each) => (this.step ?? each.at) >= 0 && (this.step ?? each.at) < each.steps.length)
      .map((each) => {
        const step = this.step ?? each.at, live = each.liveAt(step)?.rows ?? [];
        const values = live.slice(0, 3).map((row) => `${row.name} ${size(row.bytes)}`).join(", ");
        return `${each.name}: ${size(each.steps[step])} at step ${step}, ${each.nodeAt(step)}${values ? `; largest: ${values}` : ""}`;
      })
      .join(". ");
  }
}

/** Announces the step at the cursor of a chart to screen readers, once it rests. */
export function announceSteps(chart) {
  const announcement = chart.root.querySelector("[data-part=announcement]");
  let timer = 0;
  chart.root.addEventListener("remat:step", () => {
    clearTimeout(timer);
    timer = setTimeout(() => (announcement.textContent = chart.description), ANNOUNCE_DELAY_MS);
  });
}

/** Functions from steps and from bytes to pixels, in a box for `count` steps and bytes up to `top`. */
export function scales(box, count, top) {
  return [(step) => box.x + (box.wide * step) / count, (bytes) => box.y + box.high * (1 - bytes / top)];
}

/** Top of the chart in bytes, and the budget if drawn; one far above the peaks would flatten the chart. */
export function chartHeight(peaks, budget) {
  const peak = Math.max(1, ...peaks), shown = budget && budget <= 1.25 * peak ? budget : null;
  return { top: 1.06 * Math.max(peak, shown ?? 0), budget: shown };
}

/** A line over `steps` steps with the area below; `heights` are the maxima of equal parts of the steps. */
export function drawArea(context, heights, steps, toX, toY, colour) {
  if (!steps) return;
  context.beginPath();
  context.moveTo(toX(0), toY(0));
  for (let i = 0; i < heights.length; i++) {
    context.lineTo(toX((i * steps) / heights.length), toY(heights[i]));
    context.lineTo(toX(((i + 1) * steps) / heights.length), toY(heights[i]));
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

/** Step -> its largest live values, from the spans of steps in which values are live. */
export function largestLive(spans, bytes, nameOf, noteOf) {
  return (step) => {
    const { largest, count } = spans.largest(step, bytes, MAX_LIVE_VALUES);
    return { count, rows: largest.map((i) => ({ name: nameOf(i), bytes: bytes[i], note: noteOf(i) })) };
  };
}

/** Step -> live values as the report lists them; known at the peak only. */
export function heldAtPeak(rows, steps) {
  const top = steps[firstLargest(steps)];
  const shown = rows.slice(0, MAX_LIVE_VALUES).map(({ value, bytes }) => ({ name: value, bytes, note: "" }));
  return (step) => steps[step] === top ? { count: rows.length, rows: shown } : null;
}
