"use strict";
// Relative, so that it holds behind a proxy with a prefix, too.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
