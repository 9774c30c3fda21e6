// Address map: one rectangle per buffer, steps by addresses in the arena. Fast enough for 100,000 rectangles.
//
//   bytes ▲ ┌──────┐  ┌────┐       raster.js repaints all rectangles in view for each frame;
//         │ │  a   ├──┤ a' │       the selection is drawn on an overlay canvas
//         │ └──┬───┴──┴────┤
//         │    │     b     │
//         └────┴───────────┴─▶ step

import { counted, size } from "./format.js";
import { mixed, paint, pixelOf } from "./raster.js";
import { moved, zoomed } from "./scale.js";
import { drawFrame, drawScales, ink, label, savePng, Sheet } from "./sheet.js";
import { search, Spans } from "./spans.js";
import { onTheme } from "./theme.js";

export const MARGINS = { left: 76, right: 16, top: 10, bottom: 30 };
const INKS = ["kind-1", "kind-2", "kind-3", "kind-4", "kind-5", "kind-6", "kind-7", "kind-8"];
//: Colours of KINDS in app/render/plan/columns.py, in the same order.
export const KIND_INKS = ["kind-2", "kind-6", "kind-6", "kind-5", "kind-1", "kind-4", "kind-8", "kind-3"];
export const RECOMPUTED = ["not recomputed", "evicted, recomputed later", "recomputed"]; // by the column `again`
const RECOMPUTED_INKS = ["kind-6", "kind-1", "recompute"];
const OFFLOADED = ["not offloaded", "offloaded to the host"]; // by the column `away`
const OFFLOADED_INKS = ["kind-6", "kind-2"];
const WORKSPACE = 7; // index in KINDS
const ZOOM_STEP = 1.25;
const MAX_LEGEND_LAYERS = 12;

/** Pixel of free space. */
export const pixelOfBackground = () => pixelOf(ink("raised"));

/** Pixels of the colours: bright, and faint for rectangles that do not match a search. */
export function shades(names) {
  const plain = Uint32Array.from(names, (name) => pixelOf(ink(name)));
  const paler = (share) => plain.map((pixel) => mixed(pixel, pixelOfBackground(), share));
  // Odd and even values have different shades, to distinguish neighbours too thin for an edge.
  return { bright: [plain, paler(0.22)], faint: [paler(0.82), paler(0.87)] };
}

export class AddressMap {
  /**
   * @param {HTMLElement} root with canvases, buttons [data-do] and a search field
   * @param {Columns} data packed by `memory` of app/render/plan/columns.py
   * @param {(text: string) => void} announce text for screen readers
   */
  constructor(root, data, announce) {
    this.root = root;
    this.data = data;
    this.announce = announce;
    this.rects = Object.fromEntries(
      ["first", "last", "offset", "bytes", "value", "run", "kind", "again", "away"].map((name) => [name, data.column(name)]),
    );
    this.spans = new Spans(this.rects.first, this.rects.last);
    this.steps = Math.max(1, data.column("after").length);
    this.arena = Math.max(1, data.meta.arena_bytes ?? 1);
    this.view = { x: [0, this.steps], y: [0, this.arena] };
    this.by = "kind";
    this.matches = null; // ids of values that match the search; null: no search
    this.place = -1; // index of the current match
    this.chosen = -1; // selected rectangle; -1: none
    this.step = null; // cursor of the memory chart
    this.layers = null; // {of: layer per value, ofNode, names}; null until the graph is loaded
    this.pixels = null;
    this.mixColours();
    this.sheet = new Sheet(root.querySelector(".sheet"), MARGINS, (to) => this.draw(to), (to) => this.drawAbove(to));
    onTheme(() => {
      this.mixColours();
      this.legend();
      this.sheet.stale();
    });
    this.listen();
    this.legend();
    this.sheet.isStale = true;
    this.sheet.now(); // at once: the next frame would delay the first drawing
  }

  // ---- colours

  /** Pixels of every colour scheme. */
  mixColours() {
    const inks = { kind: KIND_INKS, again: RECOMPUTED_INKS, away: OFFLOADED_INKS, layer: INKS };
    this.background = pixelOfBackground();
    this.schemes = Object.fromEntries(Object.entries(inks).map(([by, names]) => [by, shades(names)]));
  }

