// The address map: what lies where in the arena, and from which step to which. 100,000 rectangles move smoothly.
//
//   bytes ▲ ┌──────┐  ┌────┐       pixels are written by raster.js, all that is in view anew for each frame;
//         │ │  a   ├──┤ a' │       what is pointed at is drawn on a second canvas above
//         │ └──┬───┴──┴────┤
//         │    │     b     │
//         └────┴───────────┴─▶ step

import { grouped, size } from "./format.js";
import { mixed, paint, pixelOf } from "./raster.js";
import { byteTicks, countTicks, moved, zoomed } from "./scale.js";
import { drawScales, ink, label, savePng, Sheet } from "./sheet.js";
import { search, Spans } from "./spans.js";
import { onTheme } from "./theme.js";

export const MARGINS = { left: 76, right: 16, top: 10, bottom: 30 };
const INKS = ["kind-1", "kind-2", "kind-3", "kind-4", "kind-5", "kind-6", "kind-7", "kind-8"];
//: Colours of the kinds of pictures.py, in their order.
export const KIND_INKS = ["kind-2", "kind-6", "kind-6", "kind-5", "kind-1", "kind-4", "kind-8", "kind-3"];
const AGAIN_WORDS = ["made once", "given up and made again later", "made again"];
const AGAIN_INKS = ["kind-6", "kind-1", "kind-2"];
const AWAY_WORDS = ["stays", "copied to the host in between"];
const AWAY_INKS = ["kind-6", "kind-2"];
const WORKSPACE = 7;
const STEP = 1.25; // of one zoom

/** The pixel where nothing lies. */
export const ground = () => pixelOf(ink("raised"));

/** Pixels of these colours: as they are, and where a search is for something else. */
export function shades(names) {
  const plain = Uint32Array.from(names, (name) => pixelOf(ink(name)));
  const paler = (share) => plain.map((pixel) => mixed(pixel, ground(), share));
  // Values take two shades in turn, so that neighbours too thin for an edge can be told apart.
  return { bright: [plain, paler(0.22)], faint: [paler(0.82), paler(0.87)] };
}

export class AddressMap {
  /**
   * @param {HTMLElement} root with canvases, buttons [data-do], a search and an output
   * @param {Columns} data as `memory` of pictures.py packs it
   * @param {(text: string) => void} tell says something to who does not see
   */
  constructor(root, data, tell) {
    this.root = root;
    this.data = data;
    this.tell = tell;
    this.rects = Object.fromEntries(
      ["first", "last", "offset", "bytes", "value", "run", "kind", "again", "away"].map((name) => [name, data.column(name)]),
    );
    this.spans = new Spans(this.rects.first, this.rects.last);
    this.steps = Math.max(1, data.column("after").length);
    this.arena = Math.max(1, data.meta.arena_bytes ?? 1);
    this.view = { x: [0, this.steps], y: [0, this.arena] };
    this.by = "kind";
    this.found = null; // values that the search names; null: none is asked for
    this.place = -1; // of the rectangle found last
    this.chosen = -1; // the rectangle pointed at
    this.step = null; // of the cursor in the other picture
    this.layers = null; // {of: layer per value, names}, once known
    this.pixels = null;
    this.ramp();
    this.sheet = new Sheet(root.querySelector(".sheet"), MARGINS, (to) => this.draw(to), (to) => this.drawAbove(to));
    onTheme(() => {
      this.ramp();
      this.legend();
      this.sheet.stale();
    });
    this.listen();
    this.legend();
    this.sheet.isStale = true;
    this.sheet.now(); // at once, not with the next frame: this is what one waits for
  }

  // ---- colours

  /** Pixels of every colour, and what they are where a search is for something else. */
  ramp() {
    const ramps = { kind: KIND_INKS, again: AGAIN_INKS, away: AWAY_INKS, layer: INKS };
    this.ground = ground();
    this.ramps = Object.fromEntries(Object.entries(ramps).map(([by, names]) => [by, shades(names)]));
  }

  /** Numbers of the colours of all rectangles. */
  tones() {
    if (this.by !== "layer") return this.rects[this.by];
    this.layerTones ??= Uint8Array.from(this.rects.value, (value, i) => {
      const layer = value < 0 ? this.layerOfStep(i) : this.layers.of[value] ?? -1;
      return layer < 0 ? 5 : layer % INKS.length;
    });
    return this.layerTones;
  }

  layerOfStep(i) {
    return this.layers.ofNode[this.data.column("step_node")[this.rects.first[i]]] ?? -1;
  }

