// A link from another site comes without the session's SameSite cookie; a request of our own has it.
// If that request is accepted, there is a session, and the page that was linked to opens.

const form = document.querySelector("form[data-next]");
if (!form.querySelector("#error")) {
  const response = await fetch("/v1/planners", { cache: "no-store" }).catch(() => null);
  if (response && response.status !== 401) location.replace(form.dataset.next);
}
