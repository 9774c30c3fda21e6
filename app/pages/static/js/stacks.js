// Bytes of every step by kind, as stacked sums, and the steps that a chart of some columns shows.
//
//   bytes ▲      ╭──╮ workspace         sums[k][step]: bytes of the kinds 0 to k; the last is the step's total.
//         │   ╭──╯  ╰─╮ activations     Activations are what remains of the total beside the other kinds.
//         │ ──┴───────┴── parameters

import { atMost } from "./spans.js";

//: Kind and colour, from the bottom of the stack; as INKS of app/pages/plan/peak_bars.py.
export const STACK = [
  ["parameters", "kind-2"], ["optimizer", "kind-5"], ["gradients", "kind-4"], ["activations", "kind-1"], ["workspace", "kind-3"],
];
const ACTIVATIONS = 3, WORKSPACE = 4;
const PLACE_OF_CATEGORY = [0, 2, 1, ACTIVATIONS]; // by the column `category`: parameters, gradients, optimizer, activations

/**
 * Stacked sums of the kinds of STACK. O(steps + spans).
 * @param {Float64Array} totals bytes of each step
 * @param {{first, last, bytes}} spans steps in which each buffer is live, both inclusive
 * @param {(i: number) => number} categoryOf category of span i; -1: workspace, -2: not counted
 */
export function stackedSums(totals, { first, last, bytes }, categoryOf) {
  const steps = totals.length, changes = STACK.map(() => new Float64Array(steps + 1));
  for (let i = 0; i < first.length; i++) {
    const category = categoryOf(i);
    if (category < -1) continue;
    const change = changes[category < 0 ? WORKSPACE : PLACE_OF_CATEGORY[category]];
    change[first[i]] += bytes[i];
    change[last[i] + 1] -= bytes[i];
  }
  const sums = STACK.map(() => new Float64Array(steps));
  sums[WORKSPACE].set(totals);
  for (let kind = 0; kind < ACTIVATIONS; kind++) { // one kind after the other: each loop runs over two columns only
    const change = changes[kind], sum = sums[kind], below = kind ? sums[kind - 1] : null;
    for (let step = 0, live = 0; step < steps; step++) {
      live += change[step];
      const top = (below ? below[step] : 0) + (live > 0 ? live : 0);
      sum[step] = top < totals[step] ? top : totals[step];
    }
  }
  const sum = sums[ACTIVATIONS], below = sums[ACTIVATIONS - 1], change = changes[WORKSPACE];
  for (let step = 0, live = 0; step < steps; step++) {
    live += change[step];
    const top = totals[step] - (live > 0 ? live : 0);
    sum[step] = top > below[step] ? top : below[step];
  }
  return sums;
}

/** Whether a kind has bytes at any step. */
export function isPresent(sums, kind) {
  const top = sums[kind], below = kind ? sums[kind - 1] : null;
  for (let step = 0; step < top.length; step++) if (top[step] > (below ? below[step] : 0)) return true;
  return false;
}

/** Begin of each step, and the end of the last, from the duration of each step. */
export function startsOf(durations) {
  const starts = new Float64Array(durations.length + 1);
  for (let step = 0; step < durations.length; step++) starts[step + 1] = starts[step] + durations[step];
  return starts;
}

/** The step at a place of the axis, clamped to the steps; `starts` null: the axis counts steps. */
export function stepAt(place, count, starts) {
  const step = starts ? atMost(starts, place) - 1 : Math.floor(place);
  return Math.min(count - 1, Math.max(0, step));
}

/**
 * The step with the most bytes in each of `columns` columns of the window; -1: none. A step without time has a column too,
 * so that no peak is lost. O(steps in the window + columns).
 */
export function tallestSteps(bytes, starts, [low, high], columns) {
  const tallest = new Int32Array(columns).fill(-1), scale = columns / (high - low);
  for (let step = stepAt(low, bytes.length, starts); step < bytes.length; step++) {
    const begin = starts ? starts[step] : step, end = starts ? starts[step + 1] : step + 1;
    if (begin > high) break;
    const from = Math.max(0, Math.floor((begin - low) * scale));
    const to = Math.min(columns, Math.max(from + 1, Math.ceil((end - low) * scale)));
    for (let column = from; column < to; column++)
      if (tallest[column] < 0 || bytes[step] > bytes[tallest[column]]) tallest[column] = step;
  }
  return tallest;
}
