// Page of a plan: charts as soon as their columns arrive, then the graph.

import { Columns, fetchColumns } from "./columns.js";
import { AddressMap, RECOMPUTED } from "./map.js";
import { drawSnapshots } from "./measured.js";
import { announce, getJson, postJson, request } from "./net.js";
import { liveValuesOfPlan, nodeNamesOfSteps } from "./plan_series.js";
import { showPreview } from "./preview.js";
import { Spans } from "./spans.js";
import { announceSteps, heldAtPeak, largestLive, MemoryChart } from "./timeline.js";

const POLL_MS = 1000;
const byId = (id) => document.getElementById(id);

/** The series of the memory chart; live values are known at the peaks only. */
function seriesOf(data) {
  return ["before", "after"].map((name) => ({
    name, ink: name, steps: data.column(name), nodeAt: () => "",
    liveAt: heldAtPeak(data.meta.holders[name], data.column(name)),
  }));
}

/** Adds node and live values of every step after planning; needs the names. */
function completeAfter(series, data) {
  series.nodeAt = nodeNamesOfSteps(data);
  if (!data.meta.has_layout) return;
  const again = data.column("again");
  series.liveAt = liveValuesOfPlan(data, (i) => (again[i] ? RECOMPUTED[again[i]] : ""));
}

/** Adds node and live values of every step before planning; needs the graph. */
function completeBefore(series, graph, data) {
  if (!graph.has("held_first")) return;
  const [first, last, bytes, value, node] = graph.list("held_first", "held_last", "held_bytes", "held_value", "before_node");
  series.liveAt = largestLive(new Spans(first, last), bytes, (i) => data.column("values")[value[i]], () => "");
  series.nodeAt = (step) => data.column("nodes")[node[step]];
}

function showFailure(section, error) {
  const notice = Object.assign(document.createElement("p"), { className: "notice bad" });
  notice.textContent = `Could not be drawn: ${error.message}. Reload the page; the downloads below may still work.`;
  section.querySelector(".sheet, [data-part=rows]")?.replaceWith(notice);
}

/** Resolves after the current frame is painted. */
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** Shows the preview of a large plan, which is inlined in the page, until the columns arrive. */
async function preview(section) {
  const packed = Uint8Array.from(atob(section.dataset.preview), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  showPreview(section, byId("map"), new Columns(await new Response(stream).arrayBuffer()));
  await painted();
  performance.mark("remat:preview");
}

async function start() {
  const section = byId("memory");
  if (section.dataset.preview) await preview(section).catch(() => {}); // the charts do not depend on the preview
  const data = await fetchColumns(section.dataset.src);
  performance.mark("remat:loaded");
  const map = data.meta.has_layout ? new AddressMap(byId("map"), data, announce) : null;
  const memory = new MemoryChart(section, seriesOf(data), data.meta.budget_bytes);
  announceSteps(memory);
  drawSnapshots(byId("measured"), memory);
  section.addEventListener("remat:step", ({ detail }) => map?.showStep(detail));
  window.remat = { data, map, memory }; // for tests and the browser console
  memory.sheet.now();
  performance.mark("remat:drawn");
  document.documentElement.dataset.drawn = "1";
  painted().then(() => performance.mark("remat:painted"));
  data.join(await fetchColumns(section.dataset.names));
  completeAfter(memory.series[1], data);
  memory.listLiveValues();
  document.documentElement.dataset.named = "1";
  const [graph, { BlockView }] = await Promise.all([fetchColumns(section.dataset.graph), import("./blocks.js")]);
  completeBefore(memory.series[0], graph, data);
  memory.listLiveValues();
  map?.setLayers(...graph.list("layer_of", "layer", "layers"));
  window.remat.blocks = new BlockView(byId("graph"), graph, data);
  document.documentElement.dataset.read = "1";
}

/** Requests a curve, waits for it, and shows the plans stored then. */
async function requestCurve(event) {
  const button = event.currentTarget, status = byId("curve-status");
  button.disabled = true;
  status.textContent = "Planning; the curve appears here when it is finished.";
  try {
    const response = await postJson("/v1/curves", button.dataset.request);
    if (response.status === 202) await finished(response.headers.get("Location"));
    const place = byId("curve");
    place.innerHTML = await (await request(place.dataset.src)).text();
    status.textContent = "Finished.";
  } catch (error) {
    status.textContent = `Error: ${error.message}`;
  }
  button.disabled = false;
}

/** Resolves when the operation has finished. Throws its error. */
async function finished(path) {
  for (;;) {
    const operation = await getJson(path);
    if (operation.error) throw new Error(operation.error.detail);
    if (["succeeded", "cancelled"].includes(operation.state)) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

// An async script, so it may run before the page is parsed.
if (document.readyState === "loading")
  await new Promise((parsed) => document.addEventListener("readystatechange", parsed, { once: true }));
byId("request-curve")?.addEventListener("click", requestCurve);
start().catch((error) => {
  for (const id of ["memory", "map", "graph"]) showFailure(byId(id), error);
  document.documentElement.dataset.failed = error.message;
});
