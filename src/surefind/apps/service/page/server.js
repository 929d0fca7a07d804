// Talks to the service: tokens, time limits, and errors as sentences.
const SECONDS = 15;
let token = sessionStorage.getItem("surefind-token") ?? "";

export class Trouble extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

export function setToken(value) {
  token = value;
  sessionStorage.setItem("surefind-token", value);
}

async function ask(path, options = {}) {
  const seconds = Number(document.documentElement.dataset.seconds ?? SECONDS);
  const headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(seconds * 1000) });
  } catch (error) {
    throw new Trouble(
      error.name === "TimeoutError"
        ? `The service did not answer within ${seconds} seconds. It may be busy.`
        : "The service cannot be reached. Is it running?",
    );
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  const sentence = problem.error ?? `The service answered with an error (${answer.status}).`;
  throw new Trouble(sentence[0].toUpperCase() + sentence.slice(1), answer.status);
}

export const get = async (path) => (await ask(path)).json();

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

export async function put(path, body) {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method: "PUT", headers, body: JSON.stringify(body) })).json();
}

export const remove = async (path) => (await ask(path, { method: "DELETE" })).json();

export async function upload(path, file) {
  const body = new FormData();
  body.append("file", file);
  return (await ask(path, { method: "POST", body })).json();
}

// Pictures need the token too, which an img cannot send.
export async function picture(path) {
  return URL.createObjectURL(await (await ask(path)).blob());
}

export function itemPath(id) {
  const kind = typeof id === "number" ? "number" : "text";
  return [`/v1/items/${encodeURIComponent(id)}`, `?kind=${kind}`];
}
