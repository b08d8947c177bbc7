// Shows the API's description. All addresses are relative, so that it works behind a path prefix, too.
"use strict";

const root = new URL(".", location.href).href;

fetch("openapi.json").then((response) => response.json()).then((spec) => {
  spec.servers = [{ url: root }];
  window.SwaggerUIBundle({ spec, dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
});
