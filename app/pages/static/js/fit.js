// On the page of a plan: the largest batch of its model is looked for, and the page of that job opened.

import { ask, Refused } from "./net.js";

const form = document.getElementById("ask-fit");

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = document.getElementById("fit-said"), button = form.querySelector("button");
  const memory = new FormData(form).get("memory").trim();
  const question = JSON.parse(form.dataset.question);
  if (memory) {
    delete question.fits;
    question.budget = memory;
  }
  button.disabled = true;
  said.textContent = "The question is put.";
  try {
    const answer = await ask("/v1/fits", {
      method: "POST", body: JSON.stringify(question), headers: { "Content-Type": "application/json", Prefer: "wait=0" },
    });
    const found = await answer.json();
    if (answer.status === 202) location.assign(`/jobs/${found.id}`);
    else if (found.plan) location.assign(found.plan.replace(/^\/v1/, ""));
    else said.textContent = "Not even a batch of 1 fits: name more memory.";
  } catch (error) {
    const first = error instanceof Refused ? error.problem?.errors?.[0] : null;
    said.textContent = `No answer: ${first ? `${first.path}: expected ${first.expected}; ${first.remedy}` : error.message}.`;
  }
  button.disabled = false;
});
