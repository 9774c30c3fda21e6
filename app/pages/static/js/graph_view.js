// The whole graph on a canvas: pan, zoom, and a search that jumps. The forward pass goes down on the left, the backward
// pass up on the right, as in the drawing of a block (drawing.js).

import { PHASES, placed } from "./drawing.js";
import { grouped, listed, runsInWords, seconds, size } from "./format.js";
import { ink, Sheet } from "./sheet.js";
import { onTheme } from "./theme.js";

const MAX_NODES = 20_000; // more are not laid out; blocks show them
const WIDE = 132, HIGH = 30, ACROSS = 148, DOWN = 46; // of a node and of a place, in units of the drawing
const LABEL_SCALE = 0.5, EDGE_SCALE = 0.06, CROSS_SCALE = 0.3; // pixels per unit from which names, reads, and reads of
// the other pass are drawn
const ZOOM_STEP = 1.3, MAX_SCALE = 2, MIN_DRAG = 4;
const PHASE_INKS = ["kind-1", "kind-4", "kind-3"];

/** Whether a graph of so many nodes is laid out. */
export const isDrawable = (nodes) => nodes > 0 && nodes <= MAX_NODES;

export class GraphView {
  /** @param {(n: number) => string} reason reason for recomputing node n, empty if it runs once */
  constructor(root, data, named, reason) {
    Object.assign(this, { root, data, named, reason, chosen: -1, hit: -1 });
    const [pointer, read, phase] = data.list("read_pointer", "read_node", "phase"), count = phase.length;
    this.edges = [];
    for (let n = 0; n < count; n++)
      for (let k = pointer[n]; k < pointer[n + 1]; k++) if (read[k] >= 0) this.edges.push([read[k], n]);
    const { place, rows, columns, forward } = placed([...Array(count).keys()], this.edges, (n) => phase[n] !== 0);
    this.x = Float64Array.from({ length: count }, (_, n) => (place.get(n).column + (place.get(n).column >= forward && forward ? 1 : 0)) * ACROSS);
    this.y = Float64Array.from({ length: count }, (_, n) => place.get(n).row * DOWN);
    this.whole = [(columns + 1) * ACROSS, rows * DOWN];
    const margins = { left: 0, right: 0, top: 0, bottom: 0 };
    this.sheet = new Sheet(root.querySelector(".sheet"), margins, (context) => this.draw(context), () => {});
    this.reset();
    this.listen();
    onTheme(() => this.sheet.stale());
  }

  /** Shows all of the graph, or its upper part where that would be too small to see. */
  reset() {
    const [wide, high] = this.whole;
    this.scale = Math.min(1, Math.max(this.sheet.wide / wide, Math.min(this.sheet.wide / wide, this.sheet.high / high), 0.01));
    this.at = [-(this.sheet.wide / this.scale - wide) / 2, -8 / this.scale]; // unit at the upper left corner
    this.sheet.stale();
  }

