// Live progress of one job from its event stream: state, best plan so far, lower bound.

import "./actions.js";
import { chart } from "./chart.js";
import { share, size } from "./format.js";
import { announce, showOffline } from "./net.js";

const FINISHED = new Set(["succeeded", "failed", "cancelled"]);
const DRAW_DELAY_MS = 100, TICK_MS = 250, REDRAW_MS = 2000;
const job = document.getElementById("job");
const initialState = job.dataset.state, stages = JSON.parse(job.dataset.stages); // stage -> what is done in it
const seconds = [], best = [], bound = []; // one entry per progress event; null: unknown
let state = initialState;
let updateChart = null;
let isDrawScheduled = false;

/** Shows the state; the page of a finished job has it, and its outcome. */
function showState(stage) {
  if (FINISHED.has(initialState)) return;
  const label = document.createElement("span");
  label.className = `state ${state}`;
  label.textContent = state + (state === "running" && stage ? `: ${stages[stage] ?? stage}` : "");
  document.getElementById("state").replaceChildren(label);
}

/** Seconds since the job started; null: it waits. */
function elapsedSeconds() {
  const from = job.dataset.started || (state === "running" ? job.dataset.created : "");
  return from ? Math.max(0, (Date.now() - Date.parse(from)) / 1000) : null;
}

/** Whole seconds, from a minute on with the minutes: "1 min 5 s". */
function duration(seconds) {
  const minutes = Math.floor(seconds / 60), rest = `${Math.floor(seconds % 60)} s`;
  if (!minutes) return rest;
  return `${minutes} min${rest === "0 s" ? "" : ` ${rest}`}`;
}

/** Elapsed and expected time: the search has a limit; reading before it and checking after it have none. */
function showTime() {
  const bar = document.getElementById("job-bar"), words = document.getElementById("job-time");
  if (!bar || FINISHED.has(state)) return;
  const elapsed = elapsedSeconds(), limit = Number(job.dataset.expected);
  if (elapsed === null) return;
  if (limit && elapsed < limit) bar.value = elapsed / limit;
  else bar.removeAttribute("value"); // indeterminate
  const search = limit ? ` of about ${duration(Math.ceil(limit))} of search` : "";
  const isSearched = limit && elapsed >= limit;
  words.textContent = `${duration(elapsed)}${isSearched ? `; the search limit of ${duration(Math.ceil(limit))} is reached, placing and checking follow` : search}.`;
}
const clock = setInterval(showTime, TICK_MS), redraw = setInterval(() => seconds.length && draw(), REDRAW_MS);
showTime();

function setText(id, text) {
  document.getElementById(id).textContent = text;
}

function draw() {
  isDrawScheduled = false;
  const isKnown = (value) => value != null;
  // A curve or a fit solves one plan after the other, so its progress does not converge.
  const isShown = job.dataset.kind === "plan" && best.some(isKnown);
  document.getElementById("convergence").hidden = !isShown;
  if (!isShown) return;
  const now = FINISHED.has(state) ? 0 : elapsedSeconds() ?? 0; // until then both stay as they are
  const until = (values, last) => (now > seconds.at(-1) ? [...values, last] : [...values]);
  const series = [
    { label: "best plan", colour: "after", values: until(best, best.at(-1)), steps: true },
    { label: "proven minimum", colour: "bound", values: until(bound, bound.at(-1)), steps: true, dash: [6, 4] },
  ];
  const place = document.getElementById("convergence-chart");
  if (updateChart) updateChart(until(seconds, now), series);
  else
    updateChart = chart(place, {
      x: until(seconds, now), series, format: (v) => share(v, 1), xFormat: (v) => `${Number(v.toFixed(2))} s`,
    });
  const percent = (value) => (value == null ? "unknown" : share(value, 2));
  place.ariaLabel = `After ${seconds.at(-1).toFixed(1)} s: best overhead ${percent(best.at(-1))}, proven minimum ${percent(bound.at(-1))}`;
}

/** Figures of the best plan so far; a plan over the budget has neither overhead nor gap. */
function showBest({ incumbent, bound, gap }) {
  if (job.dataset.kind !== "layout") document.getElementById("best").hidden = false;
  if (bound) setText("bound", share(bound.overhead, 2));
  if (!incumbent) return;
  const keeps = document.getElementById("keeps"), missing = incumbent.overhead == null ? "no plan fits yet" : "unknown";
  if (keeps) keeps.hidden = false;
  setText("peak", size(incumbent.peak_bytes));
  for (const [id, value] of [["overhead", incumbent.overhead], ["gap", gap]]) {
    setText(id, value == null ? missing : share(value, 2));
    document.getElementById(id).classList.toggle("no-figure", value == null);
  }
}

function onProgress(progress, stage) {
  if (stage && !FINISHED.has(state)) {
    state = "running";
    showState(stage);
  }
  if (!progress) return;
  const plan = progress.incumbent;
  seconds.push(Math.max(progress.seconds ?? 0, seconds.at(-1) ?? 0));
  best.push(plan?.overhead ?? best.at(-1) ?? null);
  bound.push(progress.bound?.overhead ?? bound.at(-1) ?? null);
  if (!FINISHED.has(initialState)) showBest(progress); // the page of a finished job has the figures of its plan
  if (!isDrawScheduled) {
    isDrawScheduled = true;
    setTimeout(draw, DRAW_DELAY_MS);
  }
}

const events = new EventSource(`/v1/operations/${job.dataset.id}/events`);
let announced = "";

events.addEventListener("state", (event) => {
  const operation = JSON.parse(event.data);
  state = operation.state;
  if (operation.started_at) job.dataset.started = operation.started_at;
  showState(operation.stage);
  if (state !== announced) announce(`The job is ${state}.`);
  announced = state;
  if (FINISHED.has(state)) {
    events.close();
    for (const timer of [clock, redraw]) clearInterval(timer);
    draw();
    if (FINISHED.has(initialState)) return;
    location.replace(`${location.pathname}?follow=1`); // leads to the plan, or shows what became of the job
  }
});
events.addEventListener("progress", (event) => {
  const message = JSON.parse(event.data);
  onProgress(message.progress ?? message, message.stage);
});
events.addEventListener("error", () => {
  if (FINISHED.has(state)) events.close();
  else showOffline();
});
