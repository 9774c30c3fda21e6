// Round scales, and long rows that keep their peaks; as app/render/axes.py has them for pictures made by the service.

import { grouped, unitOf } from "./format.js";

const ROUND = [1, 2, 2.5, 5, 10];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** The smallest round number that is not below a positive one. */
export function roundUp(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return ROUND.find((digit) => digit * power >= least * (1 - 1e-9)) * power;
}

/** Multiples of `step` in [low, high]. */
export function ticks(low, high, step) {
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) found.push(i * step + 0); // never -0
  return found;
}

/** About `most` round numbers of bytes in [low, high], each with its label in the unit of `high`. */
export function byteTicks(low, high, most) {
  const unit = 1024 ** unitOf(high);
  let step = unit * roundUp(Math.max(high - low, 1e-9) / unit / most);
  if (unit === 1) step = Math.ceil(step);
  const name = UNITS[unitOf(high)];
  return ticks(low, high, step).map((at) => [at, at ? `${Number((at / unit).toPrecision(5))} ${name}` : "0"]);
}

/** About `most` whole numbers in [low, high], each with its label. */
export function countTicks(low, high, most) {
  const step = Math.max(1, roundUp(Math.max(high - low, 1) / most));
  return ticks(low, high, step).filter(Number.isInteger).map((at) => [at, grouped(at)]);
}

/** The highest of the values of each of at most `columns` columns, and where it stands. O(n). */
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

/** Where the largest value first stands; -1 of none. */
export function firstLargest(values) {
  let at = values.length ? 0 : -1;
  for (let i = 1; i < values.length; i++) if (values[i] > values[at]) at = i;
  return at;
}

/** A window [low, high] zoomed by `factor` about `centre`, within [0, whole] and at least `least` wide. */
export function zoomed([low, high], factor, centre, whole, least) {
  const wide = Math.min(whole, Math.max(least, (high - low) * factor));
  const share = high > low ? (centre - low) / (high - low) : 0.5;
  return moved([centre - share * wide, centre + (1 - share) * wide], 0, whole);
}

/** The window moved by `by`, kept within [0, whole]. */
export function moved([low, high], by, whole) {
  const wide = high - low;
  const begin = Math.min(Math.max(0, low + by), Math.max(0, whole - wide));
  return [begin, begin + wide];
}
