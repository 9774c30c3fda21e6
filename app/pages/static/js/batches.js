// Batches are cancelled and retried, wherever a button says so.

import { ask, tell } from "./net.js";

function wrong(text) {
  const place = document.getElementById("wrong");
  place.textContent = text;
  place.hidden = !text;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-cancel-batch], [data-retry-batch]");
  if (!button) return;
  const { cancelBatch, retryBatch } = button.dataset;
  button.disabled = true;
  wrong("");
  try {
    await ask(`/v1/batches/${cancelBatch ?? retryBatch}:${cancelBatch ? "cancel" : "retry"}`, { method: "POST" });
    tell(cancelBatch ? "The batch is asked to stop; what has ended is kept." : "What failed or was stopped waits again.");
    document.dispatchEvent(new Event("remat:back")); // shows it as it is now
  } catch (error) {
    wrong(`${error.message}. Try again in a moment.`);
  }
  button.disabled = false;
});

document.addEventListener("change", (event) => {
  if (event.target.id === "state") event.target.form?.requestSubmit();
});
