// The public API as the console asks it. The credential is in this module's memory and nowhere else.

import { effect, heardOf, now, signal, useEffect, useRef, useState } from "./base.js";
import { text } from "./text.js";

const READ = 30_000; // milliseconds that the answer to a read may take
const WRITE = 45_000; // to anything else: a publish waits for its confirm for 30 s
const PULSE = 4000; // milliseconds between two looks at whether the gateway answers, and the credential still counts
const LATE = 10_000; // milliseconds without an answer after which the page says so

let key = "";

export const session = signal({ state: "unknown", caller: null, problem: "" });
export const epoch = signal(0); // counts logins: what is shown is read again after each
export const paused = signal(false);
export const feeds = signal({}); // path -> {at, failed, due}: what the page follows, how well, and since when an answer is due
const woken = signal(0); // counts the reasons to read at once: the gateway is back, or it is not known what an action did

// `unknown`: it may have been done. `safe`: to do it again does nothing twice. `wait`: seconds that the gateway asks for.
export class ApiError extends Error {
  constructor(problem, { status = 0, path = "", unknown = false, safe = false, wait = 0 } = {}) {
    super(problem.detail || problem.title || problem.code);
    this.problem = { ...problem, errors: Array.isArray(problem.errors) ? problem.errors : [] };
    Object.assign(this, { status, path, unknown, safe, wait });
  }
}

const say = (code, ...about) => ({ code, title: typeof text.problems[code] === "string" ? text.problems[code] : text.problems[code](...about) });

// What a view cannot read is an answer of another shape than the gateway's.
export function asError(error) {
  if (error instanceof ApiError) return error;
  console.warn(error);
  return new ApiError(say("unreadable"));
}

