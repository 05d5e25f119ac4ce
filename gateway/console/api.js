// The public API as the console asks it. The credential is in this module's memory and nowhere else.

import { heardOf, signal, useState, useEffect, useRef } from "./base.js";
import { text } from "./text.js";

const PATIENCE = 30_000; // milliseconds

let key = "";

export const session = signal({ state: "unknown", caller: null, problem: "" });
export const epoch = signal(0); // counts logins: what is shown is read again after each
export const paused = signal(false);
export const feeds = signal({}); // path -> {at, failed}: what the page follows, and how well

export class ApiError extends Error {
  constructor(problem, status = 0) {
    super(problem.detail || problem.title || problem.code);
    this.problem = problem;
    this.status = status;
  }
}

function headersOf(more) {
  return { accept: "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}), ...more };
}

// `body`: a file goes as it is, anything else as JSON. `blob`: the answer is a file, too.
export async function request(method, path, { body, etag, accept, headers: more, blob = false, signal: stop } = {}) {
  const headers = headersOf({
    ...(body === undefined || body instanceof Blob ? {} : { "content-type": "application/json" }),
    ...(etag ? { "if-match": etag } : {}),
    ...(accept ? { accept } : {}),
    ...more,
  });
  let answer;
  const asked = Date.now();
  try {
    answer = await fetch(path, {
      method, headers, credentials: "same-origin", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
      body: body === undefined || body instanceof Blob ? body : typeof body === "string" ? body : JSON.stringify(body),
      signal: stop || AbortSignal.timeout(PATIENCE),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const code = error.name === "TimeoutError" ? "timeout" : "network";
    throw new ApiError({ code, title: text.problems[code], detail: text.problems[code], errors: [] });
  }
  heardOf(answer.headers.get("date"), asked);
  if (blob && answer.ok) return { data: await answer.blob(), status: answer.status, headers: answer.headers };
  const content = await answer.text();
  let data = null;
  if (content) {
    try { data = JSON.parse(content); } catch { data = content; }
  }
  if (!answer.ok) {
    const problem = data && typeof data === "object" ? data : { code: String(answer.status), title: answer.statusText };
    if (answer.status === 401) end(problem);
    throw new ApiError({ errors: [], ...problem }, answer.status);
  }
  return { data, status: answer.status, headers: answer.headers };
}

export const get = async (path) => (await request("GET", path)).data;

function next(headers) {
  const found = /<([^>]*)>; rel="next"/.exec(headers.get("link") || "");
  return found ? found[1] : null;
}

// All pages of a list, at most so many items; `onPage` gets what there is so far.
export async function all(path, name, { most = 100_000, onPage } = {}) {
  const found = [];
  let page = path;
  while (page && found.length < most) {
    const answer = await request("GET", page);
    found.push(...answer.data[name]);
    page = next(answer.headers);
    if (onPage && page) onPage([...found]);
  }
  return found;
}

export async function page(path) {
  const answer = await request("GET", path);
  return { data: answer.data, next: next(answer.headers) };
}

// --------------------------------------------------------------------------------------------- session

export async function begin(given = "") {
  key = given;
  try {
    const { data } = await request("GET", "/v1/caller");
    session.value = { state: "in", caller: data, problem: "" };
    epoch.value += 1;
    return true;
  } catch (error) {
    if (error.status === 401) {
      key = "";
      session.value = { state: "out", caller: session.value.caller, problem: given ? error.message : "" };
    } else {
      session.value = { state: "away", caller: session.value.caller, problem: error.message };
    }
    return false;
  }
}

// Whether the credential still counts: a session ends with its key, whatever is shown.
const PULSE = 4000; // milliseconds

setInterval(async () => {
  if (session.value.state !== "in" || document.hidden || paused.value) return;
  try {
    const { data } = await request("GET", "/v1/caller");
    if (session.value.state === "in" && JSON.stringify(data) !== JSON.stringify(session.value.caller)) {
      session.value = { ...session.value, caller: data };
    }
    feeds.value = { ...feeds.value, "/v1/caller": { at: Date.now(), failed: "" } };
  } catch (error) {
    if (!error.status || error.status >= 500) {
      feeds.value = { ...feeds.value, "/v1/caller": { at: Date.now(), ...feeds.value["/v1/caller"], failed: error.message } };
    }
  }
}, PULSE);

export function leave() {
  key = "";
  session.value = { state: "out", caller: null, problem: "" };
  location.hash = "#/";
}

function end(problem) {
  if (session.value.state !== "in") return;
  key = "";
  session.value = { state: "out", caller: session.value.caller, problem: problem.detail || problem.title };
}

export const scopes = () => session.value.caller?.scopes ?? [];
export const isAdmin = () => Boolean(session.value.caller?.admin);

// Whether the caller holds a scope of this kind on that object; the server decides, this only says what to offer.
export function may(kind, broker = "", name = "") {
  if (isAdmin()) return true;
  return scopes().some((scope) => {
    const [each, , rest] = /^([a-z]+)(:?)(.*)$/s.exec(scope).slice(1);
    if (each !== kind) return false;
    if (kind === "history") return true;
    if (kind === "endpoint") return !name || rest === "*" || rest === name;
    if (kind === "broker") return !broker || rest === "*" || rest === broker;
    const [itsBroker, ...others] = rest.split("/");
    const itsName = kind === "route" ? safeDecode(others[0] ?? "") : others.join("/");
    return (!broker || itsBroker === "*" || itsBroker === broker) && (!name || itsName === "*" || itsName === name);
  });
}

function safeDecode(part) { try { return decodeURIComponent(part); } catch { return part; } }

export const mayPublish = (broker, exchange) => may("publish", broker, exchange) || may("route", broker, exchange);

// -------------------------------------------------------------------------------------- what is followed

const SHARE = 30; // what takes a second to read is read every 30 seconds, so that a view costs the gateway little
const SELDOM = 60_000; // milliseconds: as seldom as that at most

// Whether a read may be well again without anything being changed: then what was read before still tells something.
const passes = (error) => !error.status || error.status >= 500 || [401, 408, 429].includes(error.status);

// Read again and again: {data, error, at, reload}. What was read last stays while a read fails, and says how old it is.
// It does not where it is the answer to another question, or where the gateway has refused this one.
export function usePoll(path, every = 5000, read = get) {
  const [state, setState] = useState({ data: null, error: null, at: 0, path });
  const run = useRef(() => {});
  const login = epoch.value;
  useEffect(() => {
    if (!path) { setState({ data: null, error: null, at: 0, path }); return undefined; }
    let live = true;
    let timer = 0;
    let reading = false;
    const feed = (value) => { feeds.value = { ...feeds.value, [path]: value }; };
    const once = async (forced = false) => {
      clearTimeout(timer);
      if (reading) return;
      let pause = every;
      if (forced || (!paused.value && !document.hidden && session.value.state === "in")) {
        reading = true;
        const began = performance.now();
        try {
          const data = await read(path, (partial) => live && setState({ data: partial, error: null, at: Date.now(), path }));
          if (live) { setState({ data, error: null, at: Date.now(), path }); feed({ at: Date.now(), failed: "" }); }
          pause = Math.max(every, Math.min(SELDOM, (performance.now() - began) * SHARE));
        } catch (error) {
          if (live) {
            setState((before) => (before.path === path && passes(error) ? { ...before, error } : { data: null, error, at: 0, path }));
            if (!error.status || error.status >= 500) feed({ ...(feeds.value[path] ?? { at: 0 }), failed: error.message });
          }
        }
        reading = false;
      }
      if (live) timer = setTimeout(once, pause);
    };
    run.current = () => once(true);
    once(session.value.state === "in");
    const seen = () => { if (!document.hidden) once(); };
    document.addEventListener("visibilitychange", seen);
    return () => {
      live = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      const { [path]: _, ...others } = feeds.value;
      feeds.value = others;
    };
  }, [path, login, every]);
  return { ...state, reload: () => run.current() };
}

// Events as they happen, until `stop` is aborted: a stream that is read by fetch, so that no credential is in a URL.
export async function follow(path, onEvent, onState, stop) {
  let last = "";
  let pause = 500;
  while (!stop.aborted) {
    try {
      const answer = await fetch(path, {
        headers: headersOf({ accept: "application/x-ndjson", ...(last ? { "last-event-id": last } : {}) }),
        signal: stop, cache: "no-store", credentials: "same-origin", redirect: "error",
      });
      if (!answer.ok) {
        const problem = await answer.json().catch(() => ({ title: answer.statusText }));
        if (answer.status === 401) end(problem);
        if (answer.status < 500) { onState("refused", problem.detail || problem.title); return; }
        throw new Error(problem.detail || problem.title);
      }
      onState("live", "");
      pause = 500;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (!line) continue;
          const event = JSON.parse(line);
          if (event.position) last = JSON.stringify(event.position);
          if (event.end) { onState("refused", event.end); await begin(key); return; }
          onEvent(event.kind ? event : null);
        }
      }
    } catch (error) {
      if (stop.aborted) return;
      onState("stale", error.message);
    }
    await new Promise((resolve) => { setTimeout(resolve, pause); });
    pause = Math.min(pause * 2, 10_000);
  }
}

// The lines of an NDJSON answer that ends.
export async function lines(path) {
  const { data } = await request("GET", path, { accept: "application/x-ndjson" });
  if (data === null) return [];
  if (typeof data === "object") return [data];
  return data.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

let document_ = null;

// The schema of the body of a PUT, with all that it refers to.
export async function bodySchema(path, method = "put") {
  document_ ??= await get("/openapi.json");
  const resolve = (schema, depth = 0) => {
    if (!schema || depth > 8) return schema;
    if (schema.$ref) {
      const name = schema.$ref.split("/").at(-1);
      return { ...resolve(document_.components.schemas[name], depth + 1), ...without(schema, "$ref") };
    }
    const made = { ...schema };
    if (schema.properties) {
      made.properties = Object.fromEntries(
        Object.entries(schema.properties).map(([name, each]) => [name, resolve(each, depth + 1)]));
    }
    for (const name of ["anyOf", "allOf"]) {
      if (schema[name]) made[name] = schema[name].map((each) => resolve(each, depth + 1));
    }
    if (schema.items) made.items = resolve(schema.items, depth + 1);
    return made;
  };
  return resolve(document_.paths[path][method].requestBody.content["application/json"].schema);
}

function without(object, name) {
  const { [name]: _, ...others } = object;
  return others;
}
