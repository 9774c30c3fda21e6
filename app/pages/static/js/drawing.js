// The nodes of one block drawn: the way out on the left and down, the way back on the right and up.
//
//    ╭ conv1 ╮ ─────────▶ ╭ grad/conv1 ╮      an edge is a read; a stub on top reads of another block or an input;
//    ╰───┬───╯            ╰─────▲──────╯      ↻ runs again, and says why when it is chosen
//    ╭ relu1 ╮ ─────────▶ ╭ grad/relu1 ╮

import { grouped, seconds, size } from "./format.js";

const MOST = 120; // nodes of a drawing
const SVG = "http://www.w3.org/2000/svg";
const PHASES = ["forward", "backward", "update"];
const WIDE = 148, HIGH = 34, ACROSS = 20, DOWN = 22, EDGE = 16, BETWEEN = 72; // pixels
const LONGEST = 19; // letters of a name

const element = (name, attributes, inside = []) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, said] of Object.entries(attributes)) made.setAttribute(key, String(said));
  made.append(...inside);
  return made;
};

/** Nodes that are drawn: all, or of many those that run again, those beside them, and the first others. */
export function drawn(nodes, edges, again, most = MOST) {
  if (nodes.length <= most) return nodes;
  const chosen = new Set(nodes.filter(again).slice(0, most));
  const first = new Set(chosen);
  for (const [from, to] of edges)
    if (chosen.size < most && (first.has(from) || first.has(to))) chosen.add(first.has(from) ? to : from);
  for (const node of nodes) if (chosen.size < most) chosen.add(node);
  return nodes.filter((node) => chosen.has(node));
}

/**
 * Where nodes are: `row` and `column` of each, in order. `isBack` tells those of the way back, which stand on the right
 * and go up. `edges` are [maker, reader]; nodes come in a legal order.
 */