  /** Index of each rectangle's colour in the scheme. */
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
      const totals = new Uint32Array(words.length);
      for (let i = 0; i < column.length; i++) totals[column[i]]++;
      return totals;
    };
    const shown = {
      kind: () => keyed(this.data.meta.kinds, KIND_INKS, counts(kind, this.data.meta.kinds)),
      again: () => keyed(RECOMPUTED, RECOMPUTED_INKS, counts(again, RECOMPUTED)),
      away: () => keyed(OFFLOADED, OFFLOADED_INKS, counts(away, OFFLOADED)),
      layer: () => this.layers?.names.slice(0, MAX_LEGEND_LAYERS).map((name, k) => [name, INKS[k % INKS.length]]) ?? [],
    }[this.by]();
    const list = this.root.querySelector("[data-part=legend]");
    list.replaceChildren(...shown.map(([word, name]) => {
      const entry = document.createElement("li");
      entry.append(Object.assign(document.createElement("span"), { className: `swatch ${name}` }), word);
      return entry;
    }));
    const note = (textContent) => list.append(Object.assign(document.createElement("li"), { textContent }));
    const more = this.by === "layer" ? (this.layers?.names.length ?? 0) - MAX_LEGEND_LAYERS : 0;
    if (more > 0) note(`and ${more} more, colours repeat`);
    if (this.by === "away" && !away.includes(1)) note("(this plan offloads nothing)");
  }

  /** Sets the layers, and enables colouring by layer. */
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
    this.words.fill(this.background);
    const { x, y } = this.view, { bright, faint } = this.schemes[this.by], value = this.rects.value, matches = this.matches;
    const tones = this.tones();
    const colour = matches
      ? (i) => (matches.has(value[i]) ? bright : faint)[value[i] & 1][tones[i]]
      : (i) => bright[value[i] & 1][tones[i]];
    const range = this.spans.window(Math.floor(x[0]), Math.ceil(x[1]));
    paint({ pixels: this.words, wide, high }, this.rects, range, this.view, colour, this.background);
    if (matches) this.paintMatches(wide, high, range, colour); // last, so that neighbours do not hide small matches
    drawScales(context, box, x, y, (step) => this.toX(step), (bytes) => this.toY(bytes));
    context.putImageData(this.pixels, Math.round(box.x * dense), Math.round(box.y * dense));
    drawFrame(context, box);
  }

  paintMatches(wide, high, [from, to], colour) {
    for (let i = from; i < to; i++)
      if (this.matches.has(this.rects.value[i]))
        paint({ pixels: this.words, wide, high }, this.rects, [i, i + 1], this.view, colour, this.background);
  }

  toX(step) {
    const { x, wide } = this.sheet.inside, [low, high] = this.view.x;
    return x + (wide * (step - low)) / (high - low);
  }

  toY(bytes) {
    const { y, high } = this.sheet.inside, [low, top] = this.view.y;
    return y + high * (1 - (bytes - low) / (top - low));
  }

  /** Shows the cursor of the memory chart; null: none. */
  showStep(step) {
    this.step = step;
    this.sheet.moved();
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

  // ---- rectangles

  nameOf(i) {
    const value = this.rects.value[i];
    if (!this.data.has("values")) return "(loading names)";
    if (value >= 0) return this.data.column("values")[value];
    const node = this.data.column("step_node")[this.rects.first[i]];
    return `workspace of ${node < 0 ? "a task" : this.data.column("nodes")[node]}`;
  }

  /** Rectangle i as text. */
  describe(i) {
    const { first, last, offset, bytes, run, kind, again, value } = this.rects;
    const steps = first[i] === last[i] ? `step ${first[i]}` : `steps ${first[i]} to ${last[i]}`;
    const parts = [`${this.nameOf(i)}${run[i] ? `, run ${run[i] + 1}` : ""}: ${size(bytes[i])} at ${size(offset[i])}`, steps];
    parts.push(this.data.meta.kinds[kind[i]]);
    if (kind[i] !== WORKSPACE) parts.push(RECOMPUTED[again[i]]);
    const layer = this.layers && (value[i] < 0 ? this.layerOfStep(i) : this.layers.of[value[i]] ?? -1);
    if (layer !== null && layer >= 0) parts.push(this.layers.names[layer]);
    return parts.join("; ");
  }

  /** The rectangle at a step and address; -1: none. */
  at(step, byte) {
    const { offset, bytes } = this.rects;
    let hit = -1;
    this.spans.at(Math.floor(step), (i) => {
      if (offset[i] <= byte && byte < offset[i] + bytes[i]) hit = i;
    });
    return hit;
  }

  choose(i, isAnnounced = false) {
    if (i === this.chosen) return;
    this.chosen = i;
    this.root.querySelector("[data-part=selection]").textContent = i < 0 ? "" : this.describe(i);
    if (isAnnounced && i >= 0) this.announce(this.describe(i));
    this.sheet.moved();
  }

  /** The neighbour of the selection: previous or next in time, lower or higher in addresses. */
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
      const hit = this.at(k, middle);
      if (hit >= 0) return hit;
    }
    return i;
  }

  // ---- view

  /** Scales the view by a factor (below 1: zoom in) about a point given as fractions of width and height. */
  zoom(factor, across = 0.5, up = 0.5) {
    const { x, y } = this.view;
    this.view = {
      x: zoomed(x, factor, x[0] + across * (x[1] - x[0]), this.steps, Math.min(this.steps, 4)),
      y: zoomed(y, factor, y[0] + up * (y[1] - y[0]), this.arena, Math.min(this.arena, 256)),
    };
    this.sheet.stale();
  }

  /** Moves the view by fractions of its width and height. */
  pan(across, up) {
    const { x, y } = this.view;
    this.view = { x: moved(x, across * (x[1] - x[0]), this.steps), y: moved(y, up * (y[1] - y[0]), this.arena) };
    this.sheet.stale();
  }

  whole() {
    this.view = { x: [0, this.steps], y: [0, this.arena] };
    this.sheet.stale();
  }

  /** Zooms to a rectangle and selects it. */
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

  /** Marks values whose name contains the text. */
  markMatches(text) {
    if (!this.data.has("values")) return;
    const matches = search(this.data.column("values"), text), value = this.rects.value;
    this.matches = matches;
    this.place = -1;
    this.hits = matches ? [...value.keys()].filter((i) => matches.has(value[i])) : [];
    this.root.querySelector("[data-part=matches]").textContent = !matches ? "" : this.hits.length
      ? `${counted(this.hits.length, "rectangle")}; press Enter for the next` : "No names match.";
    this.sheet.stale();
  }

  nextHit(isBackward) {
    if (!this.hits?.length) return;
    this.place = (this.place + (isBackward ? -1 : 1) + this.hits.length) % this.hits.length;
    this.goTo(this.hits[this.place]);
    this.announce(this.describe(this.hits[this.place]));
  }

  // ---- input

  listen() {
    const { above } = this.sheet, pointers = new Map();
    let pinched = 0;
    above.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(ZOOM_STEP ** Math.sign(event.deltaY), ...this.sheet.shares(event));
    }, { passive: false });
    above.addEventListener("pointerdown", (event) => {
      above.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, this.sheet.shares(event));
      pinched = spread(pointers);
    });
    above.addEventListener("pointermove", (event) => this.onPointerMove(event, pointers, (now) => {
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
    above.addEventListener("dblclick", (event) => this.zoom(1 / ZOOM_STEP ** 3, ...this.sheet.shares(event)));
    above.addEventListener("keydown", (event) => this.key(event));
    this.listenToTools();
  }

  /** Pointer moved: selects a rectangle; with one pointer down moves the map, with two zooms it. */
  onPointerMove(event, pointers, pinch) {
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
    } else if (event.key === "+" || event.key === "=") this.zoom(1 / ZOOM_STEP);
    else if (event.key === "-") this.zoom(ZOOM_STEP);
    else if (event.key === "0") this.whole();
    else if (event.key === "Enter" && this.chosen >= 0) this.goTo(this.chosen);
    else if (event.key === "Escape") this.choose(-1);
    else return;
    event.preventDefault();
  }

  listenToTools() {
    const part = (name) => this.root.querySelector(`[data-do=${name}]`);
    part("in").addEventListener("click", () => this.zoom(1 / ZOOM_STEP ** 2));
    part("out").addEventListener("click", () => this.zoom(ZOOM_STEP ** 2));
    part("whole").addEventListener("click", () => this.whole());
    part("png")?.addEventListener("click", (event) => savePng(this.sheet, event.currentTarget.dataset.name));
    part("by").addEventListener("change", (event) => {
      this.by = event.currentTarget.value;
      this.legend();
      this.sheet.stale();
    });
    part("search").addEventListener("input", (event) => this.markMatches(event.currentTarget.value));
    part("search").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.nextHit(event.shiftKey);
    });
  }
}

/** Distance between two pointers; 0 with fewer. */
function spread(pointers) {
  if (pointers.size < 2) return 0;
  const [one, other] = [...pointers.values()];
  return Math.hypot(one[0] - other[0], one[1] - other[1]);
}

/** Legend entries [label, colour] of what occurs; labels of one colour share an entry. */
function keyed(words, inks, counts) {
  const labels = new Map();
  words.forEach((word, k) => {
    if (counts[k]) labels.set(inks[k], labels.has(inks[k]) ? `${labels.get(inks[k])}, ${word}` : word);
  });
  return [...labels].map(([name, word]) => [word, name]);
}
