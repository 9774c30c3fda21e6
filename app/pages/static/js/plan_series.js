// Node and live values at each step of a plan, for the memory chart.

import { Spans } from "./spans.js";
import { largestLive } from "./timeline.js";

/** Step -> name of its node, with the number of a repeated run. */
export function nodeNamesOfSteps(data) {
  const [nodes, node, run] = data.list("nodes", "step_node", "step_run");
  return (step) => (nodes[node[step]] ?? "a copy") + (run[step] ? `, run ${run[step] + 1}` : "");
}

/** Step -> largest live values after planning, by the rectangles of the layout. `noteOf`: note on rectangle i. */
export function liveValuesOfPlan(data, noteOf = () => "") {
  const [first, last, bytes, value, names] = data.list("first", "last", "bytes", "value", "values");
  return largestLive(new Spans(first, last), bytes, (i) => (value[i] < 0 ? "workspace" : names[value[i]]), noteOf);
}
