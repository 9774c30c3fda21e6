// First frame of both charts of a large plan, drawn from the preview in the page (app/render/plan/preview.py) while the
// columns are loading; the charts then draw over it.

import { KIND_INKS, MARGINS as MAP_MARGINS, pixelOfBackground, shades } from "./map.js";
import { edgeOf } from "./raster.js";
import { drawFrame, drawScales, Sheet } from "./sheet.js";
import { chartHeight, drawArea, MARGINS as MEMORY_MARGINS, scales } from "./timeline.js";

const EDGE = 64; // as in preview.py

/** Draws the map's pixels, scaled to the canvas. */
function drawMap(context, sheet, data) {
  const { wide, high, steps, arena_bytes: arena } = data.meta, box = sheet.inside;
  drawScales(context, box, [0, steps.after], [0, arena], ...scales(box, steps.after, arena));
  const background = pixelOfBackground(), { bright } = shades(KIND_INKS);
  const colours = new Uint32Array(256).fill(background);
  for (let tone = 0; tone < 2 * KIND_INKS.length; tone++) {
    colours[tone] = bright[tone & 1][tone >> 1];
    colours[EDGE + tone] = edgeOf(colours[tone], background);
  }
  const image = new ImageData(wide, high), map = data.column("map");
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < map.length; i++) pixels[i] = colours[map[i]];
  const canvas = new OffscreenCanvas(wide, high);
  canvas.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, box.x, box.y, box.wide, box.high);
  drawFrame(context, box);
}

/** Draws memory over steps. */
function drawMemory(context, sheet, data) {
  const { steps, budget_bytes } = data.meta, box = sheet.inside;
  const series = ["before", "after"].map((name) => [name, data.column(name)]);
  const peaks = series.map(([, maxima]) => maxima.reduce((peak, bytes) => Math.max(peak, bytes), 0));
  const { top } = chartHeight(peaks, budget_bytes);
  const count = Math.max(1, steps.before, steps.after), [toX, toY] = scales(box, count, top);
  drawScales(context, box, [0, count], [0, top], toX, toY);
  for (const [name, maxima] of series) drawArea(context, maxima, steps[name], toX, toY, name);
}

/** Shows the preview in the place of both charts. */
export function showPreview(memory, map, data) {
  for (const [section, margins, draw] of [[memory, MEMORY_MARGINS, drawMemory], [map, MAP_MARGINS, drawMap]]) {
    const sheet = new Sheet(section.querySelector(".sheet"), margins, (context) => draw(context, sheet, data), () => {});
    sheet.isStale = true;
    sheet.now();
    sheet.release();
  }
}
