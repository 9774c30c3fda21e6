// Page of a plan: charts as soon as their columns arrive, then the graph; the budget slider swaps the plan that is shown.

import { followAnnotations } from "./annotate.js";
import { BudgetSlider } from "./budget.js";
import { Columns, fetchColumns } from "./columns.js";
import { followTabs } from "./use_it.js";
import { AddressMap } from "./map.js";
import { drawSnapshots } from "./measured.js";
import { announce, finished, postJson, request } from "./net.js";
import { describeNodes, firstSeries, namedSeries, wholeSeries } from "./plan_series.js";
import { showPreview } from "./preview.js";
import { announceSteps, MemoryChart } from "./timeline.js";

const byId = (id) => document.getElementById(id);
const cache = new Map(); // path -> promise of its response: columns or a page
let showing = 0; // number of the plan that is being shown; an older one stops

function showFailure(section, error) {
  const notice = Object.assign(document.createElement("p"), { className: "notice bad" });
  notice.textContent = `Could not be drawn: ${error.message}. Reload the page; the downloads may still work.`;
  (section.querySelector("[data-part=rows]") ?? section.querySelector(".sheet"))?.replaceWith(notice);
}

/** Resolves after the current frame is painted. */
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** Shows the preview of a large plan, which is inlined in the page, unless `columns` arrive before it is unpacked. */
async function preview(section, columns) {
  let hasArrived = false;
  const arrived = columns.then(() => { hasArrived = true; });
  const packed = Uint8Array.from(atob(section.dataset.preview), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = await Promise.race([new Response(stream).arrayBuffer(), arrived]);
  if (hasArrived) return;
  showPreview(section, byId("map"), new Columns(data));
  await Promise.race([painted().then(() => performance.mark("remat:preview")), arrived]);
}

/** The response of a path, fetched once. */
function cached(path, fetchIt) {
  if (!cache.has(path)) cache.set(path, fetchIt(path).catch((error) => { cache.delete(path); throw error; }));
  return cache.get(path);
}

/** Draws the plan of the page as its columns arrive; stops when another is shown. */
async function draw(own) {
  const section = byId("memory");
  const columns = cached(section.dataset.src, fetchColumns);
  if (section.dataset.preview) await preview(section, columns).catch(() => {}); // the charts do not depend on the preview
  const data = await columns;
  if (own !== showing) return;
  performance.mark("remat:loaded");
  const map = data.meta.has_layout ? new AddressMap(byId("map"), data, announce) : null;
  let series = firstSeries(data);
  const memory = new MemoryChart(section, series, data.meta.budget_bytes);
  announceSteps(memory);
  drawSnapshots(byId("measured"), memory);
  section.addEventListener("remat:step", ({ detail }) => map?.showStep(detail));
  window.remat = { data, map, memory }; // for tests and the browser console
  memory.sheet.now();
  performance.mark("remat:drawn");
  document.documentElement.dataset.drawn = "1";
  await painted(); // else names and graph, which may be there already, are read before the charts are seen
  performance.mark("remat:painted");
  if (own !== showing) return;
  data.join(await cached(section.dataset.names, fetchColumns));
  if (own !== showing) return;
  const replace = (next) => memory.setSeries([...(series = next), ...memory.series.slice(2)]); // and what was measured
  replace(namedSeries(series, data));
  document.documentElement.dataset.named = "1";
  const [graph, { BlockView }] = await Promise.all([cached(section.dataset.graph, fetchColumns), import("./blocks.js")]);
  if (own !== showing) return;
  performance.mark("remat:graph");
  replace(wholeSeries(series, data, graph));
  memory.sheet.now();
  performance.mark("remat:timeline");
  describeNodes(byId("recomputed"), data, graph);
  map?.setLayers(...graph.list("layer_of", "layer", "layers"));
  window.remat.blocks = new BlockView(byId("graph"), graph, data);
  followWhole(byId("graph").querySelector("[data-part=whole-graph]"), graph, data);
  document.documentElement.dataset.read = "1";
}

/** Draws the whole graph once it is opened. */
function followWhole(details, graph, data) {
  details.addEventListener("toggle", async () => {
    if (!details.open || details.dataset.drawn) return;
    details.dataset.drawn = "1";
    const [{ GraphView, isDrawable }, { reason }] = await Promise.all([import("./graph_view.js"), import("./blocks.js")]);
    if (isDrawable(graph.column("phase").length)) window.remat.graph = new GraphView(details, graph, data, (n) => reason(graph, n));
    else details.querySelector("[data-part=selection]").textContent = "This graph is too large to be laid out; its blocks are below.";
  });
}

async function start() {
  const own = ++showing;
  followTabs(byId("use"));
  try {
    await draw(own);
  } catch (error) {
    if (own !== showing) return;
    for (const id of ["memory", "map", "graph"]) showFailure(byId(id), error);
    document.documentElement.dataset.failed = error.message;
  }
}

/** The page of a plan as a document. */
const pageOf = async (path) => new DOMParser().parseFromString(await (await request(path)).text(), "text/html");

/** Fetches what a plan needs to be shown, in the order of its use. */
async function prefetch(id) {
  const page = await cached(`/plans/${id}`, pageOf), { src, names, graph } = page.getElementById("memory").dataset;
  for (const path of [src, names, graph]) await cached(path, fetchColumns);
}

/** Shows another plan of the graph: every part with `data-follows` is replaced, then drawn. */
async function show(id) {
  const own = ++showing, page = await cached(`/plans/${id}`, pageOf);
  await cached(page.getElementById("memory").dataset.src, fetchColumns); // so that the charts are drawn with the new parts
  if (own !== showing) return;
  const view = document.querySelector("#memory [data-do=view]").value, chosen = document.querySelector("#use [role=tab][aria-selected=true]")?.id;
  for (const mark of ["drawn", "named", "read"]) delete document.documentElement.dataset[mark];
  for (const part of document.querySelectorAll("[data-follows]")) {
    const next = page.getElementById(part.id);
    if (next) part.replaceWith(document.importNode(next, true));
  }
  document.querySelector("#memory [data-do=view]").value = view;
  history.replaceState(null, "", `/plans/${id}`);
  await start();
  byId(chosen)?.click();
}

/** Requests a curve, waits for it, and shows the plans stored then. */
async function requestCurve(event) {
  const button = event.currentTarget, status = byId("curve-status");
  button.disabled = true;
  try {
    const response = await postJson("/v1/curves", button.dataset.request);
    if (response.status === 202) {
      const path = response.headers.get("Location");
      const link = Object.assign(document.createElement("a"), { href: path.replace("/v1/operations/", "/jobs/"), textContent: "follow its job" });
      status.replaceChildren("Planning; the curve appears here when it is finished, or ", link, ".");
      await finished(path);
    }
    const place = byId("curve");
    place.innerHTML = await (await request(place.dataset.src)).text();
    status.textContent = "Finished.";
  } catch (error) {
    status.textContent = `Error: ${error.message}`;
  }
  button.disabled = false;
}

// An async script, so it may run before the page is parsed.
if (document.readyState === "loading")
  await new Promise((parsed) => document.addEventListener("readystatechange", parsed, { once: true }));
byId("request-curve")?.addEventListener("click", requestCurve);
followAnnotations((id) => cache.delete(`/plans/${id}`));
const form = byId("budget");
start().then(() => form && new BudgetSlider(form, { show, prefetch }));
