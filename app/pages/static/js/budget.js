// Budget slider of a plan's page: a stored plan answers at once, a missing one is planned when the slider rests.
//
//   moved ──▶ best stored plan within the budget is shown
//     ╰─ rests ──▶ no plan was made for this budget: request one (one at a time, at most `maxPlanned` on a page);
//                  moving on cancels it

import { share, size } from "./format.js";
import { svgElement } from "./drawing.js";
import { finished, getJson, postJson, request } from "./net.js";

const REST_MS = 1200; // without a move, before a plan is requested
const SNAP = 0.012; // of the scale: a stored budget this near is meant
const NEAR = 0.01; // a plan for a budget this much lower counts as made for the budget
const MAX_PREFETCHED = 6;

/** The fastest stored plan that peaks within `budget`; null: none. Of equal ones the one with the lower peak. */
export function bestWithin(points, budget) {
  let best = null;
  for (const point of points)
    if (point.peak_bytes <= budget && (!best || point.overhead < best.overhead || (point.overhead === best.overhead && point.peak_bytes < best.peak_bytes)))
      best = point;
  return best;
}

/** Whether a plan was made for this budget, or nothing can be better: no time is lost, as without a plan at `baseline` bytes. */
export function isAnswered(points, budget, baseline) {
  if (budget >= baseline || bestWithin(points, budget)?.overhead <= 0) return true;
  return points.some(({ budget_bytes: made }) => made && made <= budget && made >= budget * (1 - NEAR));
}

export class BudgetSlider {
  /** @param {{show: (id: string) => Promise, prefetch: (id: string) => Promise}} page shows stored plans */
  constructor(form, page) {
    this.form = form;
    this.page = page;
    this.range = form.querySelector("input[type=range]");
    this.points = JSON.parse(form.dataset.points);
    this.minimum = Number(form.dataset.minimum);
    this.baseline = Number(form.dataset.baseline);
    this.left = Number(form.dataset.maxPlanned);
    this.shown = location.pathname.split("/").at(-1);
    this.job = null; // path of the requested plan
    this.timer = 0;
    this.turn = 0; // number of the last move
    this.range.addEventListener("input", () => this.move());
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("[data-do=plan-missing]").addEventListener("change", () => this.move());
    this.range.step = Math.max(1, Math.round(Number(this.range.max) / 200));
    this.drawMarks();
    this.prefetch();
    form.dataset.ready = "1";
  }

  say(text) {
    this.form.querySelector("[data-part=status]").textContent = text;
  }

  /** Stored budgets as dots on the track. */
  drawMarks() {
    const marks = this.form.querySelector("[data-part=marks]"), top = Number(this.range.max) || 1;
    for (const old of marks.querySelectorAll(".stored")) old.remove();
    for (const point of this.points) {
      const at = (1000 * (point.budget_bytes ?? point.peak_bytes)) / top;
      if (at <= 1000) marks.append(svgElement("rect", { class: `stored ${point.status}`, x: at - 2.5, width: 5, height: 12 }));
    }
  }

  /** The budget of the slider, moved to a stored one nearby. */
  get budget() {
    const max = Number(this.range.max), value = Number(this.range.value), reach = SNAP * max;
    if (value + Number(this.range.step) > max) return max; // the last step is shorter than the others
    const near = this.points.map((point) => point.budget_bytes ?? point.peak_bytes).filter((at) => Math.abs(at - value) <= reach);
    return near.sort((a, b) => Math.abs(a - value) - Math.abs(b - value))[0] ?? value;
  }

  move() {
    const budget = this.budget;
    this.turn++;
    clearTimeout(this.timer);
    this.cancel();
    this.form.querySelector("[data-part=budget]").textContent = size(budget);
    this.range.setAttribute("aria-valuetext", size(budget));
    const best = bestWithin(this.points, budget);
    this.describe(best, budget);
    if (best && best.id !== this.shown) this.show(best.id);
    if (!isAnswered(this.points, budget, this.baseline) && budget > this.minimum && this.form.querySelector("[data-do=plan-missing]").checked)
      this.timer = setTimeout(() => this.plan(budget), REST_MS);
  }

  describe(best, budget) {
    if (budget <= this.minimum) this.say(`Proven impossible: no plan peaks at ${size(this.minimum)} or less.`);
    else if (budget >= this.baseline) this.say(`The model fits ${size(budget)} without a plan.`);
    else if (!best) this.say("No stored plan fits this budget.");
    else this.say(`Best stored plan: peak ${size(best.peak_bytes)}, ${share(best.overhead)} slower${isAnswered(this.points, budget, this.baseline) ? "" : "; made for another budget"}.`);
  }

  async show(id) {
    this.shown = id;
    const began = performance.now();
    await this.page.show(id).catch((error) => this.say(`Error: ${error.message}`));
    performance.measure("remat:slider", { start: began, end: performance.now() });
  }

  /** Requests a plan for a budget, and shows it if the slider still rests there. */
  async plan(budget) {
    if (this.left <= 0) {
      this.say("The limit of new plans on this page is reached; reload it to plan more, or use Plan more budgets below.");
      return;
    }
    const turn = this.turn, fields = { ...JSON.parse(this.form.dataset.request), budget };
    this.left--;
    this.say(`Planning ${size(budget)}; ${this.left} more on this page.`);
    try {
      const response = await postJson("/v1/plans", JSON.stringify(fields));
      if (response.status === 202) {
        this.job = response.headers.get("Location");
        if (turn !== this.turn) return this.cancel(); // moved on before the request was answered
        await finished(this.job);
      }
      if (turn !== this.turn) return;
      this.job = null;
      await this.refresh();
      const best = bestWithin(this.points, budget);
      const missed = !best && this.points.every((point) => point.budget_bytes !== budget || point.status === "over_budget");
      if (missed) this.say(`No plan within ${size(budget)} was found.`);
      else this.describe(best, budget);
      if (best && best.id !== this.shown) await this.show(best.id);
    } catch (error) {
      this.job = null;
      this.form.querySelector("[data-do=plan-missing]").checked = false; // such as a quota that is used up
      this.say(`Error: ${error.message}. No more plans are requested.`);
    }
  }

  /** Cancels the requested plan, if any. */
  cancel() {
    const job = this.job;
    this.job = null;
    if (job) request(`${job}:cancel`, { method: "POST" }).catch(() => {}); // it may have ended meanwhile
  }

  async refresh() {
    this.points = await getJson(`/plans/${this.shown}/points.json`);
    this.drawMarks();
  }

  /** Fetches the stored plans nearest to the one shown, so that they answer at once. */
  async prefetch() {
    const own = this.points.findIndex((point) => point.id === this.shown), useful = this.points.filter((point) => point.status !== "over_budget");
    const near = [...useful].sort((a, b) => Math.abs(this.points.indexOf(a) - own) - Math.abs(this.points.indexOf(b) - own));
    for (const point of near.slice(0, MAX_PREFETCHED)) await this.page.prefetch(point.id).catch(() => {});
    this.form.dataset.prefetched = "1";
  }
}
