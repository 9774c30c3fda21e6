// Two plans over each other: memory over steps, and who holds it.

import { columnsAt } from "./columns.js";
import { ask } from "./net.js";
import { Spans } from "./spans.js";
import { heldAtPeak, heldIn, MemoryPicture } from "./timeline.js";

/** One plan as a line of the picture. */
function seriesOf(data, name, ink) {
  const [first, last, bytes, value] = ["first", "last", "bytes", "value"].map((column) => data.column(column));
  const nameOf = (i) => (value[i] < 0 ? "workspace" : data.column("values")[value[i]]);
  return {
    name, ink, steps: data.column("after"),
    ran: (step) => data.column("nodes")[data.column("step_node")[step]] ?? "a copy",
    held: data.meta.has_layout
      ? heldIn(new Spans(first, last), bytes, nameOf, () => "")
      : heldAtPeak(data.meta.holders.after, data.column("after")),
  };
}

async function start(room) {
  const { a: pathA, b: pathB, aNames, bNames } = room.dataset;
  const [a, b, namesA, namesB] = await Promise.all([pathA, pathB, aNames, bNames].map((path) => columnsAt(ask, path)));
  a.join(namesA);
  b.join(namesB);
  const budget = a.meta.budget_bytes === b.meta.budget_bytes ? a.meta.budget_bytes : null;
  const memory = new MemoryPicture(room, [seriesOf(a, "A", "kind-2"), seriesOf(b, "B", "after")], budget);
  const words = room.querySelector("[data-part=words]");
  let telling = 0;
  room.addEventListener("remat:step", () => {
    clearTimeout(telling);
    telling = setTimeout(() => (words.textContent = memory.words), 150);
  });
  document.documentElement.dataset.drawn = "1";
}

const room = document.getElementById("memory");
start(room).catch((error) => {
  room.querySelector(".sheet").replaceWith(`This could not be drawn: ${error.message}. Load the page again.`);
});
