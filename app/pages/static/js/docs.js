// Swagger UI in the theme of the page. No validator: it would send the document to another host.

import { onTheme } from "./theme.js";

function follow() {
  const { theme } = document.documentElement.dataset;
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.classList.toggle("dark-mode", isDark);
}

onTheme(follow);
follow();
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger", validatorUrl: null, deepLinking: true });
