// Cancel and ask again, wherever a button says so.

import { ask, json, tell } from "./net.js";

function wrong(text) {
  const place = document.getElementById("wrong");
  place.textContent = text;
  place.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-cancel], [data-retry]");
  if (!button) return;
  button.disabled = true;
  try {
    if (button.dataset.cancel) {
      await ask(`/v1/operations/${button.dataset.cancel}:cancel`, { method: "POST" });
      tell("The job is asked to stop; it keeps the best so far.");
      button.textContent = "stopping";
    } else {
      location.assign((await json(`/jobs/${button.dataset.retry}/retry`, { method: "POST" })).page);
    }
  } catch (error) {
    button.disabled = false;
    wrong(`${error.message}. Try again in a moment.`);
  }
});

document.getElementById("state")?.addEventListener("change", (event) => event.target.form?.requestSubmit());