function headersOf(more) {
  return { accept: "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}), ...more };
}

function parsed(content) {
  try { return JSON.parse(content); } catch { return undefined; }
}

const UNKNOWN = new Set(["outcome_unknown", "not_recorded", "internal"]); // codes of problems that leave open what was done

// What an answer with an error says: the problem of the API, or that it has none.
function refused(answer, data) {
  const after = answer.headers.get("retry-after") ?? "";
  const wait = Number(after) || Math.max(0, (Date.parse(after) - Date.now()) / 1000) || 0;
  const own = typeof data?.code === "string" && typeof data.title === "string";
  return { problem: own ? data : say("answered", answer.status, answer.statusText), own, wait };
}

const loggedIn = () => new Promise((resolve) => { const stop = effect(() => { if (session.value.state === "in") resolve(() => stop()); }); }).then((stop) => stop());

// One request, within `patience`. `once`: an idempotency key. `safe`: to do it again does nothing twice. `reads`: it
// changes nothing. `body`: a file goes as it is, anything else as JSON. `blob`: the answer is a file. What a login that has expired stops goes on after the next one, where `asks` says that somebody waits.
export async function request(method, path, options = {}) {
  const { body, etag, accept, headers: more, blob = false, once, signal: stop, reads = method === "GET", patience = reads ? READ : WRITE, safe = Boolean(once), asks = !stop } = options;
  const headers = headersOf({
    ...(body === undefined || body instanceof Blob ? {} : { "content-type": "application/json" }),
    ...(etag ? { "if-match": etag } : {}), ...(once ? { "idempotency-key": once } : {}), ...(accept ? { accept } : {}), ...more,
  });
  const [asked, login, caller] = [Date.now(), epoch.peek(), session.peek().state === "in" ? session.peek().caller : null];
  const failed = (problem, more = {}) => {
    const unknown = !reads && (more.unknown ?? true);
    if (unknown) readAgain();
    return new ApiError(problem, { path, safe, ...more, unknown });
  };
  const ends = new AbortController();
  const end = () => ends.abort();
  const timer = setTimeout(end, patience);
  stop?.addEventListener("abort", end);
  let answer;
  let content;
  let isFile = false;
  try {
    answer = await fetch(path, {
      method, headers, credentials: "same-origin", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
      body: body === undefined || body instanceof Blob ? body : typeof body === "string" ? body : JSON.stringify(body), signal: ends.signal,
    });
    heardOf(answer.headers.get("date"), asked);
    isFile = blob && answer.ok;
    content = await (isFile ? answer.blob() : answer.text());
  } catch (error) {
    if (stop?.aborted) throw error;
    throw failed(ends.signal.aborted ? say("timeout", patience / 1000) : say(answer ? "cut" : "network"));
  } finally {
    clearTimeout(timer);
    stop?.removeEventListener("abort", end);
  }
  const { status } = answer;
  if (isFile) return { data: content, status, headers: answer.headers };
  const data = parsed(content);
  if (answer.ok) {
    if (status === 204 || (data !== null && typeof data === "object")) return { data: data ?? null, status, headers: answer.headers };
    if (accept && content) return { data: content, status, headers: answer.headers };
    throw failed(say(content === "" ? "empty" : "unreadable"), { status: 0 });
  }
  const { problem, own, wait } = refused(answer, data);
  if (status === 401) {
    expire(problem, login);
    if (caller && asks) {
      await loggedIn();
      if (session.peek().caller.name === caller.name) return request(method, path, options);
      throw failed(say("other"), { unknown: false });
    }
  }
  throw failed(problem, { status, wait, unknown: own ? UNKNOWN.has(problem.code) : status >= 500 });
}

export const get = async (path, how) => (await request("GET", path, how)).data;

// Reads an object that has this; an answer without it is none of the gateway's, and never shows as an empty list.
export const having = (name) => async (path, how) => {
  const data = await get(path, how);
  if (!(name in data)) throw new ApiError(say("unreadable"));
  return data;
};

function next(headers) {
  const found = /<([^>]*)>; rel="next"/.exec(headers.get("link") || "");
  return found ? found[1] : null;
}

// All pages of a list, at most so many items; `onPage` gets what there is so far.
export async function all(path, name, { most = 100_000, onPage, signal: stop } = {}) {
  const found = [];
  let at = path;
  while (at && found.length < most) {
    const answer = await page(at, { signal: stop });
    found.push(...answer.data[name]);
    at = answer.next;
    if (onPage && at) onPage([...found]);
  }
  return found;
}

export async function page(path, { signal: stop } = {}) {
  const answer = await request("GET", path, { signal: stop });
  return { data: answer.data, next: next(answer.headers) };
}

// --------------------------------------------------------------------------------------------- session

// Whether this credential opens the gateway: true, false, or null where the gateway does not answer.
export async function begin(given = key) {
  key = given;
  try {
    const data = await get("/v1/caller", { patience: LATE, asks: false });
    session.value = { state: "in", caller: data, problem: "" };
    epoch.value += 1;
    return true;
  } catch (error) {
    const { state, caller } = session.value;
    const isRefused = error.status === 401;
    if (isRefused || state === "out") key = "";
    session.value = { state: isRefused ? "out" : state === "out" ? state : "away", caller, problem: isRefused && !given ? "" : error.message };
    return isRefused ? false : null;
  }
}

// Whether the gateway answers, whatever is shown, and the credential still counts: a session ends with its key.
export function usePulse() {
  const { state } = session.value;
  const feed = usePoll(state === "unknown" ? null : "/v1/caller", PULSE, (path, { signal: stop }) => get(path, { signal: stop, patience: LATE }), PULSE);
  const failed = useRef(false);
  useEffect(() => {
    if (failed.current && !feed.error) readAgain(); // it is back: what waits for an answer asks once more
    failed.current = Boolean(feed.error);
    if (feed.data && session.value.state === "in" && JSON.stringify(feed.data) !== JSON.stringify(session.value.caller)) {
      session.value = { ...session.value, caller: feed.data };
    }
  }, [feed.data, feed.error]);
  useEffect(() => {
    if (session.value.state !== "away") return undefined;
    const timer = setTimeout(begin, PULSE);
    return () => clearTimeout(timer);
  }, [session.value]);
}

export function leave() {
  key = "";
  session.value = { state: "out", caller: null, problem: "" };
  location.hash = "#/";
}

// `login`: the one whose credential was refused; a later one still counts.
function expire(problem, login) {
  if (session.value.state !== "in" || login !== epoch.peek()) return;
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
export const NEVER = 86_400_000; // milliseconds: what is read once, and again where that has failed
const AGAIN = 5000; // milliseconds after which a read that failed is tried again, unless the gateway asks for more

// Whether a read may be well again without anything being changed: then what was read before still tells something.
export const passes = (error) => !error.status || error.status >= 500 || [401, 408, 429].includes(error.status);

// How long the answer to a read has been due, in seconds.
export function waited(path) {
  const due = feeds.value[path]?.due ?? now.value;
  return paused.value ? 0 : Math.max(0, (now.value - due) / 1000);
}

export const isLate = (path) => waited(path) * 1000 > LATE;

// What is known of something that the page follows.
export function tellFeed(path, changes) {
  feeds.value = { ...feeds.value, [path]: { at: 0, failed: "", ...feeds.value[path], ...changes } };
}

export function endFeed(path) {
  const { [path]: _, ...others } = feeds.value;
  feeds.value = others;
}

// Read all that is followed at once.
export function readAgain() { woken.value += 1; }

effect(() => { if (!paused.value) woken.value = woken.peek() + 1; });

// Read again and again: {data, error, at, reload}, where `data` answers `path`, and `asked` is the path of now. What was
// read last stays while a read fails, and says how old it is. It does not where the gateway has refused this question.
// There is one read at a time, and only its answer counts: none of an older one, and none after the view is left.
export function usePoll(path, every = 5000, read = get, most = SELDOM) {
  const [state, setState] = useState({ data: null, error: null, at: 0, path });
  const run = useRef(() => {});
  const login = epoch.value;
  useEffect(() => {
    if (!path) { setState({ data: null, error: null, at: 0, path }); return undefined; }
    let live = true;
    let timer = 0;
    let own = null; // the read that is under way
    let bad = false;
    let whole = false;
    const once = async (forced = false) => {
      if (own && !forced) return;
      clearTimeout(timer);
      own?.abort();
      let pause = every;
      if (forced || (!paused.value && !document.hidden && session.value.state === "in")) {
        const mine = new AbortController();
        own = mine;
        const began = performance.now();
        tellFeed(path, { due: Date.now() });
        try {
          const onPage = (partial) => { if (live && own === mine && !whole) setState({ data: partial, error: null, at: Date.now(), path }); };
          const data = await read(path, { signal: mine.signal, onPage });
          if (!live || own !== mine) return;
          setState({ data, error: null, at: Date.now(), path });
          tellFeed(path, { at: Date.now(), failed: "" });
          pause = Math.max(every, Math.min(most, (performance.now() - began) * SHARE));
          whole = true;
          bad = false;
        } catch (failed) {
          if (!live || own !== mine) return;
          const error = asError(failed);
          const keeps = passes(error);
          setState((before) => (before.path === path && keeps ? { ...before, error } : { data: null, error, at: 0, path }));
          tellFeed(path, { failed: keeps && error.status !== 401 ? error.message : "" });
          pause = Math.max(Math.min(every, AGAIN), Math.min(SELDOM, error.wait * 1000));
          whole = whole && keeps;
          bad = true;
        }
        own = null;
      }
      tellFeed(path, { due: Date.now() + pause });
      timer = setTimeout(once, pause);
    };
    run.current = () => once(true);
    once(session.value.state === "in");
    const seen = () => { if (!document.hidden) once(); };
    document.addEventListener("visibilitychange", seen);
    let count = woken.peek();
    const sleeps = woken.subscribe((each) => {
      if (each === count) return;
      count = each;
      if (own || bad || every <= SELDOM) setTimeout(() => { if (live) once(session.value.state === "in" && !document.hidden); });
    });
    return () => {
      live = false;
      own?.abort();
      clearTimeout(timer);
      sleeps();
      document.removeEventListener("visibilitychange", seen);
      endFeed(path);
    };
  }, [path, login, every]);
  return { ...state, asked: path, reload: () => run.current() };
}

const SILENT = 18_000; // milliseconds: a stream of the gateway says something every 15 s
const LINE_MAX = 1 << 20; // characters: no event is as long

// Events as they happen, until `stop` is aborted: a stream that is read by fetch, so that no credential is in a URL.
export async function follow(path, onEvent, onState, stop) {
  let last = "";
  let pause = 500;
  while (!stop.aborted) {
    const login = epoch.peek();
    const ends = new AbortController();
    const end = () => ends.abort();
    let timer = setTimeout(end, LATE);
    stop.addEventListener("abort", end);
    try {
      const answer = await fetch(path, {
        headers: headersOf({ accept: "application/x-ndjson", ...(last ? { "last-event-id": last } : {}) }),
        signal: ends.signal, cache: "no-store", credentials: "same-origin", redirect: "error",
      });
      if (!answer.ok) {
        const { problem, wait } = refused(answer, parsed(await answer.text()));
        if (answer.status === 401) expire(problem, login);
        const error = new ApiError(problem, { status: answer.status, wait });
        if (answer.status === 401 || !passes(error)) { onState("refused", error.message); return; }
        pause = Math.max(pause, wait * 1000);
        throw error;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let isNew = true; ; isNew = false) {
        clearTimeout(timer);
        timer = setTimeout(end, SILENT);
        if (isNew) onState("live", "");
        const { done, value } = await reader.read();
        if (done) break;
        pause = 500;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        if (rest.length > LINE_MAX) throw new ApiError(say("unreadable"));
        for (const line of lines) {
          if (!line) continue;
          const event = parsed(line);
          if (event === null || typeof event !== "object") throw new ApiError(say("unreadable"));
          if (event.position) last = JSON.stringify(event.position);
          if (event.end) { onState("refused", event.end); await begin(); return; }
          onEvent(event.kind ? event : null);
        }
      }
      onState("stale", text.problems.cut);
    } catch (error) {
      if (stop.aborted) return;
      onState("stale", ends.signal.aborted ? text.problems.silent : error instanceof ApiError ? error.message : text.problems.network);
    } finally {
      clearTimeout(timer);
      stop.removeEventListener("abort", end);
      ends.abort();
    }
    await new Promise((resolve) => { setTimeout(resolve, Math.min(pause, SELDOM)); });
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
export async function bodySchema(path, method = "put", how = {}) {
  document_ ??= await get("/openapi.json", how);
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