export function placed(nodes, edges, isBack) {
  const makers = new Map(nodes.map((node) => [node, []]));
  for (const [from, to] of edges) if (isBack(from) === isBack(to)) makers.get(to)?.push(from);
  const depth = new Map(), rows = { false: [], true: [] };
  for (const node of nodes) {
    const own = rows[isBack(node)];
    depth.set(node, Math.max(0, ...makers.get(node).map((maker) => depth.get(maker) + 1)));
    (own[depth.get(node)] ??= []).push(node);
  }
  const place = new Map();
  const many = Math.max(rows.false.length, rows.true.length);
  let from = 0;
  for (const back of [false, true]) {
    const widest = Math.max(0, ...rows[back].map((row) => row.length));
    rows[back].forEach((row, k) => {
      // beside what it reads: the mean of where its makers are
      const mean = (node) => {
        const at = makers.get(node).map((maker) => place.get(maker).column);
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

/** A drawing of the nodes of a block. `why(n)` says why a node runs again, empty for one that runs once. */
export class Drawing {
  constructor(name, nodes, data, named, why) {
    this.data = data;
    this.named = named;
    this.why = why;
    const [pointer, read, runs] = ["read_pointer", "read_node", "runs"].map((column) => data.column(column));
    const inside = new Set(nodes), every = [];
    for (const n of nodes)
      for (let k = pointer[n]; k < pointer[n + 1]; k++) if (inside.has(read[k])) every.push([read[k], n]);
    this.nodes = drawn(nodes, every, (n) => runs[n] > 1);
    const there = new Set(this.nodes);
    this.edges = every.filter(([from, to]) => there.has(from) && there.has(to));
    this.outside = new Set(this.nodes.filter((n) => [...read.subarray(pointer[n], pointer[n + 1])].some((m) => !there.has(m))));
    this.places = placed(this.nodes, this.edges, (n) => data.column("phase")[n] !== 0);
    this.boxes = new Map();
    const again = nodes.filter((n) => runs[n] > 1).length;
    this.label = `Nodes of ${name}: ${grouped(this.nodes.length)} drawn, ${grouped(again)} of the block run again`;
    this.left = nodes.length - this.nodes.length;
    this.root = this.made();
  }

  at(n) {
    const { row, column } = this.places.place.get(n);
    const apart = column >= this.places.forward && this.places.forward ? BETWEEN : 0;
    return [EDGE + column * (WIDE + ACROSS) + apart, EDGE + row * (HIGH + DOWN)];
  }

  made() {
    const root = Object.assign(document.createElement("div"), { className: "drawing" });
    if (this.left) {
      const said = root.appendChild(Object.assign(document.createElement("p"), { className: "small" }));
      said.textContent = `${grouped(this.nodes.length)} of ${grouped(this.nodes.length + this.left)} nodes are drawn: those that run again, those beside them, and the first others. The table has all.`;
    }
    const wide = 2 * EDGE + this.places.columns * (WIDE + ACROSS) + BETWEEN - ACROSS;
    const high = 2 * EDGE + this.places.rows * (HIGH + DOWN) - DOWN;
    this.svg = element("svg", {
      width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group",
      "aria-label": `${this.label}. Arrow keys go from node to node, Enter says why one runs again.`,
    });
    this.lines = new Map(this.edges.map((edge) => [edge, this.svg.appendChild(element("path", { class: "edge", d: this.path(edge) }))]));
    for (const n of this.nodes) this.boxes.set(n, this.svg.appendChild(this.box(n)));
    this.boxes.get(this.nodes[0])?.setAttribute("tabindex", "0");
    const room = root.appendChild(Object.assign(document.createElement("div"), { className: "drawing-room" }));
    room.append(this.svg);
    this.said = root.appendChild(Object.assign(document.createElement("p"), { className: "said" }));
    this.said.setAttribute("role", "status");
    this.said.textContent = "Choose a node to see what it reads and why it runs again (↻). A stub on top reads of another block, or an input.";
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
    const [x, y] = this.at(n), again = this.data.column("runs")[n] > 1;
    const name = this.named.column("nodes")[n], op = this.named.column("ops")[n];
    const phase = PHASES[this.data.column("phase")[n]];
    const end = (words, most) => ([...words].length > most ? `…${[...words].slice(1 - most).join("")}` : words);
    const text = (words, at, className) => {
      const made = element("text", { x: x + 8, y: y + at, class: className });
      made.textContent = words;
      return made;
    };
    const title = element("title", {});
    title.textContent = `${name}, ${op}`;
    const box = element("g", {
      class: again ? "node twice-run" : "node", role: "button", tabindex: -1, "data-node": n, "aria-pressed": "false",
      "aria-label": `${name}, ${op}, ${phase}, ${this.times(n)}`,
    }, [title, element("rect", { x, y, width: WIDE, height: HIGH, rx: 4 }), text((again ? "↻ " : "") + end(name, LONGEST), 15, "what"), text(end(op, LONGEST + 3), 28, "op")]);
    if (this.outside.has(n)) box.append(element("path", { class: "stub", d: `M${x + WIDE - 12} ${y - 8}V${y}` }));
    return box;
  }

  times(n) {
    const runs = this.data.column("runs")[n];
    return runs === 1 ? "runs once" : runs === 2 ? "runs twice" : `runs ${runs} times`;
  }

  /** Marks a node and its edges, and says what there is to say of it. */
  choose(n) {
    if (n === null) return;
    for (const [node, box] of this.boxes) {
      box.setAttribute("aria-pressed", String(node === n));
      box.setAttribute("tabindex", node === n ? "0" : "-1");
    }
    for (const [[from, to], line] of this.lines) line.classList.toggle("chosen", from === n || to === n);
    this.chosen = n;
    const names = this.named.column("nodes"), [pointer, read] = [this.data.column("read_pointer"), this.data.column("read_node")];
    const listed = (some) => some.slice(0, 4).join(", ") + (some.length > 4 ? ` and ${some.length - 4} more` : "");
    const reads = [...read.subarray(pointer[n], pointer[n + 1])].map((m) => (m < 0 ? "inputs" : names[m]));
    const readers = [];
    for (let m = 0; m + 1 < pointer.length; m++)
      for (let k = pointer[m]; k < pointer[m + 1]; k++) if (read[k] === n) readers.push(names[m]);
    const words = [
      `${names[n]}, ${this.named.column("ops")[n]}, ${PHASES[this.data.column("phase")[n]]}: ${seconds(this.data.column("seconds")[n])}, writes ${size(this.data.column("written")[n])}`,
      reads.length ? `reads of ${listed(reads)}` : "reads nothing",
      readers.length ? `read by ${listed(readers)}` : "read by no node",
      this.why(n) || "runs once",
    ];
    this.said.textContent = `${words.join("; ")}.`;
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

  /** The nearest node that way, one that is little aside before one that is far; `from` where there is none. */
  beside(from, [right, down]) {
    const [x, y] = this.at(from);
    let best = from, least = Infinity;
    for (const n of this.nodes) {
      const [dx, dy] = [this.at(n)[0] - x, this.at(n)[1] - y];
      const ahead = dx * right + dy * down, aside = Math.abs(dx * down) + Math.abs(dy * right);
      if (ahead > 0 && ahead + 3 * aside < least) [best, least] = [n, ahead + 3 * aside];
    }
    return best;
  }
}
