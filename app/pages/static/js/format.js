// Figures as app/pages/format_values.py writes them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const signed = (text) => text.replace("-", "−");

/** Index of the unit in which `bytes` has one to four digits before the point. */
export function unitOf(bytes) {
  let unit = 0;
  for (let rest = Math.abs(bytes); rest >= 1024 && unit < UNITS.length - 1; rest /= 1024) unit++;
  return unit;
}

/** Bytes: `3.91 GiB`, in the given unit where there is one. */
export function size(bytes, unit = unitOf(bytes)) {
  const amount = bytes / 1024 ** unit;
  const digits = unit === 0 || Math.abs(amount) >= 1000 ? 0 : Math.abs(amount) >= 100 ? 1 : 2;
  return signed(`${amount.toFixed(digits)} ${UNITS[unit]}`);
}

/** A fraction as percentage: `3.4 %`. */
export const share = (fraction, digits = 1) => signed(`${(100 * fraction).toFixed(digits)} %`);

/** A time in the unit that leaves one to three digits before the point. */
export function seconds(span) {
  if (span === 0) return "0 s";
  for (const [limit, scale, unit] of [[1e-6, 1e9, "ns"], [1e-3, 1e6, "µs"], [1, 1e3, "ms"], [600, 1, "s"]])
    if (Math.abs(span) < limit) return signed(`${Number((span * scale).toPrecision(3))} ${unit}`);
  return signed(`${Math.round(span / 60)} min`);
}

/** A whole number with commas: `12,345`. The browser's own `toLocaleString` takes 20 ms to begin with. */
export const grouped = (whole) => String(whole).replace(/\B(?=(\d{3})+$)/g, ",");
