// Memory chart: bytes over time before and after, stacked by kind, with phases, recomputed ops, budget and a tooltip.
//
//   before ▲  ╭──╮        one panel for each series on the same scales, so that both align;
//          └──┴──┴──▶     or, in the view "overlay", all series in one panel
//   after  ▲ ╭────╮       the axis is in seconds once durations are known, in steps until then
//          └─┴────┴─▶ t

import { grouped, size } from "./format.js";
import { liveValuesOf } from "./live_values.js";
import { firstLargest, moved, zoomed } from "./scale.js";
import { ink, label, savePng, Sheet } from "./sheet.js";
import { isPresent, STACK, stepAt, tallestSteps } from "./stacks.js";
import { onTheme } from "./theme.js";
import { drawAxes, drawBudget, drawDot, drawLine, drawPhases, drawStack, STRIP, timed } from "./timeline_parts.js";

export const MARGINS = { left: 76, right: 16, top: 24, bottom: 40 };
const PANEL_GAP = 46; // pixels between two panels, for phases and a title
const MAX_TIP_VALUES = 3; // live values in the tooltip
const ANNOUNCE_DELAY_MS = 150;
const ZOOM_STEP = 1.3;
const MIN_PART = 1e-4; // of the whole axis, the smallest window
const MIN_DRAG = 4; // pixels

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
 * @property {Float64Array} [starts] begin of each step in seconds, and the end of the last
 * @property {Float64Array[]} [sums] stacked sums by kind, see stacks.js
 * @property {Uint8Array} [phases] phase of each step
 * @property {Uint8Array} [again] 1 where a step recomputes
 * @property {(step: number) => string[]} [tipAt] lines of the tooltip about a step
 */

export class MemoryChart {
  /**
   * @param {HTMLElement} root with two canvases and an element [data-part=holders]
   * @param {Series[]} series drawn in order, the last on top
   * @param {number | null} budget bytes
   */
  constructor(root, series, budget) {
    this.root = root;
    this.isStacked = root.querySelector("[data-do=view]")?.value === "stacked";
    this.step = null; // at the cursor, of series `active`; null: each series at its own peak
    this.active = series.length - 1;
    this.allowed = budget;
    this.sheet = new Sheet(root.querySelector(".sheet"), MARGINS, (to) => this.draw(to), (to) => this.drawCursor(to));
    this.setSeries(series);
    this.listen();
    onTheme(() => this.sheet.stale());
  }

  /** Replaces the series; the axis is in seconds if all have durations. */
  setSeries(series) {
    this.series = series.map((each) => {
      const at = firstLargest(each.steps);
      return { ...each, at, peak: at < 0 ? 0 : each.steps[at] };
    });
    this.isTimed = this.series.length > 0 && this.series.every((each) => each.starts?.at(-1) > 0);
    const ends = this.series.map((each) => (this.isTimed ? each.starts.at(-1) : each.steps.length));
    this.whole = Math.max(this.isTimed ? 0 : 1, ...ends);
    this.view = [0, this.whole];
    Object.assign(this, chartHeight(this.series.map((each) => each.peak), this.allowed));
    this.legend();
    this.sheet.stale();
    this.listLiveValues();
  }

  /** Adds a series, or replaces the one of the same name; without durations it is stretched over the whole axis. */
  add(series) {
    const count = series.steps.length;
    const starts = Float64Array.from({ length: count + 1 }, (_, step) => (this.whole * step) / Math.max(1, count));
    const added = this.isTimed && !series.starts ? { ...series, starts } : series;
    this.setSeries([...this.series.filter((each) => each.name !== series.name), added]);
  }

  /** Colours of the kinds and marks that occur. */
  legend() {
    const list = this.root.querySelector("[data-part=legend]");
    if (!list) return;
    const has = (kind) => this.series.some(({ sums }) => sums && isPresent(sums, kind));
    const shown = this.isStacked ? STACK.filter((_, kind) => has(kind)) : this.series.map((each) => [each.name, each.ink]);
    if (this.series.some((each) => each.again?.includes(1))) shown.push(["recomputed op", "recompute"]);
    list.replaceChildren(...shown.map(([word, colour]) => {
      const entry = document.createElement("li");
      entry.append(Object.assign(document.createElement("span"), { className: `swatch ${colour}` }), word);
      return entry;
    }));
  }

  // ---- places

