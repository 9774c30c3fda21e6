// Posts a model and requests its plan: for the upload page and the sample model.

import { postJson, ProblemError, showOffline } from "./net.js";

const SECTIONS = ["plan", "timeline", "layout", "explain", "source", "graph"];
const MAX_NAME = 200; // characters, as the service takes
const csrf = document.querySelector("meta[name=csrf]")?.content ?? "";

/** Posts data with progress in [0, 1], which `fetch` does not report. Resolves to the JSON response. */
function post(path, data, type, onProgress) {
  return new Promise((resolve, reject) => {
    const upload = new XMLHttpRequest();
    upload.open("POST", path);
    upload.setRequestHeader("Content-Type", type);
    if (csrf) upload.setRequestHeader("X-CSRF-Token", csrf);
    upload.upload.onprogress = (event) => onProgress(event.loaded / event.total);
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

/**
 * Posts `model` (a Blob named `name`), requests a plan with `fields`, and resolves to the page to open: the plan, or its job.
 * @param {{batch?: string, dims?: string[]}} shapes batch size and named dimensions, each `name=length`
 * @param {(text: string, share: number) => void} onStep called as the work goes on
 */
export async function submitModel(model, name, shapes, fields, onStep) {
  const query = new URLSearchParams();
  if (shapes.batch) query.set("batch", shapes.batch);
  for (const dim of shapes.dims ?? []) query.append("dim", dim);
  const called = name.replace(/(-symbol\.json|\.pir\.json|\.onnx|\.pdmodel|\.pb|\.pbtxt|\.mlir)$/i, "");
  if (called && called !== name) query.set("name", called.slice(0, MAX_NAME)); // a native document has its own name
  const type = name.endsWith(".json") ? "application/json" : "application/octet-stream";
  onStep(`Uploading ${name}`, 0);
  const graph = await post(`/v1/graphs${query.size ? `?${query}` : ""}`, model, type, (share) => onStep(`Uploading ${name}`, share));
  onStep("Model uploaded; requesting a plan", 1);
  const response = await postJson("/v1/plans", JSON.stringify({ graph_id: graph.id, ...fields, return: SECTIONS }));
  const result = await response.json();
  return result.plan ? `/plans/${result.id}` : `/jobs/${result.id}`;
}
