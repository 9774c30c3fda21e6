// One job, followed by its events: the best so far and the bound as they close in.

import "./jobs.js";
import { chart } from "./chart.js";
import { share, size } from "./format.js";
import { lost, tell } from "./net.js";

const STATES = { queued: "waiting", running: "running", succeeded: "done", failed: "failed", cancelled: "cancelled" };
const FINISHED = new Set(["succeeded", "failed", "cancelled"]);
const job = document.getElementById("job");
const seconds = [];
const best = [];
const bound = [];
let race = null;
let drawing = false;

function stated(state, stage) {
  const mark = document.createElement("span");
  mark.className = `state ${state}`;
  mark.textContent = STATES[state] + (state === "running" && stage ? `: ${stage}` : "");
  document.getElementById("state").replaceChildren(mark);
}

function put(id, text) {
  document.getElementById(id).textContent = text;
}

function draw() {
  drawing = false;
  const shown = job.dataset.kind === "plan" && // of a curve or a fit they are of one plan after the other
    (best.some((value) => value != null) || bound.some((value) => value != null));
  document.getElementById("closing").hidden = !shown;
  if (!shown) return;
  const series = [
    { label: "best found", colour: "after", values: [...best], steps: true },
    { label: "no plan takes less", colour: "bound", values: [...bound], steps: true, dash: [6, 4] },
  ];
  const place = document.getElementById("race");
  if (race) race([...seconds], series);
  else race = chart(place, { x: [...seconds], series, format: (v) => share(v, 1), xFormat: (v) => `${Number(v.toFixed(2))} s` });
  const last = best.length - 1;
  place.ariaLabel = `After ${seconds[last].toFixed(1)} s: best found ${best[last] == null ? "nothing" : share(best[last], 2)}, bound ${bound[last] == null ? "unknown" : share(bound[last], 2)}`;
}

function progressed(progress, stage) {
  if (stage && !FINISHED.has(told || began)) stated("running", stage);
  if (!progress) return;
  const found = progress.incumbent;
  const at = Math.max(progress.seconds ?? 0, seconds.at(-1) ?? 0);
  seconds.push(at);
  best.push(found?.overhead ?? best.at(-1) ?? null);
  bound.push(progress.bound?.overhead ?? bound.at(-1) ?? null);
  if (found) {
    put("peak", size(found.peak_bytes));
    if (found.overhead != null) put("overhead", share(found.overhead, 2));
  }
  if (progress.bound) put("bound", share(progress.bound.overhead, 2));
  if (progress.gap != null) put("gap", share(progress.gap, 2));
  if (!drawing) {
    drawing = true;
    setTimeout(draw, 100);
  }
}

const began = job.dataset.state;
const events = new EventSource(`/v1/operations/${job.dataset.id}/events`);
let told = "";

events.addEventListener("state", (event) => {
  const operation = JSON.parse(event.data);
  stated(operation.state, operation.stage);
  if (operation.state !== told) tell(`The job is ${STATES[operation.state]}.`);
  told = operation.state;
  if (FINISHED.has(operation.state)) {
    events.close();
    draw();
    if (!FINISHED.has(began)) location.reload();
  }
});
events.addEventListener("progress", (event) => {
  const said = JSON.parse(event.data);
  progressed(said.progress ?? said, said.stage);
});
events.addEventListener("error", () => {
  if (FINISHED.has(told) || FINISHED.has(began)) events.close();
  else lost();
});
