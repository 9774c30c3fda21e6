// Drawing of the nodes of one block: the forward pass goes down on the left, the backward pass up on the right.
//
//    ╭ conv1 ╮ ─────────▶ ╭ grad/conv1 ╮      an edge is a read; a stub on top reads another block or an input;
//    ╰───┬───╯            ╰─────▲──────╯      ↻ recomputed; selecting it shows the reason
//    ╭ relu1 ╮ ─────────▶ ╭ grad/relu1 ╮

import { grouped, listed, runsInWords, seconds, size } from "./format.js";

const MAX_NODES = 120; // of a drawing
const SVG = "http://www.w3.org/2000/svg";
export const PHASES = ["forward", "backward", "update"];
const WIDE = 148, HIGH = 34, ACROSS = 20, DOWN = 22, EDGE = 16, BETWEEN = 72; // pixels
const MAX_NAME_CHARS = 19;

/** An SVG element with attributes and children. */
export function svgElement(name, attributes, children = []) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** Nodes to draw: all, or at most `limit`: recomputed nodes, then their neighbours, then the first others. */
export function drawn(nodes, edges, isRecomputed, limit = MAX_NODES) {
  if (nodes.length <= limit) return nodes;
  const chosen = new Set(nodes.filter(isRecomputed).slice(0, limit));
  const first = new Set(chosen);
  for (const [from, to] of edges)
    if (chosen.size < limit && (first.has(from) || first.has(to))) chosen.add(first.has(from) ? to : from);
  for (const node of nodes) if (chosen.size < limit) chosen.add(node);
  return nodes.filter((node) => chosen.has(node));
}

/**
 * Row and column of each node. Nodes with `isBack` (backward pass) are on the right and go up. `edges`: [producer,
 * reader]; `nodes` in topological order.
 */
export function placed(nodes, edges, isBack) {
  const producers = new Map(nodes.map((node) => [node, []]));
  for (const [from, to] of edges) if (isBack(from) === isBack(to)) producers.get(to)?.push(from);
  const depth = new Map(), firstReader = new Map(), rows = { false: [], true: [] };
  for (const node of nodes) {
    depth.set(node, Math.max(0, ...producers.get(node).map((producer) => depth.get(producer) + 1)));
    for (const producer of producers.get(node))
      firstReader.set(producer, Math.min(firstReader.get(producer) ?? Infinity, depth.get(node)));
  }
  for (const node of nodes) {
    // one that reads nothing stands right above its first reader, instead of at the top
    const row = producers.get(node).length ? depth.get(node) : Math.max(0, (firstReader.get(node) ?? 0) - 1);
    (rows[isBack(node)][row] ??= []).push(node);
  }
  for (const back of [false, true]) for (let row = 0; row < rows[back].length; row++) rows[back][row] ??= [];
  const place = new Map();
  const many = Math.max(rows.false.length, rows.true.length);
  let from = 0;
  for (const back of [false, true]) {
    const widest = Math.max(0, ...rows[back].map((row) => row.length));
    rows[back].forEach((row, k) => {
      // near its inputs: at the mean column of its producers
      const mean = (node) => {
        const at = producers.get(node).map((producer) => place.get(producer).column);
        return at.length ? at.reduce((sum, column) => sum + column, 0) / at.length : Infinity;
      };
      const by = new Map(row.map((node) => [node, mean(node)]));
      [...row].sort((a, b) => (by.get(a) === by.get(b) ? a - b : by.get(a) - by.get(b))).forEach((node, column) =>
        place.set(node, { row: back ? many - 1 - k : k, column: from + column }));
    });
    from += widest;
  }
  return { place, rows: many, columns: from, forward: Math.max(0, ...rows.false.map((row) => row.length)) };
}

