// Formatted quantities, the same as in app/pages/shell/format_values.py.

export const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const signed = (text) => text.replace("-", "−");

/** Index of the unit in which `bytes` has one to four digits before the point. */
export function unitOf(bytes) {
  let unit = 0;
  for (let rest = Math.abs(bytes); rest >= 1024 && unit < UNITS.length - 1; rest /= 1024) unit++;
  return unit;
}

/** Bytes: `3.91 GiB`. */
export function size(bytes) {
  const unit = unitOf(bytes), amount = bytes / 1024 ** unit;
  const digits = unit === 0 || Math.abs(amount) >= 1000 ? 0 : Math.abs(amount) >= 100 ? 1 : 2;
  return signed(`${amount.toFixed(digits)} ${UNITS[unit]}`);
}

/** A fraction as percentage: `3.4%`. */
export const share = (fraction, digits = 1) => signed(`${(100 * fraction).toFixed(digits)}%`);

/** A time with 3 significant digits, in the unit that leaves one to three before the point. */
export function seconds(span) {
  if (span === 0) return "0 s";
  for (const [limit, scale, unit] of [[1e-6, 1e9, "ns"], [1e-3, 1e6, "µs"], [1, 1e3, "ms"], [600, 1, "s"]])
    if (Math.abs(span) < limit) return signed(`${Number((span * scale).toPrecision(3))} ${unit}`);
  return signed(`${Math.round(span / 60)} min`);
}

/** An integer with thousands separators: `12,345`. `toLocaleString` takes 20 ms on its first call. */
export const grouped = (whole) => String(whole).replace(/\B(?=(\d{3})+$)/g, ",");

/** A count with its noun: `1 node`, `2 nodes`. */
export const counted = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;

/** The first four items, and the number of the others. */
export const listed = (items) => items.slice(0, 4).join(", ") + (items.length > 4 ? ` and ${items.length - 4} more` : "");

/** Number of runs: `runs once`, `runs 3 times`. */
export const runsInWords = (runs) => (runs === 1 ? "runs once" : runs === 2 ? "runs twice" : `runs ${runs} times`);
