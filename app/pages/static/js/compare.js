// Memory over steps of two to six plans in one chart.

import { fetchColumns } from "./columns.js";
import { heldAtPeak } from "./live_values.js";
import { liveValuesOfPlan, nodeNamesOfSteps } from "./plan_series.js";
import { announceSteps, MemoryChart } from "./timeline.js";

const INKS = ["kind-2", "after", "kind-3", "kind-4", "kind-7", "kind-8"];

/** One plan as a series of the chart. */
function seriesOf(data, name, ink) {
  const steps = data.column("after");
  return {
    name, ink, steps, nodeAt: nodeNamesOfSteps(data),
    liveAt: data.meta.has_layout ? liveValuesOfPlan(data) : heldAtPeak(data.meta.holders.after, steps),
  };
}

async function start(section) {
  const plans = [...section.querySelectorAll("[data-plan]")].map(({ dataset }) => dataset);
  const series = await Promise.all(plans.map(async ({ plan, src, names }, k) => {
    const [data, more] = await Promise.all([src, names].map(fetchColumns));
    data.join(more);
    return { ...seriesOf(data, plan, INKS[k]), budget: data.meta.budget_bytes };
  }));
  const [budget, ...others] = new Set(series.map((each) => each.budget));
  announceSteps(new MemoryChart(section, series, others.length ? null : budget));
  document.documentElement.dataset.drawn = "1";
}

const section = document.getElementById("memory");
start(section).catch((error) => {
  section.querySelector(".sheet").replaceWith(`The chart could not be drawn: ${error.message}. Reload the page.`);
});
