// Before anything is drawn: the colours that the reader has chosen here before.
(() => {
  let chosen = "";
  try { chosen = localStorage.getItem("remat.theme") || ""; } catch { /* a browser that keeps nothing */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
