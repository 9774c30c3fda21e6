// The graph of a plan by layers, each of which opens to its nodes: what runs again, and why.
//
//   ╭ ▸ layer1   24 forward   51 backward   6 run again   ▰▰▰▱ kept, recomputed     an arc is what a layer reads
//   │ ▾ layer2   ...                                                                 of another one
//   ╰   ↻ relu_3   runs twice: frees 64 MiB over 812 steps for 21 µs; kept, the peak would be ...

import { Drawing } from "./drawing.js";
import { grouped, seconds, share, size } from "./format.js";

const MANY = 150; // layers, or nodes of one, shown at a time
const MOST_ARCS = 800;
const PHASES = ["forward", "backward", "update"];
const SVG = "http://www.w3.org/2000/svg";

/** What a layer is in figures. */
export function layersOf(data) {
  const names = data.column("layers");
  const [layer, phase, runs, written, extra] = ["layer", "phase", "runs", "written", "extra"].map((name) => data.column(name));
  const layers = names.map((name, id) => ({
    id, name, nodes: [], phases: [0, 0, 0], again: 0, extra: 0, kept: 0, recomputed: 0,
  }));
  for (let n = 0; n < layer.length; n++) {
    const own = layers[layer[n]];
    own.nodes.push(n);
    own.phases[phase[n]]++;
    if (runs[n] > 1) {
      own.again++;
      own.extra += extra[n] || 0;
    }
  }
  for (const n of saved(data)) layers[layer[n]][runs[n] > 1 ? "recomputed" : "kept"] += written[n];
  return layers.filter((own) => own.nodes.length);
}

/** Forward nodes whose results a backward node reads. */
function saved(data) {
  const [phase, pointer, read] = ["phase", "read_pointer", "read_node"].map((name) => data.column(name));
  const found = new Set();
  for (let n = 0; n < phase.length; n++)
    if (phase[n] === 1)
      for (let k = pointer[n]; k < pointer[n + 1]; k++) if (read[k] >= 0 && phase[read[k]] === 0) found.add(read[k]);
  return found;
}

/** [from layer, to layer, count] of what layers read of others on the way out, the most first. */
export function arcsOf(data) {
  const [layer, phase, pointer, read] = ["layer", "phase", "read_pointer", "read_node"].map((name) => data.column(name));
  const many = data.column("layers").length, found = new Map();
  for (let n = 0; n < layer.length; n++) {
    if (phase[n] !== 0) continue;
    for (let k = pointer[n]; k < pointer[n + 1]; k++) {
      if (read[k] < 0 || layer[read[k]] === layer[n]) continue;
      const key = layer[read[k]] * many + layer[n];
      found.set(key, (found.get(key) ?? 0) + 1);
    }
  }
  return [...found].sort((a, b) => b[1] - a[1]).slice(0, MOST_ARCS).map(([key, count]) => [Math.floor(key / many), key % many, count]);
}

/** Why a node runs again, in words; empty for one that runs once. */
export function why(data, n) {
  const at = (name) => data.column(name)[n];
  if (at("runs") < 2) return "";
  const times = at("runs") === 2 ? "runs twice" : `runs ${at("runs")} times`;
  if (Number.isNaN(at("freed"))) return `${times}, for the sake of others that run again`;
  const costs = `${seconds(at("extra"))} more`;
  if (!at("freed")) return `${times}: what it makes is needed to run others again; ${costs}`;
  const freed = `${times}: frees ${size(at("freed"))}, ${size(at("byte_steps"))} × steps, for ${costs}`;
  const kept = at("peak_if_kept");
  return Number.isNaN(kept) ? freed : `${freed}; if it ran once, the peak would be ${size(kept)}`;
}

export class BlockView {
  /** @param {Columns} data as `blocks` of blocks.py packs it; `named` has the columns `nodes` and `ops`. */
  constructor(root, data, named) {
    this.root = root;
    this.rows = root.querySelector("[data-part=rows]");
    this.data = data;
    this.named = named;
    this.layers = layersOf(data);
    this.arcs = arcsOf(data);
    this.open = new Set();
    this.shown = MANY;
    this.widest = Math.max(1, ...this.layers.map((own) => own.kept + own.recomputed));
    root.querySelector("[data-do=find]").addEventListener("input", () => this.render());
    root.querySelector("[data-do=only]").addEventListener("change", () => this.render());
    new ResizeObserver(() => this.drawArcs()).observe(this.rows);
    this.render();
  }