  legend() {
    const { kind, again, away } = this.rects;
    const counts = (column, words) => {
      const found = new Uint32Array(words.length);
      for (let i = 0; i < column.length; i++) found[column[i]]++;
      return found;
    };
    const shown = {
      kind: () => keyed(this.data.meta.kinds, KIND_INKS, counts(kind, this.data.meta.kinds)),
      again: () => keyed(AGAIN_WORDS, AGAIN_INKS, counts(again, AGAIN_WORDS)),
      away: () => keyed(AWAY_WORDS, AWAY_INKS, counts(away, AWAY_WORDS)),
      layer: () => this.layers?.names.slice(0, 12).map((name, k) => [name, INKS[k % INKS.length]]) ?? [],
    }[this.by]();
    const list = this.root.querySelector("[data-part=legend]");
    list.replaceChildren(...shown.map(([word, name]) => {
      const entry = document.createElement("li");
      entry.append(Object.assign(document.createElement("span"), { className: `swatch ${name}` }), word);
      return entry;
    }));
    const more = (this.by === "layer" && this.layers?.names.length > 12) ? this.layers.names.length - 12 : 0;
    if (more) list.append(Object.assign(document.createElement("li"), { textContent: `and ${more} more, in turn` }));
    if (this.by === "away" && !away.includes(1))
      list.append(Object.assign(document.createElement("li"), { textContent: "(this plan copies nothing to the host)" }));
  }

  /** Layers by number, once the graph is there. */
  setLayers(of, ofNode, names) {
    this.layers = { of, ofNode, names };
    this.layerTones = null;
    const option = this.root.querySelector("option[value=layer]");
    if (option) option.disabled = false;
    this.sheet.moved();
  }

  // ---- drawing

  draw(context) {
    const box = this.sheet.inside, dense = this.sheet.dense;
    const wide = Math.max(1, Math.round(box.wide * dense)), high = Math.max(1, Math.round(box.high * dense));
    if (!this.pixels || this.pixels.width !== wide || this.pixels.height !== high) {
      this.pixels = new ImageData(wide, high);
      this.words = new Uint32Array(this.pixels.data.buffer);
    }
    this.words.fill(this.ground);
    const { x, y } = this.view, { bright, faint } = this.ramps[this.by], value = this.rects.value, found = this.found;
    const tones = this.tones();
    const colour = found
      ? (i) => (found.has(value[i]) ? bright : faint)[value[i] & 1][tones[i]]
      : (i) => bright[value[i] & 1][tones[i]];
    const range = this.spans.window(Math.floor(x[0]), Math.ceil(x[1]));
    paint({ pixels: this.words, wide, high }, this.rects, range, this.view, colour, this.ground);
    if (found) this.paintAgain(wide, high, range, colour); // one pixel of what is sought is not hidden by its neighbours
    drawScales(
      context, box, countTicks(x[0], x[1], box.wide / 90), byteTicks(y[0], y[1], Math.max(2, box.high / 44)),
      (step) => this.toX(step), (bytes) => this.toY(bytes),
    );
    context.putImageData(this.pixels, Math.round(box.x * dense), Math.round(box.y * dense));
    context.strokeStyle = ink("line");
    context.strokeRect(box.x - 0.5, box.y - 0.5, box.wide + 1, box.high + 1);
  }

  paintAgain(wide, high, [from, to], colour) {
    for (let i = from; i < to; i++)
      if (this.found.has(this.rects.value[i]))
        paint({ pixels: this.words, wide, high }, this.rects, [i, i + 1], this.view, colour, this.ground);
  }

  toX(step) {
    const { x, wide } = this.sheet.inside, [low, high] = this.view.x;
    return x + (wide * (step - low)) / (high - low);
  }

  toY(bytes) {
    const { y, high } = this.sheet.inside, [low, top] = this.view.y;
    return y + high * (1 - (bytes - low) / (top - low));
  }

