// Round ticks, column maxima and zoom windows; the same ticks as in app/render/axes.py.

import { grouped, UNITS, unitOf } from "./format.js";

const ROUND = [1, 2, 2.5, 5, 10];

/** The smallest round number that is at least `least` > 0. */
export function roundUp(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return ROUND.find((digit) => digit * power >= least * (1 - 1e-9)) * power;
}

/** Multiples of `step` in [low, high]. */
export function ticks(low, high, step) {
  const multiples = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) multiples.push(i * step + 0); // never -0
  return multiples;
}

/** About `count` round numbers of bytes in [low, high], each with its label in the unit of `high`. */
export function byteTicks(low, high, count) {
  const unit = 1024 ** unitOf(high);
  let step = unit * roundUp(Math.max(high - low, 1e-9) / unit / count);
  if (unit === 1) step = Math.ceil(step);
  const name = UNITS[unitOf(high)];
  return ticks(low, high, step).map((at) => [at, at ? `${Number((at / unit).toPrecision(5))} ${name}` : "0"]);
}

/** About `count` integers in [low, high], each with its label. */
export function countTicks(low, high, count) {
  const step = Math.max(1, roundUp(Math.max(high - low, 1) / count));
  return ticks(low, high, step).filter(Number.isInteger).map((at) => [at, grouped(at)]);
}

/** Maximum of the values in each of at most `columns` columns. O(n). */
export function maxima(values, columns) {
  const count = Math.min(columns, values.length);
  const highest = new Float64Array(count);
  for (let i = 0, column = 0; column < count; column++) {
    const end = Math.floor(((column + 1) * values.length) / count);
    let top = values[i];
    for (; i < end; i++) if (values[i] > top) top = values[i];
    highest[column] = top;
  }
  return highest;
}

/** First index of the largest value; -1 if there is none. */
export function firstLargest(values) {
  let at = values.length ? 0 : -1;
  for (let i = 1; i < values.length; i++) if (values[i] > values[at]) at = i;
  return at;
}

/** The window [low, high] scaled by `factor` about `centre`, within [0, whole] and at least `least` wide. */
export function zoomed([low, high], factor, centre, whole, least) {
  const wide = Math.min(whole, Math.max(least, (high - low) * factor));
  const share = high > low ? (centre - low) / (high - low) : 0.5;
  return moved([centre - share * wide, centre + (1 - share) * wide], 0, whole);
}

/** The window moved by `by`, clamped to [0, whole]. */
export function moved([low, high], by, whole) {
  const wide = high - low;
  const begin = Math.min(Math.max(0, low + by), Math.max(0, whole - wide));
  return [begin, begin + wide];
}
