// The first frame of both pictures of a large plan, from what the service drew when the plan was made: shown while the
// columns are on their way, and drawn over by the pictures themselves.

import { ground, KIND_INKS, MARGINS as OF_MAP, shades } from "./map.js";
import { edgeOf } from "./raster.js";
import { byteTicks, countTicks } from "./scale.js";
import { drawScales, ink, Sheet } from "./sheet.js";
import { drawArea, MARGINS as OF_MEMORY, scales, topOf } from "./timeline.js";

const EDGE = 64; // as sketch.py has it

/** Draws the map's pixels, scaled to the size it has here. */
function drawMap(context, sheet, data) {
  const { wide, high, steps, arena_bytes: arena } = data.meta, box = sheet.inside;
  const [toX, toY] = scales(box, steps.after, arena);
  drawScales(
    context, box, countTicks(0, steps.after, box.wide / 90), byteTicks(0, arena, Math.max(2, box.high / 44)), toX, toY,
  );
  const { bright } = shades(KIND_INKS), colours = new Uint32Array(256).fill(ground());
  for (let tone = 0; tone < 2 * KIND_INKS.length; tone++) {
    colours[tone] = bright[tone & 1][tone >> 1];
    colours[EDGE + tone] = edgeOf(colours[tone], ground());
  }
  const picture = new ImageData(wide, high), map = data.column("map");
  const pixels = new Uint32Array(picture.data.buffer);
  for (let i = 0; i < map.length; i++) pixels[i] = colours[map[i]];
  const small = new OffscreenCanvas(wide, high);
  small.getContext("2d").putImageData(picture, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, box.x, box.y, box.wide, box.high);
  context.strokeStyle = ink("line");
  context.strokeRect(box.x - 0.5, box.y - 0.5, box.wide + 1, box.high + 1);
}

/** Draws the lines of memory over steps. */
function drawMemory(context, sheet, data) {
  const { steps, budget_bytes } = data.meta, box = sheet.inside;
  const lines = ["before", "after"].map((name) => [name, data.column(name)]);
  const { top } = topOf(lines.map(([, line]) => line.reduce((most, bytes) => Math.max(most, bytes), 0)), budget_bytes);
  const count = Math.max(1, steps.before, steps.after), [toX, toY] = scales(box, count, top);
  drawScales(
    context, box, countTicks(0, count, box.wide / 90), byteTicks(0, top, Math.max(2, box.high / 44)), toX, toY,
  );
  for (const [name, line] of lines) drawArea(context, line, steps[name], toX, toY, name);
}

/** Shows the sketch in the places of the pictures that will follow. */
export function showSketch(memory, map, data) {
  for (const [room, margins, draw] of [[memory, OF_MEMORY, drawMemory], [map, OF_MAP, drawMap]]) {
    const sheet = new Sheet(room.querySelector(".sheet"), margins, (context) => draw(context, sheet, data), () => {});
    sheet.isStale = true;
    sheet.now();
    sheet.end();
  }
}
