// Preact with htm: elements are written as HTML in template strings.
import { h, render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

const html = htm.bind(h);

export { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState };
