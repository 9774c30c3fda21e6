// Index of intervals of steps: sorted by first step, with the running maximum of the last step.
//
//   span    0 ├──────────────┤          first  0 2 3 7     running maximum of last  5 5 9 9
//           1     ├──┤                  the window [6, 8) needs spans 2 and 3: from the first whose running maximum
//           2       ├────────────┤      reaches 6, to the last that starts before 8
//           3                ├──┤

/** Number of elements of the ascending `sorted` that are at most `value`. O(log n). */
export function atMost(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Running maximum of `last`, ascending. O(n). */
export function latestEnds(last) {
  const latest = new Int32Array(last.length);
  let end = -1;
  for (let i = 0; i < last.length; i++) latest[i] = end = Math.max(end, last[i]);
  return latest;
}

/** Spans [first[i], last[i]], both inclusive, by ascending first step. */
export class Spans {
  constructor(first, last) {
    this.first = first;
    this.last = last;
    this.latest = latestEnds(last);
  }

  /** [from, to): indices that contain all spans meeting the steps [low, high], and maybe others. */
  window(low, high) {
    return [atMost(this.latest, low - 1), atMost(this.first, high)];
  }

  /** Calls `visit(i)` for each span that contains `step`. */
  at(step, visit) {
    const [from, to] = this.window(step, step);
    for (let i = from; i < to; i++) if (this.last[i] >= step) visit(i);
  }

  /** Indices of the `limit` largest spans that contain `step`, in descending order, and the number of all of them. */
  largest(step, bytes, limit) {
    const spans = [];
    this.at(step, (i) => spans.push(i));
    spans.sort((a, b) => bytes[b] - bytes[a] || a - b);
    return { largest: spans.slice(0, limit), count: spans.length };
  }
}

/** Ids of the names that contain `text`, case-insensitive; null for an empty text. */
export function search(names, text) {
  const query = text.trim().toLowerCase();
  if (!query) return null;
  const ids = new Set();
  for (let id = 0; id < names.length; id++) if (names[id].toLowerCase().includes(query)) ids.add(id);
  return ids;
}
