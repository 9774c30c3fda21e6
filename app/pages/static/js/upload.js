// A model is sent, a question put, and the page of its job opened; a plan that is there already opens at once.

import { json, lost, tell } from "./net.js";

const form = document.getElementById("upload");
const file = document.getElementById("file");
const drop = document.getElementById("drop");
const wrong = document.getElementById("wrong");
const csrf = document.querySelector("meta[name=csrf]").content;

function named() {
  const chosen = file.files[0];
  document.getElementById("dropped").textContent = chosen
    ? `${chosen.name}, ${(chosen.size / 2 ** 20).toFixed(2)} MiB`
    : "Drop a file here, or choose one.";
}
file.addEventListener("change", named);
for (const name of ["dragenter", "dragover"])
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"])
  drop.addEventListener(name, () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) file.files = event.dataTransfer.files;
  named();
});

/** Posts the file, telling how far it is: `fetch` cannot say that. */
function send(path, data, type) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.setRequestHeader("Content-Type", type);
    if (csrf) request.setRequestHeader("X-CSRF-Token", csrf);
    request.upload.onprogress = (event) => { document.getElementById("sent").value = event.loaded / event.total; };
    request.onerror = () => { lost(); reject(new Error("the service does not answer")); };
    request.onload = () => {
      let body = {};
      try { body = JSON.parse(request.responseText); } catch { /* no problem object came */ }
      if (request.status < 300) resolve(body);
      else reject(Object.assign(new Error(body.detail ?? `the service answered ${request.status}`), { problem: body }));
    };
    request.send(data);
  });
}

function step(text) {
  document.getElementById("step").textContent = text;
}

function failed(error) {
  const problem = error.problem ?? {};
  wrong.replaceChildren();
  const title = document.createElement("h3");
  title.textContent = problem.title ?? "It could not be sent";
  const detail = document.createElement("p");
  detail.className = "told";
  detail.textContent = error.message;
  wrong.append(title, detail);
  const findings = document.createElement("ul");
  for (const found of problem.errors ?? []) {
    const line = document.createElement("li");
    line.textContent = `${found.path}: found ${found.found}; expected ${found.expected}. To mend it: ${found.remedy}.`;
    findings.append(line);
  }
  if (findings.children.length) wrong.append(findings);
  wrong.hidden = false;
  document.getElementById("going").hidden = true;
  document.getElementById("send").disabled = false;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = new FormData(form);
  wrong.hidden = true;
  document.getElementById("send").disabled = true;
  document.getElementById("going").hidden = false;
  try {
    const model = file.files[0];
    step(`Sending ${model.name}`);
    const query = said.get("batch") ? `?batch=${encodeURIComponent(said.get("batch"))}` : "";
    const type = model.name.endsWith(".json") ? "application/json" : "application/octet-stream";
    const graph = await send(`/v1/graphs${query}`, model, type);
    step("The model is read; asking for a plan");
    const budget = said.get("budget").trim();
    const question = {
      graph_id: graph.id,
      budget: budget === "0" ? 0 : budget,
      planner: said.get("planner"),
      device: said.get("device"),
      runtime: said.get("runtime"),
      search_seconds: Number(said.get("search_seconds")),
      execute: said.get("execute") ?? "no",
      return: ["plan", "timeline", "layout", "explain", "source", "graph"],
    };
    const answer = await json("/v1/plans", {
      method: "POST",
      headers: { "Content-Type": "application/json", Prefer: "wait=0" },
      body: JSON.stringify(question),
    });
    tell("The question is put.");
    location.assign(answer.plan ? `/plans/${answer.id}` : `/jobs/${answer.id}`);
  } catch (error) {
    failed(error);
  }
});
