// Memory snapshots of PyTorch over the predicted memory of a plan.

import { getJson, request } from "./net.js";

/** Lets snapshots be dropped or chosen in `section`, and draws them in the chart `memory`. */
export function drawSnapshots(section, memory) {
  const { path } = section.dataset;
  for (const button of section.querySelectorAll("[data-do=draw]"))
    button.addEventListener("click", async () => {
      const { measurements } = await getJson(path);
      const found = measurements.find(({ id }) => id === button.dataset.id);
      if (found) draw(memory, found.snapshot);
    });
  const file = section.querySelector("input[type=file]");
  if (!file) return;
  const drop = section.querySelector("[data-part=drop]"), status = section.querySelector("[role=status]");
  async function send(chosen) {
    status.textContent = `Reading ${chosen.name}`;
    try {
      const headers = { "Content-Type": "application/octet-stream" };
      const { snapshot } = await (await request(path, { method: "POST", body: chosen, headers })).json();
      draw(memory, snapshot);
      status.textContent = `${chosen.name} is drawn over the prediction: ${snapshot.events} events on ${snapshot.device}.`;
    } catch (error) {
      status.textContent = `Error: ${error.message}`;
    }
  }
  file.addEventListener("change", () => file.files.length && send(file.files[0]));
  for (const name of ["dragenter", "dragover"])
    drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) send(event.dataTransfer.files[0]);
  });
}

/** Draws a snapshot from the first step of the plan to the last, each event as long as the others. */
function draw(memory, { curve }) {
  const steps = stretched(curve.bytes, memory.series[1].steps.length);
  const unknown = "Events of a snapshot, stretched over the steps of the plan; live values are not recorded.";
  memory.add({ name: "measured", ink: "measured", steps, nodeAt: () => "", liveAt: () => null, unknown });
}

/** `count` numbers, each the largest of its part of `bytes`, or the nearest one. */
export function stretched(bytes, count) {
  return Float64Array.from({ length: count }, (_, step) => {
    const from = Math.floor((step * bytes.length) / count), to = Math.ceil(((step + 1) * bytes.length) / count);
    return bytes.slice(from, Math.max(from + 1, to)).reduce((most, each) => Math.max(most, each), 0);
  });
}
