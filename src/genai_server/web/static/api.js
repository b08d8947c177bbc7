// Calls of the server's API. All addresses are relative, so that the page works behind a path prefix.
import { connection } from "./connection.js";
import { keys } from "./keys.js";

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

// The response of a call, whose body is a form or becomes JSON. Asks for the key once if the server requires another one.
// Throws ApiError, and Unreachable.
export async function call(path, { method = "GET", body, admin = false, signal, headers = {} } = {}) {
  const isJson = body !== undefined && !(body instanceof FormData);
  const send = () => connection.fetch(path, {
    method,
    signal,
    headers: { ...headers, ...keys.headers(admin), ...(isJson ? { "content-type": "application/json" } : {}) },
    body: isJson ? JSON.stringify(body) : body,
  });
  let response = await send();
  while (response.status === 401) {
    if (admin && keys.get("admin")) keys.set("admin", "");
    else if (!await keys.ask("api", refusal((await errorOf(response)).message))) break;
    response = await send();
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

// Why a key is asked for. A server without keys says why it serves no other host.
function refusal(message) {
  if (keys.any) return "This server does not know that key. Enter another one.";
  return message.startsWith("an API key is required") ? "This server requires an API key." : message;
}

// The JSON response of a call.
export async function ask(path, options) {
  const response = await call(path, options);
  try {
    return await response.json();
  } catch (error) {
    throw connection.failure(error, options?.signal);
  }
}

async function errorOf(response) {
  const body = await response.clone().json().catch(() => null);
  return new ApiError(response.status, body?.error);
}
