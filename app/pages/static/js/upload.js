// Upload page: checks the fields, submits the model, and opens the page of its job; a stored plan opens at once.

import { size } from "./format.js";
import { announce } from "./net.js";
import { submitModel } from "./submit_model.js";

const form = document.getElementById("upload");
const file = document.getElementById("file");
const drop = document.getElementById("drop");
const submit = document.getElementById("submit");
const progress = document.getElementById("progress");
const errorBox = document.getElementById("error");

//: First part of a path in an error -> name of the field of this form.
const FIELDS = { budget: "budget", dims: "dims", dim: "dims", inputs: "dims", batch: "batch", planner: "planner", device: "device", runtime: "runtime", search_seconds: "search_seconds" };

function showFile() {
  const chosen = file.files[0];
  document.getElementById("file-info").textContent = chosen ? `${chosen.name}, ${size(chosen.size)}` : "Drop a file here, or choose one.";
}
file.addEventListener("change", showFile);
for (const name of ["dragenter", "dragover"])
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"])
  drop.addEventListener(name, () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) file.files = event.dataTransfer.files;
  showFile();
});

/** What is wrong with a budget, or empty: the grammar of the command line. */
export function budgetFault(text) {
  const budget = text.trim();
  if (!budget) return "Write a budget: a share such as 50%, bytes such as 8GiB, or 0 for the lowest peak.";
  const number = /^\d+$/.test(budget) ? Number(budget) : NaN;
  if (number > 1 && number <= 100) return `Did you mean ${number}%? For bytes write ${number}B.`;
  if (/^\d+$/.test(budget) || /^\d+(\.\d+)?\s*(%|[KMGT]?i?B)$/i.test(budget) || /^(0?\.\d+|1\.0*)$/.test(budget)) return "";
  return `“${budget}” is not a budget. Write a share such as 50%, bytes such as 8GiB or 500MB, or 0 for the lowest peak.`;
}

/** Named dimensions of the field, as `name=length`; throws with a sentence about the first that is wrong. */
export function namedDimensions(text) {
  return text.split(/[\s,;]+/).filter(Boolean).map((each) => {
    if (!/^[^=]+=\d+$/.test(each)) throw new Error(`“${each}” is not a dimension. Write name=length, such as sequence=512.`);
    return each;
  });
}

function element(name, attributes) {
  return Object.assign(document.createElement(name), attributes);
}

/** An error of the service in the words of this form. */
function inWords({ path = "", found, expected, remedy }) {
  const parts = path.replace(/^query\./, "").split("."), field = FIELDS[parts[0]];
  const label = field && form.elements[field]?.closest("label")?.firstChild.textContent.trim();
  if (parts[0] === "dims" && parts[1]) return { field, text: `The dimension “${parts[1]}” has no length. Write ${parts[1]}=8, with its length, under ${label}.` };
  const words = `found ${found}; expected ${expected}. To fix: ${remedy}.`;
  return { field, text: label ? `${label}: ${words}` : `${path}: ${words}` };
}

function showError(error) {
  const problem = error.problem ?? {}, findings = (problem.errors ?? []).map(inWords), list = element("ul");
  for (const { text } of findings) list.append(element("li", { textContent: text }));
  errorBox.replaceChildren(element("h2", { textContent: problem.title ?? "Not submitted" }));
  errorBox.append(findings.length ? list : element("p", { className: "message", textContent: error.message }));
  errorBox.hidden = false;
  progress.hidden = true;
  submit.disabled = false;
  const field = findings.find((each) => each.field)?.field ?? error.field;
  (field ? form.elements[field] : errorBox).focus();
  errorBox.scrollIntoView({ block: "nearest" });
}

/** Throws the first fault of the fields, with the `field` it is of. */
function checked(inputs) {
  const fail = (field, message) => { throw Object.assign(new Error(message), { field }); };
  if (!file.files.length) fail("file", "Choose a model file first.");
  const fault = budgetFault(inputs.get("budget"));
  if (fault) fail("budget", fault);
  try {
    return namedDimensions(inputs.get("dims"));
  } catch (error) {
    return fail("dims", error.message);
  }
}

function showStep(text, share) {
  document.getElementById("progress-step").textContent = text;
  document.getElementById("progress-bar").value = share;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const inputs = new FormData(form), budget = inputs.get("budget").trim();
  errorBox.hidden = true;
  submit.disabled = true;
  try {
    const dims = checked(inputs), model = file.files[0];
    progress.hidden = false;
    const fields = {
      budget: /^\d+$/.test(budget) ? Number(budget) : budget,
      planner: inputs.get("planner"),
      device: inputs.get("device"),
      runtime: inputs.get("runtime"),
      search_seconds: Number(inputs.get("search_seconds")),
      execute: inputs.get("execute") ?? "no",
    };
    const page = await submitModel(model, model.name, { batch: inputs.get("batch"), dims }, fields, showStep);
    announce("Plan requested.");
    location.assign(page);
  } catch (error) {
    showError(error);
  }
});
