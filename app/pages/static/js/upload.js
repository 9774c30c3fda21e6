// Uploads a model, requests a plan, and opens the page of its job; a stored plan opens at once.

import { announce, postJson, ProblemError, showOffline } from "./net.js";

const form = document.getElementById("upload");
const file = document.getElementById("file");
const drop = document.getElementById("drop");
const submit = document.getElementById("submit");
const progress = document.getElementById("progress");
const errorBox = document.getElementById("error");
const csrf = document.querySelector("meta[name=csrf]").content;

function showFile() {
  const chosen = file.files[0];
  document.getElementById("file-info").textContent = chosen
    ? `${chosen.name}, ${(chosen.size / 2 ** 20).toFixed(2)} MiB`
    : "Drop a file here, or choose one.";
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

/** Posts the file with a progress bar, which `fetch` does not support. */
function uploadFile(path, data, type) {
  return new Promise((resolve, reject) => {
    const upload = new XMLHttpRequest();
    upload.open("POST", path);
    upload.setRequestHeader("Content-Type", type);
    if (csrf) upload.setRequestHeader("X-CSRF-Token", csrf);
    upload.upload.onprogress = (event) => { document.getElementById("progress-bar").value = event.loaded / event.total; };
    upload.onerror = () => { showOffline(); reject(new Error("the service does not respond")); };
    upload.onload = () => {
      let body = {};
      try { body = JSON.parse(upload.responseText); } catch { /* not a problem object */ }
      if (upload.status < 300) resolve(body);
      else reject(new ProblemError(upload.status, body));
    };
    upload.send(data);
  });
}

function showStep(text) {
  document.getElementById("progress-step").textContent = text;
}

function element(name, attributes) {
  return Object.assign(document.createElement(name), attributes);
}

function showError(error) {
  const problem = error.problem ?? {}, findings = element("ul");
  for (const { path, found, expected, remedy } of problem.errors ?? [])
    findings.append(element("li", { textContent: `${path}: found ${found}; expected ${expected}. To fix: ${remedy}.` }));
  errorBox.replaceChildren(
    element("h3", { textContent: problem.title ?? "Upload failed" }),
    element("p", { className: "message", textContent: error.message }),
    ...(findings.children.length ? [findings] : []),
  );
  errorBox.hidden = false;
  progress.hidden = true;
  submit.disabled = false;
}

/** Fields of the request for a plan of the uploaded graph. */
function requestFields(graphId, inputs) {
  const budget = inputs.get("budget").trim();
  return {
    graph_id: graphId,
    budget: budget === "0" ? 0 : budget,
    planner: inputs.get("planner"),
    device: inputs.get("device"),
    runtime: inputs.get("runtime"),
    search_seconds: Number(inputs.get("search_seconds")),
    execute: inputs.get("execute") ?? "no",
    return: ["plan", "timeline", "layout", "explain", "source", "graph"],
  };
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const inputs = new FormData(form);
  errorBox.hidden = true;
  submit.disabled = true;
  progress.hidden = false;
  try {
    const model = file.files[0];
    showStep(`Uploading ${model.name}`);
    const query = inputs.get("batch") ? `?batch=${encodeURIComponent(inputs.get("batch"))}` : "";
    const type = model.name.endsWith(".json") ? "application/json" : "application/octet-stream";
    const graph = await uploadFile(`/v1/graphs${query}`, model, type);
    showStep("Model uploaded; requesting a plan");
    const response = await postJson("/v1/plans", JSON.stringify(requestFields(graph.id, inputs)));
    const result = await response.json();
    announce("Plan requested.");
    location.assign(result.plan ? `/plans/${result.id}` : `/jobs/${result.id}`);
  } catch (error) {
    showError(error);
  }
});
