// Paints rectangles directly into pixels. They do not overlap, so a frame writes each pixel about once: 100,000 take a few
// milliseconds without a GPU; as many canvas calls take a hundred.

/** A CSS colour `rgb(...)` as a pixel, little endian ABGR. */
export function pixelOf(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).map(Number);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** Interpolation of two pixels with weight `share` of the second. */
export function mixed(one, other, share) {
  let result = 255 << 24;
  for (const shift of [0, 8, 16]) {
    const a = (one >>> shift) & 255, b = (other >>> shift) & 255;
    result |= Math.round(a + (b - a) * share) << shift;
  }
  return result >>> 0;
}

/** Pixel of a rectangle's edge, to distinguish neighbours. */
export const edgeOf = (fill, background) => mixed(fill, background, 0.55);

/**
 * Paints the rectangles in view.
 *
 * @param {{pixels: Uint32Array, wide: number, high: number}} target row by row from the top
 * @param {{first, last, offset, bytes}} rects columns; a rectangle is [first, last + 1) x [offset, offset + bytes)
 * @param {[number, number]} range of indices that may be in view
 * @param {{x: [number, number], y: [number, number]}} view steps from left to right, bytes from bottom to top
 * @param {(i: number) => number} colour of rectangle i, as a pixel
 * @param {number} background pixel mixed into the edges
 */
export function paint({ pixels, wide, high }, rects, [from, to], { x, y }, colour, background) {
  const { first, last, offset, bytes } = rects;
  const across = wide / (x[1] - x[0]), up = high / (y[1] - y[0]);
  for (let i = from; i < to; i++) {
    if (last[i] + 1 <= x[0] || first[i] >= x[1]) continue;
    const low = offset[i], top = low + bytes[i];
    if (top <= y[0] || low >= y[1]) continue;
    let left = Math.round((first[i] - x[0]) * across), right = Math.round((last[i] + 1 - x[0]) * across);
    let above = high - Math.round((top - y[0]) * up), below = high - Math.round((low - y[0]) * up);
    if (right <= left) right = left + 1;
    if (below <= above) above = below - 1;
    const edged = right - left >= 4 && below - above >= 4;
    const fill = colour(i), edge = edged ? edgeOf(fill, background) : fill;
    const shownRight = right <= wide, shownAbove = above >= 0;
    if (left < 0) left = 0;
    if (right > wide) right = wide;
    if (above < 0) above = 0;
    if (below > high) below = high;
    for (let row = above; row < below; row++) {
      const begin = row * wide + left, end = row * wide + right;
      if (end - begin < 16) for (let k = begin; k < end; k++) pixels[k] = fill;
      else pixels.fill(fill, begin, end);
      if (edged && shownRight) pixels[end - 1] = edge;
    }
    if (edged && shownAbove && above < below) pixels.fill(edge, above * wide + left, above * wide + right);
  }
}
