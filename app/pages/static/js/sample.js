// Buttons that plan a sample model of the zoo, in empty states.

import { announce } from "./net.js";
import { submitModel } from "./submit_model.js";

const SEARCH_SECONDS = 4; // the first answer soon, rather than the best

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-sample]");
  if (!button) return;
  const status = document.getElementById("sample-status"), { sample, batch, budget } = button.dataset;
  button.disabled = true;
  try {
    const response = await fetch(sample);
    if (!response.ok) throw new Error(`the sample could not be read, status ${response.status}`);
    const fields = { budget, search_seconds: SEARCH_SECONDS };
    const page = await submitModel(await response.blob(), sample.split("/").at(-1), { batch }, fields, (text) => (status.textContent = `${text}.`));
    announce("Plan requested.");
    location.assign(page);
  } catch (error) {
    status.textContent = `Error: ${error.message}`;
    button.disabled = false;
  }
});
