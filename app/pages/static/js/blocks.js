// Graph of a plan by layers; each opens to its nodes, with the reason for every recomputation.
//
//   ╭ ▸ layer1   24 forward   51 backward   6 recomputed   ▰▰▰▱ kept, recomputed    an arc: one layer reads values
//   │ ▾ layer2   ...                                                                 of another
//   ╰   ↻ relu_3   runs twice: frees 64 MiB over 812 steps for 21 µs; peak if not recomputed: ...

import { Drawing, PHASES, svgElement } from "./drawing.js";
import { counted, grouped, listed, runsInWords, seconds, share, size } from "./format.js";

const PAGE_ROWS = 150; // layers, or nodes of a layer, shown at a time
const MAX_ARCS = 800;
const MAX_OPENED_MATCHES = 12; // a layer with at most that many matches is opened
const BAR_WIDTH = 72, BAR_HEIGHT = 10; // pixels

/** Figures of each layer with nodes. */
export function layersOf(data) {
  const names = data.column("layers");
  const [layer, phase, runs, written] = data.list("layer", "phase", "runs", "written");
  const layers = names.map((name, id) => ({
    id, name, nodes: [], phases: [0, 0, 0], recomputedNodes: 0, kept: 0, recomputed: 0,
  }));
  for (let n = 0; n < layer.length; n++) {
    const own = layers[layer[n]];
    own.nodes.push(n);
    own.phases[phase[n]]++;
    if (runs[n] > 1) own.recomputedNodes++;
  }
  for (const n of saved(data)) layers[layer[n]][runs[n] > 1 ? "recomputed" : "kept"] += written[n];
  return layers.filter((own) => own.nodes.length);
}

/** Forward nodes whose results a backward node reads: saved activations. */
function saved(data) {
  const [phase, pointer, read] = data.list("phase", "read_pointer", "read_node");
  const nodes = new Set();
  for (let n = 0; n < phase.length; n++)
    if (phase[n] === 1)
      for (let k = pointer[n]; k < pointer[n + 1]; k++) if (read[k] >= 0 && phase[read[k]] === 0) nodes.add(read[k]);
  return nodes;
}

/** Layers with the same nodes, phases and bytes written, in the order of their first: [[layer, ...], ...]. */
export function equalLayers(layers, data, named) {
  const [phase, written] = data.list("phase", "written"), ops = named.column("ops"), groups = new Map();
  for (const own of layers) {
    const key = own.nodes.map((n) => `${ops[n]} ${phase[n]} ${written[n]}`).join("\n");
    if (groups.has(key)) groups.get(key).push(own);
    else groups.set(key, [own]);
  }
  return [...groups.values()];
}

