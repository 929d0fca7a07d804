// Talks to the service: tokens, time limits, and errors as sentences.
const SECONDS = 15;
export const SLOW = 600; // for a calibration, a snapshot or an audit
const KEPT = "surefind-token";
let token = sessionStorage.getItem(KEPT) ?? "";

export class Trouble extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

export const hasToken = () => token !== "";

export function setToken(value) {
  token = value;
  if (value) sessionStorage.setItem(KEPT, value);
  else sessionStorage.removeItem(KEPT);
}

// What a person can do about an error; the service's own sentence says what is wrong.
const SENTENCES = {
  401: () => (token ? "The service does not know this token." : "This service asks for a token."),
  403: (said) => (token ? `${said} Another token may.` : said),
  413: (said) => `This is too large. ${said}`,
  429: (said, wait) => `Too much was asked at once. Wait ${wait === 1 ? "a second" : `${wait} seconds`}, then try again.`,
  500: (said) => `Something in the service broke; it is not your fault. ${said}`,
  503: (said) => `The service cannot do this now. ${said}`,
};

async function ask(path, { seconds = Number(document.documentElement.dataset.seconds ?? SECONDS), ...options } = {}) {
  const headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(seconds * 1000) });
  } catch (error) {
    if (error.name === "TimeoutError") throw new Trouble(`The service did not answer within ${seconds} seconds. It may be busy.`);
    throw new Trouble(navigator.onLine ? "The service cannot be reached. Is it running?" : "This device is offline. Connect it, then try again.");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  const said = sentence(problem.error ?? `The service answered with an error (${answer.status}).`);
  const wait = Number(answer.headers.get("Retry-After") ?? 1) || 1;
  throw new Trouble(SENTENCES[answer.status]?.(said, wait) ?? said, answer.status);
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

export const get = async (path, seconds) => (await ask(path, { seconds })).json();

async function send(method, path, body, seconds) {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method, headers, seconds, body: JSON.stringify(body) })).json();
}

export const post = (path, body, seconds) => send("POST", path, body, seconds);
export const put = (path, body) => send("PUT", path, body);
export const remove = async (path) => (await ask(path, { method: "DELETE" })).json();

// A form with a file; fields that are null are left out.
export async function upload(path, file, fields = {}) {
  const body = new FormData();
  body.append("file", file);
  for (const [name, value] of Object.entries(fields)) if (value !== null) body.append(name, value);
  return (await ask(path, { method: "POST", body })).json();
}

// Pictures and files need the token too, which neither an img nor a link can send.
const blobUrl = async (path) => URL.createObjectURL(await (await ask(path)).blob());

const MOST_PICTURES = 500;
const pictures = new Map();

// The address of a picture in this tab's memory; those that were asked for long ago are let go.
export function picture(path) {
  const found = pictures.get(path) ?? blobUrl(path);
  pictures.delete(path);
  pictures.set(path, found);
  found.catch(() => forgetPicture(path));
  if (pictures.size > MOST_PICTURES) forgetPicture(pictures.keys().next().value);
  return found;
}

function forgetPicture(path) {
  pictures.get(path)?.then(URL.revokeObjectURL, () => {});
  pictures.delete(path);
}

// Saves what the service returns as a file.
export async function download(path, name) {
  const url = await blobUrl(path);
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export function itemPath(id) {
  const kind = typeof id === "number" ? "number" : "text";
  return [`/v1/items/${encodeURIComponent(id)}`, `?kind=${kind}`];
}
