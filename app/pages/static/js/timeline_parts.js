// Parts of the memory chart: areas, stacks by kind, phases and recomputed ops below a panel, the time axis.

import { seconds } from "./format.js";
import { byteTicks, countTicks, roundUp, ticks } from "./scale.js";
import { drawGrid, ink, label, nameSteps } from "./sheet.js";
import { STACK } from "./stacks.js";

const LABEL_WIDTH = 96, LABEL_HEIGHT = 40; // pixels between labels of the scales
export const STRIP = 20; // pixels of the phases below a panel
const PHASES = [["forward", "kind-1"], ["backward", "kind-4"], ["update", "kind-3"]];
const MARK_HIGH = 6; // pixels of the marks of recomputed ops
const TIME_UNITS = [[1e-6, 1e9, "ns"], [1e-3, 1e6, "µs"], [1, 1e3, "ms"], [Infinity, 1, "s"]];

/** Labels of an axis of seconds: round numbers in the unit of `high`. */
export function timeTicks(low, high, count) {
  const [, scale, unit] = TIME_UNITS.find(([limit]) => high < limit);
  const step = roundUp(Math.max((high - low) * scale, 1e-9) / count);
  return ticks(low * scale, high * scale, step).map((at) => [at / scale, `${Number(at.toPrecision(6))} ${unit}`]);
}

/** Grid and labels of one panel. `isTimed`: the x axis is in seconds, else in steps; `hasTimes`: with labels below. */
export function drawAxes(context, box, [low, high], top, toX, toY, isTimed, hasTimes) {
  const rows = byteTicks(0, top, Math.max(2, box.high / LABEL_HEIGHT));
  const columns = (isTimed ? timeTicks : countTicks)(low, high, Math.max(2, box.wide / LABEL_WIDTH));
  drawGrid(context, box, rows, columns, toX, toY, [box.y, box.y + box.high]);
  context.textAlign = "right";
  for (const [value, text] of rows) context.fillText(text, box.x - 6, toY(value));
  if (!hasTimes) return;
  context.textAlign = "center";
  for (const [value, text] of columns) context.fillText(text, toX(value), box.y + box.high + STRIP + 12);
  if (!isTimed) nameSteps(context, box, STRIP + 12);
}

/** A path over columns of heights; `columns` from `pick`, -1: no step. */
function along(context, box, wide, heights, toY, back = false) {
  const count = heights.length;
  for (let k = 0; k < count; k++) {
    const column = back ? count - 1 - k : k, x = box.x + column * wide;
    const y = toY(heights[column]);
    context.lineTo(back ? x + wide : x, y);
    context.lineTo(back ? x : x + wide, y);
  }
}

/** Heights of the columns: a value of the step in each, 0 without one. */
const heightsOf = (picked, values) => Float64Array.from(picked, (step) => (step < 0 ? 0 : values[step]));

/** The stack of kinds of the picked steps. */
export function drawStack(context, box, picked, sums, toY) {
  const wide = box.wide / picked.length;
  let below = new Float64Array(picked.length);
  STACK.forEach(([, colour], kind) => {
    const heights = heightsOf(picked, sums[kind]);
    if (heights.some((height, column) => height > below[column])) {
      context.beginPath();
      along(context, box, wide, heights, toY);
      along(context, box, wide, below, toY, true);
      context.fillStyle = ink(colour);
      context.globalAlpha = 0.82;
      context.fill();
    }
    below = heights;
  });
  context.globalAlpha = 1;
}

/** A line over the picked steps, with the area below if `isFilled`. */
export function drawLine(context, box, picked, bytes, toY, colour, isFilled, dash = []) {
  const wide = box.wide / picked.length, heights = heightsOf(picked, bytes);
  let end = picked.length;
  while (end && picked[end - 1] < 0) end--;
  if (!end) return;
  context.beginPath();
  context.moveTo(box.x, toY(0));
  along(context, box, wide, heights.subarray(0, end), toY);
  context.lineTo(box.x + end * wide, toY(0));
  context.strokeStyle = context.fillStyle = ink(colour);
  if (isFilled) {
    context.globalAlpha = 0.2;
    context.fill();
    context.globalAlpha = 1;
  }
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.stroke();
  context.setLineDash([]);
}

/** The phases of the picked steps as a band below the panel, with a mark wherever an op is recomputed. */
export function drawPhases(context, box, picked, phases, isAgain) {
  const wide = box.wide / picked.length, y = box.y + box.high + 2, high = STRIP - 4 - MARK_HIGH;
  for (let from = 0, to; from < picked.length; from = to) {
    const phase = picked[from] < 0 ? -1 : phases[picked[from]];
    for (to = from + 1; to < picked.length && (picked[to] < 0 ? -1 : phases[picked[to]]) === phase; to++);
    if (phase < 0 || phase >= PHASES.length) continue;
    const [word, colour] = PHASES[phase], x = box.x + from * wide, across = (to - from) * wide;
    context.fillStyle = ink(colour);
    context.globalAlpha = 0.34;
    context.fillRect(x, y, across, high);
    context.globalAlpha = 1;
    if (across < context.measureText(word).width + 8) continue;
    context.fillStyle = ink("text");
    context.textAlign = "center";
    context.save();
    context.font = context.font.replace("12px", "10px");
    context.fillText(word, x + across / 2, y + high / 2 + 0.5);
    context.restore();
  }
  if (!isAgain) return;
  context.fillStyle = ink("recompute");
  for (let column = 0; column < picked.length; column++)
    if (isAgain(column)) context.fillRect(box.x + column * wide, y + high + 1, Math.max(1, wide), MARK_HIGH);
}

/** A dashed line at the budget. */
export function drawBudget(context, box, y, text) {
  context.strokeStyle = ink("bound");
  context.lineWidth = 1.5;
  context.setLineDash([7, 4]);
  context.beginPath();
  context.moveTo(box.x, y);
  context.lineTo(box.x + box.wide, y);
  context.stroke();
  context.setLineDash([]);
  if (text) label(context, text, box.x + box.wide - 4, y + 11, "right");
}

/** A ring at a point of a series. */
export function drawDot(context, x, y, colour) {
  context.beginPath();
  context.arc(x, y, 4, 0, 7);
  context.fillStyle = ink("raised");
  context.fill();
  context.strokeStyle = ink(colour);
  context.lineWidth = 1.5;
  context.stroke();
}

/** A span of time for a tooltip. */
export const timed = (from, to) => `at ${seconds(from)}, takes ${seconds(to - from)}`;
