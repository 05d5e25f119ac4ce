// What all modules share: Preact, signals and htm, which the page has loaded, and small helpers for texts and times.

const { h, render, createContext, Fragment } = globalThis.preact;
const { useState, useContext, useEffect, useErrorBoundary, useRef, useMemo, useCallback } = globalThis.preactHooks;
const { signal, computed, effect } = globalThis.preactSignals;
const html = globalThis.htm.bind(h);

export { html, render, createContext, Fragment, useState, useContext, useEffect, useErrorBoundary, useRef, useMemo, useCallback, signal, computed, effect };

export const now = signal(Date.now());
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);

export const skew = signal(0); // milliseconds by which the gateway's clock is ahead of this browser's; 0: about the same
const SKEW_LEAST = 5000; // milliseconds: the gateway tells whole seconds, and an answer takes a while

// What an answer says of the gateway's clock: ages count by that one, since all times come from there.
export function heardOf(date, asked) {
  const ahead = Date.parse(date) + 500 - (asked + Date.now()) / 2;
  if (Number.isNaN(ahead)) return;
  const found = Math.abs(ahead) < SKEW_LEAST ? 0 : ahead;
  if (Math.abs(found - skew.value) >= SKEW_LEAST) skew.value = found;
}

// Characters that a reader would not see, or that would move others about: controls, bidi marks, zero widths.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text, keep = "") {
  return String(text).replace(HIDDEN, (each) =>
    keep.includes(each) ? each : `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// A name of AMQP as the API writes it: a string, or an object with the bytes.
export function nameText(name) {
  if (name === null || name === undefined) return "";
  if (typeof name === "object") {
    try {
      return Array.from(atob(name.value), (each) => {
        const code = each.charCodeAt(0);
        return code > 126 || code < 32 ? `\\x${code.toString(16).padStart(2, "0")}` : each;
      }).join("");
    } catch { return JSON.stringify(name); }
  }
  return visible(name);
}

// A name as one segment of a path; the exchange without a name has one there.
export function segment(name) {
  if (name !== null && typeof name === "object") {
    return Array.from(atob(name.value), (each) => `%${each.charCodeAt(0).toString(16).padStart(2, "0")}`).join("");
  }
  return encodeURIComponent(name).replace(/[!'()*]/g, (each) => `%${each.charCodeAt(0).toString(16)}`);
}

// A name that nothing else has.
export const unique = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");

export function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

const NUMBERS = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function number(value) {
  if (value === null || value === undefined) return "–";
  return NUMBERS.format(value);
}

export function short(value) {
  return value === null || value === undefined ? "–" : value < 10000 ? number(value) : SHORT.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 1) return `${Math.round(whole * 1000)} ms`;
  if (whole < 60) return `${Math.round(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// What somebody typed as the console shows times, in the browser's zone, as the API takes it; anything else as it is.
export function moment(typed) {
  const given = /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?))?$/.exec(typed.trim());
  const date = given && new Date(`${given[1]}T${given[2] ?? "00:00"}`);
  return date && !Number.isNaN(date.getTime()) ? date.toISOString() : typed.trim();
}

// The other way round.
export function momentShown(given) {
  const date = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(given) ? new Date(given) : null;
  return date && !Number.isNaN(date.getTime()) ? localTime(date) : given;
}

export function localTime(date, withDate = true) {
  const pad = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return withDate ? `${day} ${clock}` : clock;
}

// A value as TOML; only what settings are made of.
export function toml(path, value) {
  const lines = [];
  const tables = [];
  for (const [key, each] of Object.entries(value)) {
    if (each === null || each === undefined) continue;
    if (typeof each === "object" && !Array.isArray(each)) {
      if (Object.keys(each).length) tables.push([key, each]);
    } else lines.push(`${bare(key)} = ${scalar(each)}`);
  }
  let text = `[${path}]\n${lines.join("\n")}${lines.length ? "\n" : ""}`;
  for (const [key, each] of tables) text += `\n${toml(`${path}.${bare(key)}`, each)}`;
  return text;
}

export function bare(key) {
  return /^[A-Za-z0-9_-]+$/.test(key) ? key : scalar(key);
}

function scalar(value) {
  if (Array.isArray(value)) return `[${value.map(scalar).join(", ")}]`;
  if (typeof value === "string") {
    return JSON.stringify(value).replace(/\u007f/g, "\\u007f");
  }
  return String(value);
}

// A word for a POSIX shell.
export function quoted(word) {
  return /^[A-Za-z0-9_./:=@%+,-]+$/.test(word) ? word : `'${String(word).replace(/'/g, "'\\''")}'`;
}
