// Live values at a step of the memory chart: which they are, and as a list.

import { grouped, size } from "./format.js";
import { firstLargest } from "./scale.js";

const MAX_LIVE_VALUES = 8; // listed per series

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

/** A section with the largest live values of a series at a step; the step may be beyond its end. */
export function liveValuesOf(each, step) {
  const part = document.createElement("section");
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