  /** Panels with the series that each shows: one for each of the first two series, or one for all. */
  panels() {
    const box = this.sheet.inside, lines = this.series.slice(2);
    if (!this.isStacked || this.series.length < 2) return [{ box: { ...box, high: box.high - STRIP + 8 }, shown: this.series }];
    const [upper, lower] = panelBoxes(box);
    return [{ box: upper, shown: [this.series[0]] }, { box: lower, shown: [this.series[1], ...lines] }];
  }

  /** Functions from the axis and from bytes to pixels, in a box. */
  scales(box) {
    return scales(box, this.view, this.top);
  }

  /** Place on the axis of the middle of a step. */
  middleOf(each, step) {
    return this.isTimed ? (each.starts[step] + each.starts[step + 1]) / 2 : step + 0.5;
  }

  /** Step of a series at the cursor; at its peak without one; -1: beyond its end. */
  stepOf(each) {
    if (this.step === null) return each.at;
    const own = this.series[this.active];
    if (each === own) return this.step;
    const place = this.middleOf(own, Math.min(this.step, own.steps.length - 1));
    const end = this.isTimed ? each.starts.at(-1) : each.steps.length;
    return place > end ? -1 : stepAt(place, each.steps.length, this.isTimed ? each.starts : null);
  }

  /** [series index, step] at a pointer: of the panel below it, or of the nearest line if all are in one panel. */
  at(event) {
    const bounds = this.sheet.above.getBoundingClientRect(), y = event.clientY - bounds.top;
    const panels = this.panels(), { box } = panels[0], [, toY] = this.scales(box);
    const place = this.view[0] + ((event.clientX - bounds.left - box.x) / box.wide) * (this.view[1] - this.view[0]);
    const steps = this.series.map((each) => stepAt(place, each.steps.length, this.isTimed ? each.starts : null));
    if (panels.length > 1) {
      const active = y > box.y + box.high + PANEL_GAP / 2 ? 1 : 0;
      return [active, steps[active]];
    }
    const far = this.series.map((each, k) => Math.abs(y - toY(each.steps[steps[k]])));
    const active = far.indexOf(Math.min(...far));
    return [active, steps[active]];
  }

  // ---- input

