// Shows the API's description. All addresses are relative, so that it works behind a path prefix, too.
"use strict";

const root = new URL(".", location.href).href;
// The key that the reader has given to the page in this tab, or that it remembers.
const kept = (name) => sessionStorage.getItem(name) || localStorage.getItem(name);
const key = kept("genai-api-key") || kept("genai-admin-key");
const headers = key ? { authorization: `Bearer ${key}` } : {};

const theme = localStorage.getItem("theme");
const isDark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
document.documentElement.classList.toggle("dark-mode", isDark);

// The key goes to this server only, and only with requests that have none.
function withKey(request) {
  if (request.url.startsWith(root)) request.headers = { ...headers, ...request.headers };
  return request;
}

function refuse(message) {
  const text = document.createElement("p");
  text.className = "refused";
  text.textContent = `The description cannot be shown: ${message}. Give the key to the page first, and come back.`;
  document.getElementById("swagger-ui").replaceChildren(text);
}

async function show() {
  const response = await fetch("openapi.json", { headers });
  const spec = await response.json();
  if (!response.ok) return refuse(spec.error.message);
  spec.servers = [{ url: root }];
  window.SwaggerUIBundle({ spec, dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, requestInterceptor: withKey });
  return undefined;
}

show();
