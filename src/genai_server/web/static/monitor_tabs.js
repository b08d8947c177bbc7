// Monitoring. Views that need the admin key are only offered to users who have it.
import { connection } from "./connection.js";
import { useChanges } from "./emitter.js";
import { html, useEffect, useState } from "./html.js";
import { keys } from "./keys.js";
import { ModelsAdmin } from "./models_admin.js";
import { Overview } from "./overview.js";
import { Profiles } from "./profiles.js";
import { RuntimeOptions } from "./runtime_options.js";
import { server } from "./server.js";

const TABS = { "": "Overview", profiles: "Profiles", models: "Models", options: "Runtime" };

export function MonitorTabs({ tab, query }) {
  useChanges(server, connection);
  useEffect(() => server.watch(), []);
  const offered = Object.entries(TABS).filter(([name]) => !name || server.isAdmin);
  const shown = offered.some(([name]) => name === tab) ? tab : "";
  return html`<div class="monitor"><h1 class="unseen">Monitor: ${TABS[shown]}</h1>
    <nav class="tabs" aria-label="Monitor">${offered.map(([name, words]) => html`<a key=${name} href=${`#monitor${name && `/${name}`}`}
      aria-current=${name === shown ? "page" : undefined}>${words}</a>`)}
      <span class="stretch"></span>
      ${server.health?.version && html`<span class="soft not-narrow">version ${server.health.version}</span>`}</nav>
    ${server.problem && html`<p class="error" role="alert">${server.problem}</p>`}
    ${server.isAdmin === false && html`<${Refused} />`}
    ${shown === "" && html`<${Overview} />`}
    ${shown === "profiles" && html`<${Profiles} key=${JSON.stringify(query)} query=${query} />`}
    ${shown === "models" && html`<${ModelsAdmin} />`}
    ${shown === "options" && html`<${RuntimeOptions} />`}
  </div>`;
}

function Refused() {
  const [isWrong, setWrong] = useState(false);
  const askForKey = async () => {
    if (!await keys.ask("admin", "Requests, profiles, models and runtime options need the server's admin key.")) return;
    await server.findRights();
    if (server.isAdmin) return;
    keys.set("admin", "");
    setWrong(true);
  };
  return html`<p class="notice">Requests, profiles, models and runtime options are not shown: ${server.refused}.
    ${isWrong && html`${" "}<strong role="alert">That was not the admin key.</strong>`}
    ${" "}<button type="button" onClick=${askForKey}>Enter the admin key</button></p>`;
}