  listen() {
    const { above } = this.sheet, part = (name) => this.root.querySelector(`[data-do=${name}]`);
    let held = null; // {x, view} of a pressed pointer
    above.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, view: this.view, isMoved: false };
      this.show(...this.at(event), event);
    });
    above.addEventListener("pointermove", (event) => {
      if (held && event.buttons && (held.isMoved ||= Math.abs(event.clientX - held.x) > MIN_DRAG)) {
        const share = (held.x - event.clientX) / this.sheet.inside.wide;
        this.look(moved(held.view, share * (held.view[1] - held.view[0]), this.whole));
      }
      this.show(...this.at(event), event);
    });
    for (const name of ["pointerup", "pointercancel"]) above.addEventListener(name, () => (held = null));
    above.addEventListener("pointerleave", () => {
      held = null;
      this.tip(null);
      if (document.activeElement !== above) this.show(this.active, null);
    });
    above.addEventListener("blur", () => this.show(this.active, null));
    above.addEventListener("keydown", (event) => this.key(event));
    above.addEventListener("dblclick", () => this.look([0, this.whole]));
    above.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== above) return; // else the page scrolls
      event.preventDefault();
      const [share] = this.sheet.shares(event);
      this.zoom(event.deltaY > 0 ? ZOOM_STEP : 1 / ZOOM_STEP, this.view[0] + share * (this.view[1] - this.view[0]));
    }, { passive: false });
    part("in")?.addEventListener("click", () => this.zoom(1 / ZOOM_STEP ** 2));
    part("out")?.addEventListener("click", () => this.zoom(ZOOM_STEP ** 2));
    part("whole")?.addEventListener("click", () => this.look([0, this.whole]));
    part("view")?.addEventListener("change", (event) => {
      this.isStacked = event.currentTarget.value === "stacked";
      this.legend();
      this.sheet.stale();
    });
    part("png")?.addEventListener("click", (event) => savePng(this.sheet, event.currentTarget.dataset.name));
  }

  /** Zooms about a place; default: the cursor, else the middle. */
  zoom(factor, place = null) {
    const own = this.series[this.active];
    const about = place ?? (this.step === null ? (this.view[0] + this.view[1]) / 2 : this.middleOf(own, this.step));
    this.look(zoomed(this.view, factor, about, this.whole, this.whole * MIN_PART));
  }

  look(view) {
    this.view = view;
    this.sheet.stale();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "+" || event.key === "=") this.zoom(1 / ZOOM_STEP);
    else if (event.key === "-") this.zoom(ZOOM_STEP);
    else if (event.key === "0") this.look([0, this.whole]);
    else {
      const last = this.series.length - 1, own = this.series[this.active], count = own.steps.length;
      const above = Math.max(0, this.active - 1), below = Math.min(last, this.active + 1), after = Math.min(1, last);
      const far = Math.max(1, Math.round(count / 50)), from = this.step ?? own.at;
      const [active, to] = {
        ArrowLeft: [this.active, from - (event.shiftKey ? far : 1)], ArrowRight: [this.active, from + (event.shiftKey ? far : 1)],
        ArrowUp: [above, this.stepOf(this.series[above])], ArrowDown: [below, this.stepOf(this.series[below])],
        PageUp: [this.active, from - far], PageDown: [this.active, from + far], Home: [this.active, 0], End: [this.active, count - 1],
        p: [after, this.series[after].at], b: [0, this.series[0].at], Escape: [this.active, null],
        ...Object.fromEntries(this.series.map((each, k) => [k + 1, [k, each.at]])),
      }[event.key] ?? [];
      if (to === undefined) return;
      this.show(active, to === null ? null : Math.min(this.series[active].steps.length - 1, Math.max(0, to)));
      if (this.step !== null) this.follow();
    }
    event.preventDefault();
  }

  /** Moves the window so that the cursor is in it. */
  follow() {
    const [low, high] = this.view, place = this.middleOf(this.series[this.active], this.step);
    if (place < low || place > high) this.look(moved(this.view, place - (low + high) / 2, this.whole));
  }

  /** Moves the cursor to a step of series `active`; null: to the peaks. `event`: pointer beside which the tooltip stands. */
  show(active, step, event = null) {
    if (event) this.tip(event, active, step);
    if (step === this.step && active === this.active) return;
    this.active = active;
    this.step = step;
    if (step === null) this.tip(null);
    this.sheet.moved();
    this.listLiveValues();
    const after = this.series[Math.min(1, this.series.length - 1)], own = this.stepOf(after);
    this.root.dispatchEvent(new CustomEvent("remat:step", { detail: step === null || own < 0 ? null : own }));
  }

  /** Shows the tooltip about a step beside the pointer; null: hides it. */
  tip(event, active, step) {
    const place = this.root.querySelector("[data-part=tooltip]");
    if (!place) return;
    place.hidden = !event || step === null || step < 0;
    if (place.hidden) return;
    const [first, ...lines] = this.tipLines(this.series[active], step);
    const element = (tag, textContent) => Object.assign(document.createElement(tag), { textContent });
    place.replaceChildren(element("strong", first), ...lines.map((line) => element("span", line)));
    const bounds = this.sheet.above.getBoundingClientRect(), x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    const isLeft = x + 20 + place.offsetWidth > bounds.width;
    place.style.left = `${Math.max(2, isLeft ? x - 14 - place.offsetWidth : x + 14)}px`;
    place.style.top = `${Math.max(2, Math.min(y + 12, bounds.height - place.offsetHeight - 4))}px`;
  }

  tipLines(each, step) {
    const about = each.tipAt?.(step) ?? [each.nodeAt(step) || `step ${grouped(step)}`];
    const when = this.isTimed ? [timed(each.starts[step], each.starts[step + 1])] : [];
    const held = each.liveAt(step)?.rows.slice(0, MAX_TIP_VALUES) ?? [];
    return [...about, `${each.name}: ${size(each.steps[step])} live, step ${grouped(step)} of ${grouped(each.steps.length)}`, ...when,
      ...held.map((row) => `${size(row.bytes)}  ${row.name}${row.note ? `, ${row.note}` : ""}`)];
  }

  // ---- drawing

  draw(context) {
    const panels = this.panels(), isApart = panels.length > 1;
    panels.forEach(({ box, shown }, k) => {
      const [toX, toY] = this.scales(box), columns = Math.max(1, Math.round(box.wide * this.sheet.dense));
      drawAxes(context, box, this.view, this.top, toX, toY, this.isTimed, k === panels.length - 1);
      shown.forEach((each, place) => {
        const picked = tallestSteps(each.steps, this.isTimed ? each.starts : null, this.view, columns);
        const hasStack = isApart && place === 0 && each.sums;
        if (hasStack) drawStack(context, box, picked, each.sums, toY);
        drawLine(context, box, picked, each.steps, toY, hasStack ? "text" : each.ink, !hasStack && place < 2);
        const isLast = place === Math.min(shown.length, 2) - 1;
        if (each.phases && (isApart ? place === 0 : isLast)) drawPhases(context, box, picked, each.phases, this.marks(each, columns));
      });
      if (this.budget) drawBudget(context, box, toY(this.budget), k ? "" : `budget ${size(this.budget)}`);
      if (isApart) label(context, `${shown[0].name}: peak ${size(shown[0].peak)}`, box.x, box.y - 12);
      for (const each of shown) this.drawPeak(context, each, box, !isApart);
    });
  }

  /** Whether a column has a recomputed op: a function of the column. */
  marks(each, columns) {
    if (!each.again) return null;
    const marked = new Uint8Array(columns), [low, high] = this.view, scale = columns / (high - low);
    for (let step = 0; step < each.again.length; step++) {
      if (!each.again[step]) continue;
      const begin = this.isTimed ? each.starts[step] : step, end = this.isTimed ? each.starts[step + 1] : step + 1;
      const from = Math.floor((begin - low) * scale), to = Math.max(from + 1, Math.ceil((end - low) * scale));
      if (to > 0 && from < columns) marked.fill(1, Math.max(0, from), Math.min(columns, to));
    }
    return (column) => marked[column];
  }

  drawPeak(context, each, box, isNamed) {
    if (each.at < 0) return;
    const [toX, toY] = this.scales(box), x = toX(this.middleOf(each, each.at)), y = toY(each.peak);
    if (x < box.x || x > box.x + box.wide) return;
    drawDot(context, x, y, each.ink);
    if (!isNamed) return;
    const text = `${each.name}: ${size(each.peak)}`, beyond = x + 12 + context.measureText(text).width > box.x + box.wide;
    label(context, text, beyond ? x - 10 : x + 10, y - 11, beyond ? "right" : "left");
  }

  drawCursor(context) {
    if (this.step === null) return;
    const own = this.series[this.active], place = this.middleOf(own, Math.min(this.step, own.steps.length - 1));
    for (const { box, shown } of this.panels()) {
      const [toX, toY] = this.scales(box), x = toX(place);
      if (x < box.x || x > box.x + box.wide) continue;
      context.fillStyle = ink("text");
      context.fillRect(x, box.y, 1, box.high);
      for (const each of shown) {
        const step = this.stepOf(each);
        if (step >= 0) drawDot(context, x, toY(each.steps[step]), each.ink);
      }
    }
  }

  // ---- text

  /** Lists the live values at the cursor, or at the peaks. */
  listLiveValues() {
    const place = this.root.querySelector("[data-part=holders]");
    place.replaceChildren(...this.series.map((each) => liveValuesOf(each, this.stepOf(each))));
  }

  /** The cursor as text, for screen readers. */
  get description() {
    return this.series
      .map((each) => [each, this.stepOf(each)])
      .filter(([each, step]) => step >= 0 && step < each.steps.length)
      .map(([each, step]) => {
        const live = each.liveAt(step)?.rows ?? [];
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

/** The two panels of the stacked view within the margins. */
export function panelBoxes(box) {
  const high = (box.high - PANEL_GAP - STRIP + 8) / 2;
  return [{ ...box, high }, { ...box, y: box.y + high + PANEL_GAP, high }];
}

/** Functions from the axis and from bytes to pixels, in a box for the window [low, high] and bytes up to `top`. */
export function scales(box, [low, high], top) {
  return [(place) => box.x + (box.wide * (place - low)) / (high - low), (bytes) => box.y + box.high * (1 - bytes / top)];
}

/** Top of the chart in bytes, and the budget if drawn; one far above the peaks would flatten the chart. */
export function chartHeight(peaks, budget) {
  const peak = Math.max(1, ...peaks), shown = budget && budget <= 1.25 * peak ? budget : null;
  return { top: 1.06 * Math.max(peak, shown ?? 0), budget: shown };
}