  drawAbove(context) {
    const box = this.sheet.inside;
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.wide, box.high);
    context.clip();
    context.strokeStyle = ink("text");
    if (this.step !== null) {
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(this.toX(this.step + 0.5), box.y);
      context.lineTo(this.toX(this.step + 0.5), box.y + box.high);
      context.stroke();
      context.setLineDash([]);
    }
    if (this.chosen >= 0) {
      const { first, last, offset, bytes } = this.rects, i = this.chosen;
      const left = this.toX(first[i]), top = this.toY(offset[i] + bytes[i]);
      const wide = Math.max(2, this.toX(last[i] + 1) - left), high = Math.max(2, this.toY(offset[i]) - top);
      context.lineWidth = 2;
      context.strokeRect(left, top, wide, high);
      const x = Math.min(box.x + box.wide - 8, Math.max(box.x + 8, left + wide / 2));
      const above = top - 12 > box.y + 8 ? top - 12 : Math.min(box.y + box.high - 10, top + high + 12);
      const text = this.nameOf(i), half = context.measureText(text).width / 2 + 4;
      label(context, text, Math.max(box.x + half, Math.min(box.x + box.wide - half, x)), above, "center");
    }
    context.restore();
  }

  // ---- what is what

  nameOf(i) {
    const value = this.rects.value[i];
    if (!this.data.has("values")) return "(names are being read)";
    if (value >= 0) return this.data.column("values")[value];
    const node = this.data.column("step_node")[this.rects.first[i]];
    return `workspace of ${node < 0 ? "a task" : this.data.column("nodes")[node]}`;
  }

  /** Rectangle i in words. */
  describe(i) {
    const { first, last, offset, bytes, run, kind, again, value } = this.rects;
    const steps = first[i] === last[i] ? `step ${first[i]}` : `steps ${first[i]} to ${last[i]}`;
    const parts = [`${this.nameOf(i)}${run[i] ? `, run ${run[i] + 1}` : ""}: ${size(bytes[i])} at ${size(offset[i])}`, steps];
    parts.push(this.data.meta.kinds[kind[i]]);
    if (kind[i] !== WORKSPACE) parts.push(AGAIN_WORDS[again[i]]);
    const layer = this.layers && (value[i] < 0 ? this.layerOfStep(i) : this.layers.of[value[i]] ?? -1);
    if (layer !== null && layer >= 0) parts.push(this.layers.names[layer]);
    return parts.join("; ");
  }

  /** The rectangle at a step and a byte; -1: none. */
  at(step, byte) {
    const { offset, bytes } = this.rects;
    let found = -1;
    this.spans.at(Math.floor(step), (i) => {
      if (offset[i] <= byte && byte < offset[i] + bytes[i]) found = i;
    });
    return found;
  }

  choose(i, aloud = false) {
    if (i === this.chosen) return;
    this.chosen = i;
    this.root.querySelector("[data-part=said]").textContent = i < 0 ? "" : this.describe(i);
    if (aloud && i >= 0) this.tell(this.describe(i));
    this.sheet.moved();
  }

  /** The rectangle that a key leads to: in time to the left or right, in addresses above or below. */
  beside(key) {
    const { first, last, offset, bytes } = this.rects, i = this.chosen;
    if (i < 0) return this.at((this.view.x[0] + this.view.x[1]) / 2, (this.view.y[0] + this.view.y[1]) / 4);
    const middle = offset[i] + bytes[i] / 2, step = Math.floor((first[i] + last[i]) / 2);
    if (key === "ArrowUp" || key === "ArrowDown") {
      const sign = key === "ArrowUp" ? 1 : -1;
      let best = -1;
      this.spans.at(step, (k) => {
        if (k !== i && sign * (offset[k] - offset[i]) > 0)
          if (best < 0 || sign * (offset[k] - offset[best]) < 0) best = k;
      });
      return best < 0 ? i : best;
    }
    const right = key === "ArrowRight";
    for (let k = right ? last[i] + 1 : first[i] - 1; k >= 0 && k < this.steps; k += right ? 1 : -1) {
      const found = this.at(k, middle);
      if (found >= 0) return found;
    }
    return i;
  }

  // ---- moving

  /** Zooms by a factor, below 1 inwards, about shares of the picture's width and height. */
  zoom(factor, across = 0.5, up = 0.5) {
    const { x, y } = this.view;
    this.view = {
      x: zoomed(x, factor, x[0] + across * (x[1] - x[0]), this.steps, Math.min(this.steps, 4)),
      y: zoomed(y, factor, y[0] + up * (y[1] - y[0]), this.arena, Math.min(this.arena, 256)),
    };
    this.sheet.stale();
  }

  /** Moves by shares of the width and height in view. */
  pan(across, up) {
    const { x, y } = this.view;
    this.view = { x: moved(x, across * (x[1] - x[0]), this.steps), y: moved(y, up * (y[1] - y[0]), this.arena) };
    this.sheet.stale();
  }

  whole() {
    this.view = { x: [0, this.steps], y: [0, this.arena] };
    this.sheet.stale();
  }

  /** Shows a rectangle with room around it. */
  goTo(i) {
    const { first, last, offset, bytes } = this.rects;
    const around = (low, high, whole, least) => {
      const wide = Math.min(whole, Math.max(least, (high - low) * 6));
      return moved([(low + high - wide) / 2, (low + high + wide) / 2], 0, whole);
    };
    this.view = {
      x: around(first[i], last[i] + 1, this.steps, Math.min(this.steps, 40)),
      y: around(offset[i], offset[i] + bytes[i], this.arena, Math.min(this.arena, 4096)),
    };
    this.choose(i);
    this.sheet.stale();
  }

  /** Marks what has the text in its name. */
  seek(text) {
    if (!this.data.has("values")) return;
    const found = search(this.data.column("values"), text);
    const value = this.rects.value;
    this.found = found;
    this.place = -1;
    this.hits = found ? [...value.keys()].filter((i) => found.has(value[i])) : [];
    const said = this.root.querySelector("[data-part=found]");
    said.textContent = !found ? "" : this.hits.length
      ? `${grouped(this.hits.length)} rectangles; Enter goes to the next` : "no name has this in it";
    this.sheet.stale();
  }

  nextHit(back) {
    if (!this.hits?.length) return;
    this.place = (this.place + (back ? -1 : 1) + this.hits.length) % this.hits.length;
    this.goTo(this.hits[this.place]);
    this.tell(this.describe(this.hits[this.place]));
  }

  // ---- hearing

  listen() {
    const { above } = this.sheet, pointers = new Map();
    let pinched = 0;
    above.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(STEP ** Math.sign(event.deltaY), ...this.sheet.shares(event));
    }, { passive: false });
    above.addEventListener("pointerdown", (event) => {
      above.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, this.sheet.shares(event));
      pinched = spread(pointers);
    });
    above.addEventListener("pointermove", (event) => this.pointed(event, pointers, (now) => {
      const before = pinched;
      pinched = now;
      return before;
    }));
    for (const name of ["pointerup", "pointercancel"])
      above.addEventListener(name, (event) => {
        pointers.delete(event.pointerId);
        pinched = spread(pointers);
      });
    above.addEventListener("pointerleave", () => document.activeElement !== above && this.choose(-1));
    above.addEventListener("dblclick", (event) => this.zoom(1 / STEP ** 3, ...this.sheet.shares(event)));
    above.addEventListener("keydown", (event) => this.key(event));
    this.listenToTools();
  }

  /** A pointer has moved: one that is down moves the map, two zoom it, none points at something. */
  pointed(event, pointers, pinch) {
    const now = this.sheet.shares(event), before = pointers.get(event.pointerId);
    if (!before) {
      const [x, y] = [this.view.x, this.view.y];
      this.choose(now.some((share) => share < 0 || share > 1)
        ? -1 : this.at(x[0] + now[0] * (x[1] - x[0]), y[0] + now[1] * (y[1] - y[0])));
      return;
    }
    pointers.set(event.pointerId, now);
    if (pointers.size === 1) {
      this.pan(before[0] - now[0], before[1] - now[1]);
    } else {
      const after = spread(pointers), earlier = pinch(after);
      const [one, other] = [...pointers.values()];
      if (earlier && after) this.zoom(earlier / after, (one[0] + other[0]) / 2, (one[1] + other[1]) / 2);
    }
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const arrows = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.15], ArrowDown: [0, -0.15] };
    if (arrows[event.key]) {
      if (event.shiftKey) this.pan(...arrows[event.key]);
      else this.choose(this.beside(event.key), true);
    } else if (event.key === "+" || event.key === "=") this.zoom(1 / STEP);
    else if (event.key === "-") this.zoom(STEP);
    else if (event.key === "0") this.whole();
    else if (event.key === "Enter" && this.chosen >= 0) this.goTo(this.chosen);
    else if (event.key === "Escape") this.choose(-1);
    else return;
    event.preventDefault();
  }

  listenToTools() {
    const part = (name) => this.root.querySelector(`[data-do=${name}]`);
    part("in").addEventListener("click", () => this.zoom(1 / STEP ** 2));
    part("out").addEventListener("click", () => this.zoom(STEP ** 2));
    part("whole").addEventListener("click", () => this.whole());
    part("png")?.addEventListener("click", (event) => savePng(this.sheet, event.currentTarget.dataset.name));
    part("by").addEventListener("change", (event) => {
      this.by = event.currentTarget.value;
      this.legend();
      this.sheet.stale();
    });
    part("search").addEventListener("input", (event) => this.seek(event.currentTarget.value));
    part("search").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.nextHit(event.shiftKey);
    });
  }
}

/** How far two pointers are apart; 0 for fewer. */
function spread(pointers) {
  if (pointers.size < 2) return 0;
  const [one, other] = [...pointers.values()];
  return Math.hypot(one[0] - other[0], one[1] - other[1]);
}

/** [word, colour] of what there is of; kinds of one colour share an entry. */
function keyed(words, inks, counts) {
  const found = new Map();
  words.forEach((word, k) => {
    if (counts[k]) found.set(inks[k], found.has(inks[k]) ? `${found.get(inks[k])}, ${word}` : word);
  });
  return [...found].map(([name, word]) => [word, name]);
}
