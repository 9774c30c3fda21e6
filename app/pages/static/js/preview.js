// First frame of both charts of a large plan, drawn from the preview in the page (app/render/plan/preview.py) while the
// columns are loading; the charts then draw over it.

import { KIND_INKS, MARGINS as MAP_MARGINS, pixelOfBackground, shades } from "./map.js";
import { edgeOf } from "./raster.js";
import { drawFrame, drawScales, Sheet } from "./sheet.js";
import { chartHeight, MARGINS as MEMORY_MARGINS, panelBoxes, scales } from "./timeline.js";
import { drawAxes, drawLine } from "./timeline_parts.js";

const EDGE = 64; // as in preview.py

/** Draws the map's pixels, scaled to the canvas. */
function drawMap(context, sheet, data) {
  const { wide, high, steps, arena_bytes: arena } = data.meta, box = sheet.inside;
  drawScales(context, box, [0, steps.after], [0, arena], ...scales(box, [0, steps.after], arena));
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

/** Draws memory over steps, one panel for each series. */
function drawMemory(context, sheet, data) {
  const { steps, budget_bytes } = data.meta, names = ["before", "after"];
  const peaks = names.map((name) => data.column(name).reduce((peak, bytes) => Math.max(peak, bytes), 0));
  const { top } = chartHeight(peaks, budget_bytes), view = [0, Math.max(1, steps.before, steps.after)];
  panelBoxes(sheet.inside).forEach((box, k) => {
    const maxima = data.column(names[k]), columns = Math.max(1, Math.round(box.wide)), [toX, toY] = scales(box, view, top);
    const picked = Int32Array.from({ length: columns }, (_, column) => {
      const part = Math.floor((column / columns) * (view[1] / Math.max(1, steps[names[k]])) * maxima.length);
      return part < maxima.length ? part : -1;
    });
    drawAxes(context, box, view, top, toX, toY, false, k === 1);
    drawLine(context, box, picked, maxima, toY, names[k], true);
  });
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