  listen() {
    const { above } = this.sheet, part = (name) => this.root.querySelector(`[data-do=${name}]`);
    let held = null;
    above.addEventListener("pointerdown", (event) => {
      above.setPointerCapture(event.pointerId);
      held = { x: event.clientX, y: event.clientY, at: this.at, isMoved: false };
    });
    above.addEventListener("pointermove", (event) => {
      if (!held) return;
      const dx = event.clientX - held.x, dy = event.clientY - held.y;
      if (!(held.isMoved ||= Math.hypot(dx, dy) > MIN_DRAG)) return;
      this.at = [held.at[0] - dx / this.scale, held.at[1] - dy / this.scale];
      this.sheet.stale();
    });
    above.addEventListener("pointerup", (event) => {
      if (held && !held.isMoved) this.choose(this.nodeAt(event));
      held = null;
    });
    above.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== above) return;
      event.preventDefault();
      const box = above.getBoundingClientRect();
      this.zoom(event.deltaY > 0 ? 1 / ZOOM_STEP : ZOOM_STEP, [event.clientX - box.left, event.clientY - box.top]);
    }, { passive: false });
    above.addEventListener("keydown", (event) => this.key(event));
    part("in").addEventListener("click", () => this.zoom(ZOOM_STEP ** 2));
    part("out").addEventListener("click", () => this.zoom(1 / ZOOM_STEP ** 2));
    part("whole").addEventListener("click", () => this.reset());
    part("jump").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.jump(event.currentTarget.value.trim().toLowerCase(), event.shiftKey ? -1 : 1);
    });
  }

  key(event) {
    const far = 80 / this.scale;
    const by = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] }[event.key];
    if (by) this.at = [this.at[0] + by[0], this.at[1] + by[1]];
    else if (event.key === "+" || event.key === "=") this.zoom(ZOOM_STEP);
    else if (event.key === "-") this.zoom(1 / ZOOM_STEP);
    else if (event.key === "0") this.reset();
    else return;
    event.preventDefault();
    this.sheet.stale();
  }

  /** Zooms about a pixel; default: the middle. */
  zoom(factor, [px, py] = [this.sheet.wide / 2, this.sheet.high / 2]) {
    const scale = Math.min(MAX_SCALE, Math.max(0.005, this.scale * factor));
    this.at = [this.at[0] + px / this.scale - px / scale, this.at[1] + py / this.scale - py / scale];
    this.scale = scale;
    this.sheet.stale();
  }

  nodeAt(event) {
    const box = this.sheet.above.getBoundingClientRect();
    const x = this.at[0] + (event.clientX - box.left) / this.scale, y = this.at[1] + (event.clientY - box.top) / this.scale;
    return this.x.findIndex((left, n) => x >= left && x <= left + WIDE && y >= this.y[n] && y <= this.y[n] + HIGH);
  }

  /** Moves to the next node whose name or op contains `query`. */
  jump(query, direction) {
    const nodes = this.named.column("nodes"), ops = this.named.column("ops");
    const matches = [...nodes.keys()].filter((n) => nodes[n].toLowerCase().includes(query) || ops[n].toLowerCase().includes(query));
    const status = this.root.querySelector("[data-part=selection]");
    if (!query || !matches.length) {
      status.textContent = query ? "No nodes match." : "Write a part of a name or an op.";
      return;
    }
    const own = matches.indexOf(this.hit);
    const k = own < 0 ? 0 : (own + direction + matches.length) % matches.length;
    this.hit = matches[k];
    this.goTo(this.hit);
    status.textContent = `${k + 1} of ${grouped(matches.length)} found: ${status.textContent}`;
  }

  goTo(n) {
    this.scale = Math.max(this.scale, 0.9);
    this.at = [this.x[n] + WIDE / 2 - this.sheet.wide / 2 / this.scale, this.y[n] + HIGH / 2 - this.sheet.high / 2 / this.scale];
    this.choose(n);
  }

  /** Marks a node and its reads, and describes it. */
  choose(n) {
    this.chosen = n;
    this.sheet.stale();
    const status = this.root.querySelector("[data-part=selection]"), names = this.named.column("nodes");
    if (n < 0) {
      status.textContent = "";
      return;
    }
    const reads = this.edges.filter(([, to]) => to === n).map(([from]) => names[from]);
    const readers = this.edges.filter(([from]) => from === n).map(([, to]) => names[to]);
    const of = (name) => this.data.column(name)[n];
    status.textContent = `${[
      `${names[n]}, ${this.named.column("ops")[n]}, ${PHASES[of("phase")]}: ${seconds(of("seconds"))}, writes ${size(of("written"))}`,
      reads.length ? `reads ${listed(reads)}` : "reads inputs only", readers.length ? `read by ${listed(readers)}` : "read by no node",
      this.reason(n) || runsInWords(of("runs")),
    ].join("; ")}.`;
  }

  draw(context) {
    const { scale, at: [left, top] } = this, { wide, high } = this.sheet;
    const toX = (x) => (x - left) * scale, toY = (y) => (y - top) * scale;
    const isSeen = (n) => toX(this.x[n]) < wide && toX(this.x[n] + WIDE) > 0 && toY(this.y[n]) < high && toY(this.y[n] + HIGH) > 0;
    const seen = Uint8Array.from(this.x, (_, n) => (isSeen(n) ? 1 : 0));
    if (scale >= EDGE_SCALE) this.drawEdges(context, toX, toY, seen);
    const [phase, runs] = this.data.list("phase", "runs"), names = this.named.column("nodes"), ops = this.named.column("ops");
    for (let n = 0; n < seen.length; n++) {
      if (!seen[n]) continue;
      const x = toX(this.x[n]), y = toY(this.y[n]), w = Math.max(1, WIDE * scale), h = Math.max(1, HIGH * scale);
      const isNamed = scale >= LABEL_SCALE, isAgain = runs[n] > 1;
      context.fillStyle = ink(isNamed ? "raised" : isAgain ? "recompute" : PHASE_INKS[phase[n]]);
      context.fillRect(x, y, w, h);
      if (!isNamed) continue;
      context.lineWidth = n === this.chosen ? 3 : isAgain ? 2 : 1;
      context.strokeStyle = ink(n === this.chosen ? "accent" : isAgain ? "recompute" : PHASE_INKS[phase[n]]);
      context.strokeRect(x, y, w, h);
      context.save();
      context.beginPath();
      context.rect(x, y, w - 3, h);
      context.clip();
      context.textAlign = "left";
      context.font = `${11 * Math.min(1, scale)}px system-ui, sans-serif`;
      context.fillStyle = ink("text");
      context.fillText(`${isAgain ? "↻ " : ""}${names[n].slice(-24)}`, x + 5, y + h * 0.34);
      context.fillStyle = ink("faint");
      context.fillText(ops[n], x + 5, y + h * 0.72);
      context.restore();
    }
  }

  /** Reads as lines; those of the chosen node stand out. */
  drawEdges(context, toX, toY, seen) {
    context.lineWidth = 1;
    context.strokeStyle = ink("before");
    context.globalAlpha = 0.45;
    const line = ([from, to]) => {
      const isDown = this.y[to] > this.y[from];
      context.moveTo(toX(this.x[from] + WIDE / 2), toY(this.y[from] + (isDown ? HIGH : 0)));
      context.lineTo(toX(this.x[to] + WIDE / 2), toY(this.y[to] + (isDown ? 0 : HIGH)));
    };
    context.beginPath();
    const phase = this.data.column("phase"), hasCross = this.scale >= CROSS_SCALE;
    for (const [from, to] of this.edges)
      if ((seen[from] || seen[to]) && (hasCross || (phase[from] === 0) === (phase[to] === 0))) line([from, to]);
    context.stroke();
    context.globalAlpha = 1;
    if (this.chosen < 0) return;
    context.strokeStyle = ink("accent");
    context.lineWidth = 2;
    context.beginPath();
    for (const edge of this.edges) if (edge.includes(this.chosen)) line(edge);
    context.stroke();
  }
}
