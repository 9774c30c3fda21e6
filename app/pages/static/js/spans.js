// Which of many spans of steps are there at a step or in a window: sorted by their beginning, with the latest end so far.
//
//   span    0 ├──────────────┤          starts  0 2 3 7     ends so far  5 5 9 9
//           1     ├──┤                  a window [6, 8) needs spans 2 and 3: the first whose latest end so far
//           2       ├────────────┤      reaches 6, up to the last that begins before 8
//           3                ├──┤

/** How many of the ascending `sorted` are at most `value`. O(log n). */
export function atMost(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The latest of the ends so far, ascending. O(n). */
export function latestEnds(last) {
  const latest = new Int32Array(last.length);
  let end = -1;
  for (let i = 0; i < last.length; i++) latest[i] = end = Math.max(end, last[i]);
  return latest;
}

/** Spans [first[i], last[i]], both ends held, by ascending first step. */
export class Spans {
  constructor(first, last) {
    this.first = first;
    this.last = last;
    this.latest = latestEnds(last);
  }

  /** [from, to): indices outside of which no span meets the steps [low, high]; some inside may not either. */
  window(low, high) {
    return [atMost(this.latest, low - 1), atMost(this.first, high)];
  }

  /** Calls `seen(i)` for each span that is there at `step`. */
  at(step, seen) {
    const [from, to] = this.window(step, step);
    for (let i = from; i < to; i++) if (this.last[i] >= step) seen(i);
  }

  /** The indices of the `most` largest spans there at `step`, the largest first; and how many are there. */
  largest(step, bytes, most) {
    const found = [];
    this.at(step, (i) => found.push(i));
    found.sort((a, b) => bytes[b] - bytes[a] || a - b);
    return { largest: found.slice(0, most), count: found.length };
  }
}

/** Ids of the names that contain `text`, capitals or not; null for an empty text. */
export function search(names, text) {
  const sought = text.trim().toLowerCase();
  if (!sought) return null;
  const found = new Set();
  for (let id = 0; id < names.length; id++) if (names[id].toLowerCase().includes(sought)) found.add(id);
  return found;
}
