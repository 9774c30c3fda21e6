// Requests to our own service, and what is said when it does not answer.

const csrf = document.querySelector("meta[name=csrf]")?.content ?? "";
const banner = () => document.getElementById("lost"); // a script may run before the page is read to its end

/** A refusal of the service: `problem` is the RFC 9457 object, where it sent one. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `the service answered ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

/** No answer came at all. */
export class Lost extends Error {}

/** As `fetch`, with what the session asks for. Throws Lost without an answer, Refused for one that is not good. */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (csrf) headers.set("X-CSRF-Token", csrf);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Lost("the service does not answer");
  }
  found();
  if (!answer.ok) {
    const told = answer.headers.get("content-type")?.startsWith("application/problem+json");
    const refused = new Refused(answer.status, told ? await answer.json().catch(() => null) : null);
    if (answer.status === 401) leave();
    throw refused;
  }
  return answer;
}

/** The answer as JSON. */
export const json = async (path, options) => (await ask(path, options)).json();

/** Says that nothing is answered, and goes on asking until something is. */
export function lost() {
  if (!banner().hidden) return;
  banner().textContent =
    "The service does not answer. What is shown may be old; jobs go on where it runs. " +
    "See that `remat serve` is running and that this machine reaches it. This page goes on by itself.";
  banner().hidden = false;
  const again = setInterval(async () => {
    try {
      await fetch("/livez", { cache: "no-store" });
    } catch {
      return;
    }
    clearInterval(again);
    found();
    document.dispatchEvent(new Event("remat:back"));
  }, 2000);
}

function found() {
  banner().hidden = true;
}

function leave() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}

/** Text that screen readers say, and nobody sees. */
export function tell(text) {
  document.getElementById("told").textContent = text;
}