/** A drawing of the nodes of a block. `reason(n)`: reason for recomputing node n, empty if it runs once. */
export class Drawing {
  constructor(name, nodes, data, named, reason) {
    this.data = data;
    this.named = named;
    this.reason = reason;
    const [pointer, read, runs] = data.list("read_pointer", "read_node", "runs");
    const inside = new Set(nodes), every = [];
    for (const n of nodes)
      for (let k = pointer[n]; k < pointer[n + 1]; k++) if (inside.has(read[k])) every.push([read[k], n]);
    this.nodes = drawn(nodes, every, (n) => runs[n] > 1);
    const there = new Set(this.nodes);
    this.edges = every.filter(([from, to]) => there.has(from) && there.has(to));
    this.outside = new Set(this.nodes.filter((n) => [...read.subarray(pointer[n], pointer[n + 1])].some((m) => !there.has(m))));
    this.places = placed(this.nodes, this.edges, (n) => data.column("phase")[n] !== 0);
    this.boxes = new Map();
    const recomputed = nodes.filter((n) => runs[n] > 1).length;
    this.label = `Nodes of ${name}: ${grouped(this.nodes.length)} drawn, ${grouped(recomputed)} recomputed in the block`;
    this.omitted = nodes.length - this.nodes.length;
    this.root = this.create();
  }

  at(n) {
    const { row, column } = this.places.place.get(n);
    const apart = column >= this.places.forward && this.places.forward ? BETWEEN : 0;
    return [EDGE + column * (WIDE + ACROSS) + apart, EDGE + row * (HIGH + DOWN)];
  }

  create() {
    const root = Object.assign(document.createElement("div"), { className: "drawing" });
    if (this.omitted) {
      const note = root.appendChild(Object.assign(document.createElement("p"), { className: "small" }));
      note.textContent = `${grouped(this.nodes.length)} of ${grouped(this.nodes.length + this.omitted)} nodes are drawn: recomputed nodes, their neighbours, and the first others. The table has all nodes.`;
    }
    const wide = 2 * EDGE + this.places.columns * (WIDE + ACROSS) + BETWEEN - ACROSS;
    const high = 2 * EDGE + this.places.rows * (HIGH + DOWN) - DOWN;
    this.svg = svgElement("svg", {
      width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group",
      "aria-label": `${this.label}. Arrow keys move between nodes, Enter shows the reason for a recomputation.`,
    });
    this.lines = new Map(this.edges.map((edge) => [edge, this.svg.appendChild(svgElement("path", { class: "edge", d: this.path(edge) }))]));
    for (const n of this.nodes) this.boxes.set(n, this.svg.appendChild(this.box(n)));
    this.boxes.get(this.nodes[0])?.setAttribute("tabindex", "0");
    const room = root.appendChild(Object.assign(document.createElement("div"), { className: "drawing-scroll" }));
    room.append(this.svg);
    this.description = root.appendChild(Object.assign(document.createElement("p"), { className: "selection" }));
    this.description.setAttribute("role", "status");
    this.description.textContent = "Select a node to see its reads and the reason for its recomputation (↻). A stub on top: it reads another block, or an input.";
    this.svg.addEventListener("click", (event) => this.choose(this.of(event.target)));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    return root;
  }

  of(target) {
    const box = target.closest?.("[data-node]");
    return box ? Number(box.dataset.node) : null;
  }

  path([from, to]) {
    const [x1, y1] = this.at(from), [x2, y2] = this.at(to);
    const phase = this.data.column("phase");
    if ((phase[from] !== 0) !== (phase[to] !== 0)) {
      const middle = HIGH / 2;
      return `M${x1 + WIDE} ${y1 + middle}C${x1 + WIDE + 40} ${y1 + middle} ${x2 - 40} ${y2 + middle} ${x2} ${y2 + middle}`;
    }
    const down = y2 > y1, [a, b] = down ? [y1 + HIGH, y2] : [y1, y2 + HIGH], bend = (b - a) / 2;
    const [c, d] = [x1 + WIDE / 2, x2 + WIDE / 2];
    return `M${c} ${a}C${c} ${a + bend} ${d} ${b - bend} ${d} ${b}`;
  }

