// Memory over steps of two plans in one chart.

import { fetchColumns } from "./columns.js";
import { heldAtPeak } from "./live_values.js";
import { liveValuesOfPlan, nodeNamesOfSteps } from "./plan_series.js";
import { announceSteps, MemoryChart } from "./timeline.js";

/** One plan as a series of the chart. */
function seriesOf(data, name, ink) {
  const steps = data.column("after");
  return {
    name, ink, steps, nodeAt: nodeNamesOfSteps(data),
    liveAt: data.meta.has_layout ? liveValuesOfPlan(data) : heldAtPeak(data.meta.holders.after, steps),
  };
}

async function start(section) {
  const { a: pathA, b: pathB, aNames, bNames } = section.dataset;
  const [a, b, namesA, namesB] = await Promise.all([pathA, pathB, aNames, bNames].map(fetchColumns));
  a.join(namesA);
  b.join(namesB);
  const budget = a.meta.budget_bytes === b.meta.budget_bytes ? a.meta.budget_bytes : null;
  announceSteps(new MemoryChart(section, [seriesOf(a, "A", "kind-2"), seriesOf(b, "B", "after")], budget));
  document.documentElement.dataset.drawn = "1";
}

const section = document.getElementById("memory");
start(section).catch((error) => {
  section.querySelector(".sheet").replaceWith(`The chart could not be drawn: ${error.message}. Reload the page.`);
});
