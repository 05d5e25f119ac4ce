// Where the reader is: the part of the address behind #, so that every view and filter has a link of its own.

import { decoded, signal } from "./base.js";

function parse() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  const raw = path.split("/").filter((part) => part !== "");
  return { path: raw.join("/"), raw, parts: raw.map(decoded), query: new URLSearchParams(query) };
}

export const route = signal(parse());
addEventListener("hashchange", () => { route.value = parse(); });

export function link(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(pairs).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function go(path, query) { location.hash = link(path, query); }

// The same for after an answer: only while the reader is where it was asked for.
export function goLater() {
  const from = route.value.path;
  return (path, query) => { if (route.value.path === from) go(path, query); };
}

// Put a filter into the address of the view that is shown, without a step in the browser's history.
export function filter(changes) {
  const query = Object.fromEntries(route.value.query);
  history.replaceState(null, "", link(route.value.path, { ...query, ...changes }));
  route.value = parse();
}

const VIEWS = new Set(["brokers", "bridges", "endpoints", "subscriptions", "taps", "fronts", "replays", "messages"]);

// The view of what a path of the API names; the ledger has none.
export function viewOf(path) {
  const found = /^\/v1\/([a-z-]+)(.*)$/.exec(path);
  if (!found) return null;
  const [, kind, rest] = found;
  if (kind === "dead-letters") return `#/dead${rest}`;
  if (kind === "scheduled") return `#/messages${rest}`;
  const [, broker, what, name] = /^\/([^/]+)\/(queues|exchanges)\/([^/]+)$/.exec(rest) ?? [];
  if (kind === "brokers" && what) return `#/${what}/${broker}/${name}`;
  return VIEWS.has(kind) ? `#/${kind}${rest}` : null;
}
