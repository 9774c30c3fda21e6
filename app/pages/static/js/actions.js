// Buttons that cancel and retry jobs and batches, and the filter by state.

import { announce, request } from "./net.js";

/** Shows a batch and its list as they are after an action. */
function refresh(button, text) {
  announce(text);
  document.dispatchEvent(new Event("remat:refresh"));
  button.disabled = false;
}

//: Data attribute of a button -> path of the request, and what follows it.
const ACTIONS = {
  cancel: {
    path: (id) => `/v1/operations/${id}:cancel`,
    done: (button) => {
      announce("Cancellation requested; the best result so far is kept.");
      button.textContent = "stopping";
    },
  },
  retry: {
    path: (id) => `/jobs/${id}/retry`,
    done: async (button, response) => location.assign((await response.json()).page),
  },
  cancelBatch: {
    path: (id) => `/v1/batches/${id}:cancel`,
    done: (button) => refresh(button, "Cancellation requested; finished items are kept."),
  },
  retryBatch: {
    path: (id) => `/v1/batches/${id}:retry`,
    done: (button) => refresh(button, "Failed and cancelled items are queued."),
  },
};

function showError(text) {
  const place = document.getElementById("error");
  place.textContent = text;
  place.hidden = !text;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  const name = Object.keys(ACTIONS).find((action) => button && action in button.dataset);
  if (!name) return;
  button.disabled = true;
  showError("");
  try {
    const response = await request(ACTIONS[name].path(button.dataset[name]), { method: "POST" });
    await ACTIONS[name].done(button, response);
  } catch (error) {
    button.disabled = false;
    showError(`${error.message}. Try again in a few seconds.`);
  }
});

document.addEventListener("change", (event) => {
  if (event.target.id === "state") event.target.form?.requestSubmit();
});
