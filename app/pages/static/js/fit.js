// Form on a plan's page: requests the largest batch of its model, and opens the page of that job.

import { postJson, ProblemError } from "./net.js";

const form = document.getElementById("request-fit");

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const status = document.getElementById("fit-status"), button = form.querySelector("button");
  const memory = new FormData(form).get("memory").trim();
  const fields = JSON.parse(form.dataset.request);
  if (memory) {
    delete fields.fits;
    fields.budget = memory;
  }
  button.disabled = true;
  status.textContent = "Request sent.";
  try {
    const response = await postJson("/v1/fits", JSON.stringify(fields));
    const result = await response.json();
    if (response.status === 202) location.assign(`/jobs/${result.id}`);
    else if (result.plan) location.assign(result.plan.replace(/^\/v1/, ""));
    else status.textContent = "Even batch 1 does not fit; increase the memory.";
  } catch (error) {
    const first = error instanceof ProblemError ? error.problem?.errors?.[0] : null;
    status.textContent = `Error: ${first ? `${first.path}: expected ${first.expected}; ${first.remedy}` : error.message}.`;
  }
  button.disabled = false;
});