  get sought() {
    return this.root.querySelector("[data-do=find]").value.trim().toLowerCase();
  }

  get onlyAgain() {
    return this.root.querySelector("[data-do=only]").checked;
  }

  /** The nodes of a layer that are asked for. */
  wanted(own) {
    const sought = this.sought, runs = this.data.column("runs");
    if (!sought && !this.onlyAgain) return own.nodes;
    const nodes = this.named.column("nodes"), ops = this.named.column("ops");
    return own.nodes.filter((n) => (!this.onlyAgain || runs[n] > 1) &&
      (!sought || nodes[n].toLowerCase().includes(sought) || ops[n].toLowerCase().includes(sought)));
  }

  render() {
    const asked = Boolean(this.sought || this.onlyAgain);
    const layers = this.layers.map((own) => [own, this.wanted(own)]).filter(([own, nodes]) => nodes.length);
    const shown = layers.slice(0, this.shown);
    this.rows.replaceChildren(...shown.map(([own, nodes]) => this.row(own, nodes, asked)));
    if (layers.length > shown.length)
      this.rows.append(this.more(layers.length - shown.length, "blocks", () => {
        this.shown += MANY;
        this.render();
      }));
    this.arcsRoom = document.createElementNS(SVG, "svg");
    this.arcsRoom.setAttribute("class", "arcs");
    this.arcsRoom.setAttribute("aria-hidden", "true");
    this.rows.append(this.arcsRoom);
    this.rowOf = new Map(shown.map(([own], k) => [own.id, this.rows.children[k]]));
    const nodes = layers.reduce((sum, [, each]) => sum + each.length, 0);
    const many = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;
    this.root.querySelector("[data-part=count]").textContent = layers.length
      ? `${many(nodes, "node")} in ${many(layers.length, "block")}`
      : asked ? "No node is like this." : "The graph has no nodes.";
    this.drawArcs();
  }

