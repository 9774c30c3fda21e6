// The page of a plan: what is drawn at once, and what follows when the graph has been read.

import { Columns, columnsAt } from "./columns.js";
import { AddressMap } from "./map.js";
import { ask, json, tell } from "./net.js";
import { showSketch } from "./sketch.js";
import { Spans } from "./spans.js";
import { heldAtPeak, heldIn, MemoryPicture } from "./timeline.js";

const AGAIN = ["", "to be made again", "made again"];
const byId = (id) => document.getElementById(id);

/** The lines of the memory picture, with who holds the peaks. */
function seriesOf(data) {
  return ["before", "after"].map((name) => ({
    name, ink: name, steps: data.column(name), ran: () => "",
    held: heldAtPeak(data.meta.holders[name], data.column(name)),
  }));
}

/** What runs and who holds what after, at every step, once names are known. */
function knowAfter(series, data) {
  const [values, nodes, node, run] = ["values", "nodes", "step_node", "step_run"].map((name) => data.column(name));
  series.ran = (step) => (nodes[node[step]] ?? "a copy") + (run[step] ? `, run ${run[step] + 1}` : "");
  if (!data.meta.has_layout) return;
  const [first, last, bytes, value, again] = ["first", "last", "bytes", "value", "again"].map((name) => data.column(name));
  const nameOf = (i) => (value[i] < 0 ? "workspace" : values[value[i]]);
  series.held = heldIn(new Spans(first, last), bytes, nameOf, (i) => AGAIN[again[i]]);
}

/** What is held before, at every step, once the graph has been read. */
function knowBefore(series, graph, data) {
  if (!graph.has("held_first")) return;
  const [first, last, bytes, value] = ["first", "last", "bytes", "value"].map((name) => graph.column(`held_${name}`));
  series.held = heldIn(new Spans(first, last), bytes, (i) => data.column("values")[value[i]], () => "");
  const ran = graph.column("before_node");
  series.ran = (step) => data.column("nodes")[ran[step]];
}

function failed(room, error) {
  const said = Object.assign(document.createElement("p"), { className: "notice bad" });
  said.textContent = `This could not be drawn: ${error.message}. Load the page again; the downloads below may still answer.`;
  room.querySelector(".sheet, [data-part=rows]")?.replaceWith(said);
}

/** Returns once the frame that is being drawn stands. */
const framed = () => new Promise((stands) => requestAnimationFrame(() => setTimeout(stands)));

/** Shows the sketch of a large plan, which is in the page: its columns take a while to come. */
async function sketch(room) {
  const small = Uint8Array.from(atob(room.dataset.sketch), (letter) => letter.charCodeAt(0));
  const whole = new Blob([small]).stream().pipeThrough(new DecompressionStream("gzip"));
  showSketch(room, byId("map"), new Columns(await new Response(whole).arrayBuffer()));
  await framed();
  performance.mark("remat:sketched");
}

async function start() {
  const room = byId("memory");
  if (room.dataset.sketch) await sketch(room).catch(() => {}); // the pictures come whatever becomes of it
  const data = await columnsAt(ask, room.dataset.src);
  performance.mark("remat:came");
  const map = data.meta.has_layout ? new AddressMap(byId("map"), data, tell) : null;
  const memory = new MemoryPicture(room, seriesOf(data), data.meta.budget_bytes);
  const words = room.querySelector("[data-part=words]");
  let telling = 0;
  room.addEventListener("remat:step", ({ detail }) => {
    if (map) {
      map.step = detail;
      map.sheet.moved();
    }
    clearTimeout(telling);
    telling = setTimeout(() => (words.textContent = memory.words), 150);
  });
  window.remat = { data, map, memory }; // for tests and the curious
  memory.sheet.now();
  performance.mark("remat:drawn");
  document.documentElement.dataset.drawn = "1";
  framed().then(() => performance.mark("remat:painted"));
  data.join(await columnsAt(ask, room.dataset.names));
  knowAfter(memory.series[1], data);
  memory.say();
  document.documentElement.dataset.named = "1";
  const [graph, { BlockView }] = await Promise.all([columnsAt(ask, room.dataset.graph), import("./blocks.js")]);
  knowBefore(memory.series[0], graph, data);
  memory.say();
  map?.setLayers(graph.column("layer_of"), graph.column("layer"), graph.column("layers"));
  window.remat.blocks = new BlockView(byId("graph"), graph, data);
  document.documentElement.dataset.read = "1";
}

/** Asks for a curve, waits for it, and shows what has been planned. */
async function askCurve(event) {
  const button = event.currentTarget, said = byId("curve-said");
  button.disabled = true;
  said.textContent = "Planning; this page shows the curve when it is there.";
  try {
    const answer = await ask("/v1/curves", {
      method: "POST", body: button.dataset.question, headers: { "Content-Type": "application/json" },
    });
    if (answer.status === 202) await ended(answer.headers.get("Location"));
    const room = byId("curve");
    room.innerHTML = await (await ask(room.dataset.src)).text();
    said.textContent = "The curve is above.";
  } catch (error) {
    said.textContent = `No curve: ${error.message}`;
  }
  button.disabled = false;
}

/** Returns when the operation has ended. Throws what it failed with. */
async function ended(path) {
  for (;;) {
    const operation = await json(path);
    if (operation.error) throw new Error(operation.error.detail);
    if (["succeeded", "cancelled"].includes(operation.state)) return;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// This script waits for no other one, so it may come before the page has been read to its end.
if (document.readyState === "loading")
  await new Promise((read) => document.addEventListener("readystatechange", read, { once: true }));
byId("ask-curve")?.addEventListener("click", askCurve);
start().catch((error) => {
  for (const id of ["memory", "map", "graph"]) failed(byId(id), error);
  document.documentElement.dataset.failed = error.message;
});
