
"use strict";
// Sorts the table on a click on a column head; opens the plan of the URL's fragment.
const body = document.querySelector("tbody");
const cell = (row, i) => row.children[i].dataset.sort ?? row.children[i].textContent;
for (const [i, head] of [...document.querySelectorAll("thead th")].entries()) {
  head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    const numbers = body.rows[0].children[i].dataset.sort !== undefined;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [cell(a, i), cell(b, i)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = numbers ? x - y : x.localeCompare(y);
      return down ? -order : order;
    });
    for (const other of document.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
const open = () => {
  const plan = location.hash.startsWith("#plan-") && document.getElementById(location.hash.slice(1));
  if (plan) plan.open = true;
};
addEventListener("hashchange", open);
open();