  row(own, nodes, asked) {
    const row = document.createElement("div");
    row.className = "block";
    const button = row.appendChild(document.createElement("button"));
    button.type = "button";
    const isOpen = this.open.has(own.id) || (asked && nodes.length <= 12);
    button.setAttribute("aria-expanded", String(isOpen));
    const cell = (className, text) => button.appendChild(Object.assign(document.createElement("span"), { className, textContent: text }));
    cell("name", own.name).title = own.name;
    const phases = PHASES.map((word, k) => own.phases[k] && `${grouped(own.phases[k])} ${word}`).filter(Boolean);
    cell("phase", phases.slice(0, 1).join(""));
    cell("phase", phases.slice(1).join(", "));
    cell(own.again ? "phase again" : "phase", own.again ? `↻ ${grouped(own.again)} again` : "");
    button.appendChild(this.saves(own));
    button.addEventListener("click", () => {
      if (!this.open.delete(own.id)) this.open.add(own.id);
      const isOpened = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(isOpened));
      if (isOpened) row.append(this.drawing(own, true), this.table(nodes, MANY));
      else row.querySelectorAll(".nodes-drawn, .nodes-room").forEach((part) => part.remove());
    });
    if (isOpen) row.append(this.drawing(own, this.open.has(own.id)), this.table(nodes, MANY));
    return row;
  }

  /** The layer's nodes as a picture, made when it is opened. */
  drawing(own, isOpen) {
    const room = Object.assign(document.createElement("details"), { className: "nodes-drawn", open: isOpen });
    room.append(Object.assign(document.createElement("summary"), { textContent: "Drawn" }));
    const draw = () => {
      if (room.open && room.children.length < 2) room.append(new Drawing(own.name, own.nodes, this.data, this.named, (n) => why(this.data, n)).root);
      this.drawArcs();
    };
    room.addEventListener("toggle", draw);
    return room;
  }

  /** What the way back reads of the layer: a bar of what is kept and what is made again, and the words. */
  saves(own) {
    const room = Object.assign(document.createElement("span"), { className: "saves" });
    const whole = own.kept + own.recomputed;
    if (!whole) return room;
    const bar = document.createElementNS(SVG, "svg");
    bar.setAttribute("width", "72");
    bar.setAttribute("height", "10");
    bar.setAttribute("aria-hidden", "true");
    let at = 0;
    for (const [bytes, name] of [[own.kept, "after"], [own.recomputed, "kind-2"]]) {
      const part = bar.appendChild(document.createElementNS(SVG, "rect"));
      const wide = (72 * bytes) / this.widest;
      for (const [key, said] of [["x", at], ["width", wide], ["height", 10]]) part.setAttribute(key, String(said));
      part.setAttribute("class", name === "after" ? "bar-kept" : "bar-again");
      at += wide;
    }
    room.append(bar, `keeps ${share(own.kept / whole, 0)} of ${size(whole)}`);
    return room;
  }

  more(count, what, go) {
    const room = Object.assign(document.createElement("div"), { className: "more" });
    const button = room.appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = `Show ${Math.min(MANY, count)} more of ${grouped(count)} ${what}`;
    button.addEventListener("click", go);
    return room;
  }

  table(nodes, most) {
    const room = Object.assign(document.createElement("div"), { className: "nodes-room", tabIndex: 0 });
    for (const [name, said] of [["role", "region"], ["aria-label", "Nodes of the block"]]) room.setAttribute(name, said);
    const table = room.appendChild(Object.assign(document.createElement("table"), { className: "nodes" }));
    const head = table.createTHead().insertRow();
    for (const word of ["Node", "Op", "Phase", "Time", "Writes", "Reads of", "Runs again because"])
      head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: word }));
    const body = table.createTBody();
    for (const n of nodes.slice(0, most)) this.nodeRow(body.insertRow(), n);
    if (nodes.length > most) {
      room.append(this.more(nodes.length - most, "nodes", () => room.replaceWith(this.table(nodes, most + MANY))));
    }
    return room;
  }

  nodeRow(row, n) {
    const at = (name) => this.data.column(name)[n];
    const nodes = this.named.column("nodes"), again = at("runs") > 1;
    row.className = again ? "twice-run" : "";
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = (again ? "↻\u00a0" : "") + nodes[n];
    const [pointer, read] = [this.data.column("read_pointer"), this.data.column("read_node")];
    const makers = [...read.subarray(pointer[n], pointer[n + 1])].map((m) => (m < 0 ? "inputs" : nodes[m]));
    const cells = [
      this.named.column("ops")[n], PHASES[at("phase")], seconds(at("seconds")), size(at("written")),
      makers.slice(0, 4).join(", ") + (makers.length > 4 ? ` and ${makers.length - 4} more` : ""), why(this.data, n),
    ];
    row.append(name, ...cells.map((text, k) => Object.assign(document.createElement("td"), {
      textContent: text, className: ["", "short", "count", "count", "", ""][k],
    })));
  }

  /** What layers read of each other, as arcs beside the rows that are shown. */
  drawArcs() {
    const wide = this.arcsRoom.clientWidth, from = this.rows.getBoundingClientRect().top;
    const middle = (row) => {
      const box = row.firstChild.getBoundingClientRect();
      return (box.top + box.bottom) / 2 - from;
    };
    const at = new Map([...this.rowOf].map(([id, row], k) => [id, [middle(row), k]]));
    const most = Math.max(1, ...this.arcs.map(([, , count]) => count));
    this.arcsRoom.replaceChildren(...this.arcs.filter(([a, b]) => at.has(a) && at.has(b)).map(([a, b, count]) => {
      const [[y1, k1], [y2, k2]] = [at.get(a), at.get(b)];
      const out = Math.min(wide - 6, 8 + 7 * Math.abs(k2 - k1));
      const arc = document.createElementNS(SVG, "path");
      arc.setAttribute("d", `M${wide - 2} ${y1}C${wide - out} ${y1} ${wide - out} ${y2} ${wide - 2} ${y2}`);
      arc.setAttribute("stroke-width", String(1 + (2 * count) / most));
      return arc;
    }));
  }
}
