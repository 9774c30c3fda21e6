// Form on a plan's page that saves its tags and note.

import { announce, ProblemError, request } from "./net.js";

/** Calls `saved` with the id of a plan after a change, then shows its tags and note as stored. */
export function followAnnotations(saved) {
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("[data-annotate]");
    if (!form) return;
    event.preventDefault();
    const id = form.dataset.annotate, error = form.querySelector("[role=alert]"), fields = new FormData(form);
    const change = { tags: fields.get("tags").split(/[\s,]+/).filter(Boolean), note: fields.get("note") };
    error.hidden = true;
    try {
      await request(`/v1/plans/${id}`, { method: "PATCH", body: JSON.stringify(change), headers: { "Content-Type": "application/json" } });
      saved(id);
      const page = new DOMParser().parseFromString(await (await request(`/plans/${id}`)).text(), "text/html");
      const place = form.closest("section");
      if (!place.isConnected) return; // the slider shows another plan by now
      const next = document.importNode(page.getElementById(place.id), true);
      place.replaceWith(next);
      next.querySelector("summary").focus();
      announce("Tags and note are saved.");
    } catch (problem) {
      const first = problem instanceof ProblemError ? problem.problem?.errors?.[0] : null;
      error.textContent = first ? `Not saved: ${first.path}: ${first.expected}.` : `Not saved: ${problem.message}.`;
      error.hidden = false;
    }
  });
}