/** [from layer, to layer, count] of reads between layers in the forward pass, most reads first. */
export function arcsOf(data) {
  const [layer, phase, pointer, read] = data.list("layer", "phase", "read_pointer", "read_node");
  const layers = data.column("layers").length, counts = new Map();
  for (let n = 0; n < layer.length; n++) {
    if (phase[n] !== 0) continue;
    for (let k = pointer[n]; k < pointer[n + 1]; k++) {
      if (read[k] < 0 || layer[read[k]] === layer[n]) continue;
      const key = layer[read[k]] * layers + layer[n];
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
  }
  return [...counts].sort((a, b) => b[1] - a[1]).slice(0, MAX_ARCS)
    .map(([key, count]) => [Math.floor(key / layers), key % layers, count]);
}

/** Reason for recomputing a node, as text; empty if it runs once. */
export function reason(data, n) {
  const at = (name) => data.column(name)[n];
  if (at("runs") < 2) return "";
  const runs = runsInWords(at("runs")), cost = seconds(at("extra"));
  if (Number.isNaN(at("freed"))) return `${runs}: needed by other recomputed nodes`;
  if (!at("freed")) return `${runs}: needed by other recomputed nodes; adds ${cost}`;
  const freed = `${runs}: frees ${size(at("freed"))}, ${size(at("byte_steps"))} × steps; adds ${cost}`;
  const peak = at("peak_if_kept");
  return Number.isNaN(peak) ? freed : `${freed}; peak if not recomputed: ${size(peak)}`;
}

export class BlockView {
  /** @param {Columns} data packed by app/render/plan/graph_layers.py; `named` has the columns `nodes` and `ops` */
  constructor(root, data, named) {
    this.root = root;
    this.rows = root.querySelector("[data-part=rows]");
    this.data = data;
    this.named = named;
    this.layers = layersOf(data);
    this.arcs = arcsOf(data);
    this.groups = equalLayers(this.layers, data, named);
    this.open = new Set();
    this.unfolded = new Set(); // first layers of groups whose members are shown
    this.shown = PAGE_ROWS;
    this.widest = Math.max(1, ...this.layers.map((own) => own.kept + own.recomputed));
    root.querySelector("[data-do=find]").addEventListener("input", () => this.render());
    root.querySelector("[data-do=only]").addEventListener("change", () => this.render());
    new ResizeObserver(() => this.drawArcs()).observe(this.rows);
    this.render();
  }

  get query() {
    return this.root.querySelector("[data-do=find]").value.trim().toLowerCase();
  }

  get isRecomputedOnly() {
    return this.root.querySelector("[data-do=only]").checked;
  }

  /** The nodes of a layer that match the filters. */
  matching(own) {
    const query = this.query, runs = this.data.column("runs");
    if (!query && !this.isRecomputedOnly) return own.nodes;
    const nodes = this.named.column("nodes"), ops = this.named.column("ops");
    return own.nodes.filter((n) => (!this.isRecomputedOnly || runs[n] > 1) &&
      (!query || nodes[n].toLowerCase().includes(query) || ops[n].toLowerCase().includes(query)));
  }

  render() {
    const isFiltered = Boolean(this.query || this.isRecomputedOnly);
    const layers = this.layers.map((own) => [own, this.matching(own)]).filter(([own, nodes]) => nodes.length);
    const groups = isFiltered ? layers.map(([own]) => [own]) : this.groups, nodesOf = new Map(layers);
    const shown = groups.slice(0, this.shown), rows = new Map(); // layer id -> row
    this.rows.replaceChildren(...shown.map((members) => {
      const row = members.length > 1 ? this.groupRow(members) : this.row(members[0], nodesOf.get(members[0]), isFiltered);
      for (const own of members) rows.set(own.id, row);
      return row;
    }));
    if (groups.length > shown.length)
      this.rows.append(this.more(groups.length - shown.length, "rows", () => {
        this.shown += PAGE_ROWS;
        this.render();
      }));
    this.arcsSvg = svgElement("svg", { class: "arcs", "aria-hidden": "true" });
    this.rows.append(this.arcsSvg);
    this.rowOf = rows;
    const nodes = layers.reduce((sum, [, each]) => sum + each.length, 0);
    this.root.querySelector("[data-part=count]").textContent = layers.length
      ? `${counted(nodes, "node")} in ${counted(layers.length, "block")}`
      : isFiltered ? "No nodes match." : "The graph has no nodes.";
    this.drawArcs();
  }

  /** One row for equal layers; it opens to the rows of its members. */
  groupRow(members) {
    const [first] = members, row = document.createElement("div"), counts = members.map((own) => own.recomputedNodes);
    const sum = (name) => members.reduce((total, own) => total + own[name], 0), least = Math.min(...counts), most = Math.max(...counts);
    row.className = "block group";
    const isOpen = this.unfolded.has(first.id), button = row.appendChild(document.createElement("button"));
    button.type = "button";
    button.setAttribute("aria-expanded", String(isOpen));
    const cell = (className, text) => button.appendChild(Object.assign(document.createElement("span"), { className, textContent: text }));
    cell("name", `${members.length} equal blocks: ${listed(members.map((own) => own.name.replace(/, one of .*/, "")))}`).title = members.map((own) => own.name).join(", ");
    cell("phase", `each ${grouped(first.phases[0])} forward`);
    cell("phase", `${grouped(first.phases[1])} backward`);
    cell(most ? "phase recomputed" : "phase", most ? `↻ ${least === most ? most : `${least} to ${most}`} recomputed in each` : "");
    button.appendChild(this.savedActivations({ kept: sum("kept") / members.length, recomputed: sum("recomputed") / members.length }));
    button.addEventListener("click", () => {
      if (!this.unfolded.delete(first.id)) this.unfolded.add(first.id);
      this.render();
      this.rowOf.get(first.id).firstChild.focus();
    });
    if (isOpen) row.append(...members.map((own) => this.row(own, own.nodes, false)));
    return row;
  }

  row(own, nodes, isFiltered) {
    const row = document.createElement("div");
    row.className = "block";
    const button = row.appendChild(document.createElement("button"));
    button.type = "button";
    const isOpen = this.open.has(own.id) || (isFiltered && nodes.length <= MAX_OPENED_MATCHES);
    button.setAttribute("aria-expanded", String(isOpen));
    const cell = (className, text) => button.appendChild(Object.assign(document.createElement("span"), { className, textContent: text }));
    cell("name", own.name).title = own.name;
    const phases = PHASES.map((word, k) => own.phases[k] && `${grouped(own.phases[k])} ${word}`).filter(Boolean);
    cell("phase", phases.slice(0, 1).join(""));
    cell("phase", phases.slice(1).join(", "));
    const recomputed = own.recomputedNodes;
    cell(recomputed ? "phase recomputed" : "phase", recomputed ? `↻ ${grouped(recomputed)} recomputed` : "");
    button.appendChild(this.savedActivations(own));
    button.addEventListener("click", () => {
      if (!this.open.delete(own.id)) this.open.add(own.id);
      const isOpened = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(isOpened));
      if (isOpened) row.append(this.drawing(own, true), this.table(nodes, PAGE_ROWS));
      else row.querySelectorAll(".nodes-drawing, .nodes-table").forEach((part) => part.remove());
    });
    if (isOpen) row.append(this.drawing(own, this.open.has(own.id)), this.table(nodes, PAGE_ROWS));
    return row;
  }

  /** Drawing of the layer's nodes, created when it is opened. */
  drawing(own, isOpen) {
    const room = Object.assign(document.createElement("details"), { className: "nodes-drawing", open: isOpen });
    room.append(Object.assign(document.createElement("summary"), { textContent: "Drawing" }));
    const draw = () => {
      if (room.open && room.children.length < 2) room.append(new Drawing(own.name, own.nodes, this.data, this.named, (n) => reason(this.data, n)).root);
      this.drawArcs();
    };
    room.addEventListener("toggle", draw);
    return room;
  }

  /** Saved activations of the layer, kept and recomputed, as a bar and as text. */
  savedActivations(own) {
    const room = Object.assign(document.createElement("span"), { className: "saved-activations" });
    const whole = own.kept + own.recomputed;
    if (!whole) return room;
    const kept = (BAR_WIDTH * own.kept) / this.widest, recomputed = (BAR_WIDTH * own.recomputed) / this.widest;
    const bar = svgElement("svg", { width: BAR_WIDTH, height: BAR_HEIGHT, "aria-hidden": "true" }, [
      svgElement("rect", { class: "bar-kept", width: kept, height: BAR_HEIGHT }),
      svgElement("rect", { class: "bar-recomputed", x: kept, width: recomputed, height: BAR_HEIGHT }),
    ]);
    room.append(bar, `keeps ${share(own.kept / whole, 0)} of ${size(whole)}`);
    return room;
  }

  more(count, noun, show) {
    const room = Object.assign(document.createElement("div"), { className: "more" });
    const button = room.appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = `Show ${Math.min(PAGE_ROWS, count)} more of ${grouped(count)} ${noun}`;
    button.addEventListener("click", show);
    return room;
  }

  table(nodes, limit) {
    const room = Object.assign(document.createElement("div"), { className: "nodes-table", tabIndex: 0 });
    room.setAttribute("role", "region");
    room.setAttribute("aria-label", "Nodes of the block");
    const table = room.appendChild(Object.assign(document.createElement("table"), { className: "nodes" }));
    const head = table.createTHead().insertRow();
    for (const word of ["Node", "Op", "Phase", "Time", "Writes", "Reads from", "Reason for recomputation"])
      head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: word }));
    const body = table.createTBody();
    for (const n of nodes.slice(0, limit)) this.nodeRow(body.insertRow(), n);
    if (nodes.length > limit) {
      room.append(this.more(nodes.length - limit, "nodes", () => room.replaceWith(this.table(nodes, limit + PAGE_ROWS))));
    }
    return room;
  }

  nodeRow(row, n) {
    const at = (name) => this.data.column(name)[n];
    const nodes = this.named.column("nodes"), isRecomputed = at("runs") > 1;
    row.className = isRecomputed ? "recomputed-node" : "";
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = (isRecomputed ? "↻\u00a0" : "") + nodes[n];
    const [pointer, read] = this.data.list("read_pointer", "read_node");
    const producers = [...read.subarray(pointer[n], pointer[n + 1])].map((m) => (m < 0 ? "inputs" : nodes[m]));
    const cells = [
      this.named.column("ops")[n], PHASES[at("phase")], seconds(at("seconds")), size(at("written")),
      listed(producers), reason(this.data, n),
    ];
    row.append(name, ...cells.map((text, k) => Object.assign(document.createElement("td"), {
      textContent: text, className: ["", "short", "count", "count", "", ""][k],
    })));
  }

  /** Reads between layers, as arcs beside the rows. */
  drawArcs() {
    const wide = this.arcsSvg.clientWidth, from = this.rows.getBoundingClientRect().top;
    const middle = (row) => {
      const box = row.firstChild.getBoundingClientRect();
      return (box.top + box.bottom) / 2 - from;
    };
    const order = new Map([...this.rows.children].map((row, k) => [row, k]));
    const at = new Map([...this.rowOf].map(([id, row]) => [id, [middle(row), order.get(row)]]));
    const most = Math.max(1, ...this.arcs.map(([, , count]) => count));
    this.arcsSvg.replaceChildren(...this.arcs.filter(([a, b]) => at.has(a) && at.has(b) && this.rowOf.get(a) !== this.rowOf.get(b)).map(([a, b, count]) => {
      const [[y1, k1], [y2, k2]] = [at.get(a), at.get(b)];
      const out = Math.min(wide - 6, 8 + 7 * Math.abs(k2 - k1));
      const d = `M${wide - 2} ${y1}C${wide - out} ${y1} ${wide - out} ${y2} ${wide - 2} ${y2}`;
      return svgElement("path", { d, "stroke-width": 1 + (2 * count) / most });
    }));
  }
}
