// Requests to our own service, and the banner shown while it is unreachable.

const csrf = document.querySelector("meta[name=csrf]")?.content ?? "";
const banner = () => document.getElementById("offline"); // looked up late: a script may run before the page is parsed
const RETRY_MS = 2000, POLL_MS = 700;

/** An error response; `problem` is its RFC 9457 object, if it has one. */
export class ProblemError extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `HTTP status ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

/** The service did not respond. */
export class OfflineError extends Error {}

/** `fetch` with the session's CSRF token. Throws OfflineError without a response, ProblemError for an error status. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (csrf) headers.set("X-CSRF-Token", csrf);
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    showOffline();
    throw new OfflineError("the service does not respond");
  }
  hideOffline();
  if (!response.ok) {
    const isProblem = response.headers.get("content-type")?.startsWith("application/problem+json");
    const problem = isProblem ? await response.json().catch(() => null) : null;
    if (response.status === 401) goToLogin();
    throw new ProblemError(response.status, problem);
  }
  return response;
}

/** The response as JSON. */
export const getJson = async (path) => (await request(path)).json();

/** Posts JSON text; the response comes at once, with status 202 if the job is not finished. */
export const postJson = (path, body) =>
  request(path, { method: "POST", body, headers: { "Content-Type": "application/json", Prefer: "wait=0" } });

/** Resolves when the operation has finished. Throws its error. */
export async function finished(path) {
  for (;;) {
    const operation = await getJson(path);
    if (operation.error) throw new Error(operation.error.detail);
    if (["succeeded", "cancelled"].includes(operation.state)) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Shows the banner, and polls the service until it responds. */
export function showOffline() {
  if (!banner().hidden) return;
  banner().textContent =
    "The service does not respond. This page may be out of date; running jobs continue on the service. " +
    "Check that `remat serve` is running and reachable from this machine. This page reconnects automatically.";
  banner().hidden = false;
  const timer = setInterval(async () => {
    try {
      await fetch("/livez", { cache: "no-store" });
    } catch {
      return;
    }
    clearInterval(timer);
    hideOffline();
    document.dispatchEvent(new Event("remat:refresh"));
  }, RETRY_MS);
}

function hideOffline() {
  banner().hidden = true;
}

function goToLogin() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}

/** Text for screen readers only. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