  box(n) {
    const [x, y] = this.at(n), runs = this.data.column("runs")[n], isRecomputed = runs > 1;
    const name = this.named.column("nodes")[n], op = this.named.column("ops")[n];
    const phase = PHASES[this.data.column("phase")[n]];
    const end = (words, limit) => ([...words].length > limit ? `…${[...words].slice(1 - limit).join("")}` : words);
    const text = (words, at, className) => {
      const label = svgElement("text", { x: x + 8, y: y + at, class: className });
      label.textContent = words;
      return label;
    };
    const title = svgElement("title", {});
    title.textContent = `${name}, ${op}`;
    const box = svgElement("g", {
      class: isRecomputed ? "node recomputed-node" : "node", role: "button", tabindex: -1, "data-node": n, "aria-pressed": "false",
      "aria-label": `${name}, ${op}, ${phase}, ${runsInWords(runs)}`,
    }, [title, svgElement("rect", { x, y, width: WIDE, height: HIGH, rx: 4 }), text((isRecomputed ? "↻ " : "") + end(name, MAX_NAME_CHARS), 15, "what"), text(end(op, MAX_NAME_CHARS + 3), 28, "op")]);
    if (this.outside.has(n)) box.append(svgElement("path", { class: "stub", d: `M${x + WIDE - 12} ${y - 8}V${y}` }));
    return box;
  }

  /** Marks a node and its edges, and describes it. */
  choose(n) {
    if (n === null) return;
    for (const [node, box] of this.boxes) {
      box.setAttribute("aria-pressed", String(node === n));
      box.setAttribute("tabindex", node === n ? "0" : "-1");
    }
    for (const [[from, to], line] of this.lines) line.classList.toggle("selected", from === n || to === n);
    this.chosen = n;
    const names = this.named.column("nodes"), [pointer, read] = this.data.list("read_pointer", "read_node");
    const reads = [...read.subarray(pointer[n], pointer[n + 1])].map((m) => (m < 0 ? "inputs" : names[m]));
    const readers = [];
    for (let m = 0; m + 1 < pointer.length; m++)
      for (let k = pointer[m]; k < pointer[m + 1]; k++) if (read[k] === n) readers.push(names[m]);
    const words = [
      `${names[n]}, ${this.named.column("ops")[n]}, ${PHASES[this.data.column("phase")[n]]}: ${seconds(this.data.column("seconds")[n])}, writes ${size(this.data.column("written")[n])}`,
      reads.length ? `reads ${listed(reads)}` : "reads nothing",
      readers.length ? `read by ${listed(readers)}` : "read by no node",
      this.reason(n) || "runs once",
    ];
    this.description.textContent = `${words.join("; ")}.`;
  }

  key(event) {
    const from = this.of(event.target);
    if (from === null) return;
    const towards = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    let to = from;
    if (event.key === "Enter" || event.key === " ") this.choose(from);
    else if (event.key === "Home") to = this.nodes[0];
    else if (event.key === "End") to = this.nodes[this.nodes.length - 1];
    else if (towards) to = this.beside(from, towards);
    else return;
    event.preventDefault();
    if (to === from) return;
    this.boxes.get(from).setAttribute("tabindex", "-1");
    this.boxes.get(to).setAttribute("tabindex", "0");
    this.boxes.get(to).focus();
  }

  /** The nearest node in a direction, where a sideways distance counts three times; `from` if there is none. */
  beside(from, [right, down]) {
    const [x, y] = this.at(from);
    let best = from, shortest = Infinity;
    for (const n of this.nodes) {
      const [dx, dy] = [this.at(n)[0] - x, this.at(n)[1] - y];
      const ahead = dx * right + dy * down, aside = Math.abs(dx * down) + Math.abs(dy * right);
      if (ahead > 0 && ahead + 3 * aside < shortest) [best, shortest] = [n, ahead + 3 * aside];
    }
    return best;
  }
}
