// Series of the memory chart of a plan: nodes and live values at each step, and what the graph adds: time, kinds, phases.

import { runsInWords, size } from "./format.js";
import { heldAtPeak, largestLive } from "./live_values.js";
import { RECOMPUTED } from "./map.js";
import { Spans } from "./spans.js";
import { stackedSums, startsOf } from "./stacks.js";

const RESIDENT_KINDS = 4; // the first kinds of KINDS in app/render/plan/columns.py: parameter, input, constant, state

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

/** The series before and after; live values are known at the peaks only. */
export function firstSeries(data) {
  return ["before", "after"].map((name) => ({
    name, ink: name, steps: data.column(name), nodeAt: () => "",
    liveAt: heldAtPeak(data.meta.holders[name], data.column(name)),
  }));
}

/** The series with node and live values of every step after planning; needs the names. */
export function namedSeries([before, after], data) {
  const again = data.column("again");
  const liveAt = data.meta.has_layout ? liveValuesOfPlan(data, (i) => (again[i] ? RECOMPUTED[again[i]] : "")) : after.liveAt;
  return [before, { ...after, nodeAt: nodeNamesOfSteps(data), liveAt }];
}

/** The series with time, kinds, phases and tooltips of every step; needs the graph. */
export function wholeSeries([before, after], data, graph) {
  const [seconds, phase] = graph.list("seconds", "phase"), [nodeOfStep, run] = data.list("step_node", "step_run");
  const of = (nodes, column, other) => Float64Array.from(nodes, (n) => (n < 0 ? other : column[n]));
  const isCounted = data.meta.counts !== "activations";
  const [first, last, bytes, value, kind] = data.list("first", "last", "bytes", "value", "kind"), category = graph.column("category");
  const categoryOf = (i) => (value[i] < 0 ? -1 : kind[i] < RESIDENT_KINDS && !isCounted ? -2 : category[value[i]] ?? 3);
  const newAfter = {
    ...after, starts: startsOf(of(nodeOfStep, seconds, 0)), phases: of(nodeOfStep, phase, 3), again: run.map((k) => (k > 0 ? 1 : 0)),
    sums: data.meta.has_layout ? stackedSums(after.steps, { first, last, bytes }, categoryOf) : undefined,
    tipAt: tips(nodeOfStep, run, data, graph),
  };
  return [wholeBefore(before, data, graph, of), newAfter];
}

/** The series before planning; unchanged if the lifetimes of its values could not be derived. */
function wholeBefore(before, data, graph, of) {
  if (!graph.has("held_first")) return before;
  const [first, last, bytes, value, node, workspace] =
    graph.list("held_first", "held_last", "held_bytes", "held_value", "before_node", "before_workspace");
  const names = data.column("values"), category = graph.column("category"), held = first.length;
  const steps = [...workspace.keys()].filter((step) => workspace[step]);
  const join = (column, more) => Float64Array.from([...column, ...more]);
  const spans = { first: join(first, steps), last: join(last, steps), bytes: join(bytes, steps.map((step) => workspace[step])) };
  return {
    ...before, nodeAt: (step) => data.column("nodes")[node[step]],
    liveAt: largestLive(new Spans(first, last), bytes, (i) => names[value[i]], () => ""),
    starts: startsOf(of(node, graph.column("seconds"), 0)), phases: of(node, graph.column("phase"), 3),
    sums: stackedSums(before.steps, spans, (i) => (i < held ? category[value[i]] ?? 3 : -1)),
    tipAt: tips(node, null, data, graph),
  };
}

/** Step -> lines of its tooltip: node, op with the type of its result, module, run. */
function tips(nodeOfStep, run, data, graph) {
  const nodes = data.column("nodes"), [runs, written, seconds] = graph.list("runs", "written", "seconds");
  return (step) => {
    const n = nodeOfStep[step];
    if (n < 0) return ["a copy between device and host"];
    const again = run?.[step] ? [`recomputed: run ${run[step] + 1} of ${runs[n]}`] : run && runs[n] > 1 ? [`${runsInWords(runs[n])}, this is the first run`] : [];
    const makes = seconds[n] ? `, writes ${size(written[n])}` : ", a view";
    const [op, layer] = opAndLayer(n, data, graph);
    return [nodes[n], op + makes, layer, ...again];
  };
}

/** Op of node n with the type of its result, and the module it is in. */
function opAndLayer(n, data, graph) {
  const [layer, layers, output, typeOf, types] = graph.list("layer", "layers", "output", "type_of", "types");
  const type = output[n] < 0 ? "" : ` → ${types[typeOf[output[n]]]}`;
  return [data.column("ops")[n] + type, `in ${layers[layer[n]]}`];
}

/** Adds what it is to each node that is named in `root`. */
export function describeNodes(root, data, graph) {
  const codes = [...root.querySelectorAll("code[data-node]")], places = new Map(codes.map((code) => [code.dataset.node, -1]));
  data.column("nodes").forEach((name, n) => places.has(name) && places.set(name, n));
  for (const code of codes) {
    const n = places.get(code.dataset.node), words = document.createElement("span");
    if (n < 0) continue;
    words.className = code.closest("th") ? "sub" : "small";
    words.textContent = ` ${opAndLayer(n, data, graph).join(", ")}`;
    code.after(words);
  }
}
