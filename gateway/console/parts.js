// The pieces that views are made of: tables, times, states, dialogs, and what says the same on a command line.

import {
  Fragment, bytes, createContext, html, localTime, nameText, now, number, quoted, signal, skew, span, useContext, useEffect, useMemo,
  useRef, useState, visible,
} from "./base.js";
import { asError, isAdmin, isLate, readAgain, waited } from "./api.js";
import { link } from "./route.js";
import { text } from "./text.js";

// --------------------------------------------------------------------------------------- texts and numbers

// Text of others: as text, its own direction kept apart, and what cannot be seen written out.
export function Name({ of, title = true }) {
  const shown = nameText(of);
  if (shown === "") return html`<i class="none">${text.none}</i>`;
  return html`<bdi class="name" title=${title ? shown.slice(0, 1000) : undefined}>${shown}</bdi>`;
}

// `exact`: to the millisecond, where things follow each other.
export function Time({ at, plain = false, exact = false }) {
  if (!at) return html`<span class="quiet">–</span>`;
  const date = new Date(at);
  const ago = (now.value + skew.value - date.getTime()) / 1000;
  const shown = !plain && ago > -1 && ago < 1 ? text.justNow : plain || Math.abs(ago) > 86400 ? localTime(date) + (exact ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : "") : ago >= 0 ? text.ago(span(ago)) : text.in(span(-ago));
  return html`<time dateTime=${at} title=${`${localTime(date)} · ${date.toISOString()} UTC`}>${shown}</time>`;
}

const TONES = {
  up: "good", running: "good", active: "good", live: "good", done: "good", confirmed: "good", acknowledged: "good",
  forwarded: "good", delivered: "good", true: "good",
  down: "bad", failed: "bad", error: "bad", dead: "bad", refused: "bad", rejected: "bad", revoked: "bad",
  unroutable: "bad", disabled: "bad", dead_lettered: "bad", unknown: "bad", not_sent: "bad",
  connecting: "warn", blocked: "warn", paused: "warn", draining: "warn", waiting: "warn", full: "warn", retrying: "warn",
  unverified: "warn", starting: "warn", pending: "warn", expired: "warn", stopped: "warn", attempt_failed: "warn",
};

export function State({ of }) {
  return html`<span class=${`state ${TONES[of] ?? "plain"}`}>${visible(of)}</span>`;
}

export const Num = ({ value, unit }) =>
  html`<span class="num">${unit === "bytes" ? bytes(value) : unit === "s" ? span(value) : number(value)}</span>`;

// What went wrong, in the words of the API: what, why, and what to do. `again`: does it once more.
export function Problem({ error, fields = [], again }) {
  if (!error) return null;
  const { problem, path, unknown, safe, wait } = error;
  const others = problem.errors.filter((each) => !fields.includes(pointed(each)));
  const about = problem.detail || problem.title || problem.code;
  return html`<div class="problem" role="alert">
    <strong>${unknown ? text.unknown : visible(problem.title || problem.code)}</strong>
    ${(unknown || about !== problem.title) && html`<p>${visible(about)}</p>`}
    ${others.length > 1 && html`<ul>${others.map((each) => html`<li>${visible(each.detail)}</li>`)}</ul>`}
    ${unknown ? html`<p class="advice">${safe ? text.safe : text.unknownWhat}${!safe && isAdmin() && html` <a href=${link("audit", { object: path.split("?")[0] })}
        onClick=${() => { dialog.value = null; }}>${text.unknownAudit}</a>`}</p>`
      : problem.advice && html`<p class="advice">${visible(problem.advice)}</p>`}
    <${Wait} of=${error} />
    ${again && html`<p><button type="button" class="small" onClick=${again}>${text.again}</button></p>`}
  </div>`;
}

const Wait = ({ of }) => (of.wait > 1 ? html`<p class="advice">${text.waitFor(span(of.wait))}</p>` : null);

// Where an error of a problem points to: `/source/queue`, or the name of a parameter.
export const pointed = (each) => (each.pointer || (each.parameter ? `/${each.parameter}` : "")).replace(/^\/settings/, "");

export function problemAt(error, path) {
  const found = (error?.problem?.errors ?? []).find((each) => pointed(each) === path);
  return found ? found.detail : "";
}

// ---------------------------------------------------------------------------------------------------- views

// `feed`: what the view is made of; several feeds where it is made of several.
export function View({ title, crumbs = [], actions, feed, children }) {
  return html`<div class="view">
    <header class="head">
      <div class="headline">
        ${crumbs.length > 0 && html`<nav class="crumbs" aria-label=${text.crumbs}>
          ${crumbs.map(([name, path]) => html`<a href=${link(path)}>${name}</a><span aria-hidden="true">/</span>`)}
        </nav>`}
        <h1 tabindex="-1">${title}</h1>
      </div>
      <div class="actions">${actions}</div>
    </header>
    <${Staleness} of=${feed} />
    <${Above.Provider} value=${[feed].flat().map(wrongWith).filter(Boolean).join("\n")}>${children}<//>
  </div>`;
}

const Above = createContext(""); // what the view says above its sections: they do not say it once more

const LATE = " late"; // no message of the gateway is like that
const wrongWith = (feed) => (feed?.error ? feed.error.message : feed?.asked && isLate(feed.asked) ? LATE : "");

// Whether what feeds show still counts: nothing where it does. Those with the same trouble say so once.
export function Staleness({ of }) {
  const above = useContext(Above).split("\n");
  const all = [of].flat().filter((feed) => feed?.asked);
  const troubles = new Map();
  for (const feed of all.filter(wrongWith)) troubles.set(wrongWith(feed), [...(troubles.get(wrongWith(feed)) ?? []), feed]);
  const loads = all.some((feed) => !wrongWith(feed) && (feed.data === null || (feed.path !== feed.asked && waited(feed.asked) > 1)));
  return html`<${Fragment}>
    ${loads && html`<p class="quiet" role="status">${text.loading}</p>`}
    ${[...troubles].map(([wrong, feeds]) => (!above.includes(wrong) ? html`<${Trouble} key=${wrong} feeds=${feeds} />`
      : feeds.some((feed) => feed.data === null) && html`<p class="quiet">${text.notRead}</p>`))}<//>`;
}

function Trouble({ feeds }) {
  const { error } = feeds[0];
  const read = feeds.filter((feed) => feed.data !== null);
  if (read.length === 0 && error) return html`<${Problem} error=${error} again=${readAgain} />`;
  const seconds = Math.max(...feeds.map((feed) => waited(feed.asked)));
  return html`<div class="problem stale-note" role="status">
    <strong>${read.length ? text.staleSince(span((now.value - Math.min(...read.map((feed) => feed.at))) / 1000)) : text.loading}</strong>${" "}
    ${error ? visible(error.message) : text.late(span(seconds))} ${error && html`<${Wait} of=${error} />`}
    <button onClick=${readAgain}>${text.again}</button>
  </div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export function Facts({ rows }) {
  return html`<dl class="facts">${rows.filter(([, value]) => value !== undefined && value !== false).map(
    ([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// ----------------------------------------------------------------------------------------------- tables

const ROW = 37; // height of a row, in CSS pixels, as console.css says

// A table of which only the rows in sight are in the page. The arrow keys move a row; Enter opens it.
export function Table({ rows, columns, empty, open, label, picked, onPick, keyOf = (row) => row.id ?? row.name }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [at, setAt] = useState(-1);
  useEffect(() => {
    const watch = new ResizeObserver(() => box.current && setHeight(box.current.clientHeight));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  const first = Math.max(0, Math.min(Math.floor(top / ROW) - 10, rows.length - 1));
  const last = Math.min(rows.length, first + Math.ceil(height / ROW) + 20);
  const move = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, j: 1, k: -1 };
    const step = steps[event.key];
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) {
      event.preventDefault();
      const next = Math.max(0, Math.min(rows.length - 1, at + step));
      setAt(next);
      const y = next * ROW;
      if (y < box.current.scrollTop + ROW) box.current.scrollTop = Math.max(0, y - ROW);
      else if (y > box.current.scrollTop + height - 3 * ROW) box.current.scrollTop = y - height + 3 * ROW;
    } else if (event.key === "Enter" && event.target === box.current && open && rows[at] && open(rows[at])) {
      location.hash = open(rows[at]);
    }
  };
  const seen = rows.slice(first, last);
  return html`<div class="table" ref=${box} tabindex="0" role="region" aria-label=${label} onKeyDown=${move}
      onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <table aria-rowcount=${rows.length + 1}>
      <thead><tr>
        ${onPick && html`<th class="pick"><input type="checkbox" aria-label=${text.pickAll}
          checked=${picked.size === rows.length}
          onChange=${() => onPick(picked.size === rows.length ? new Set() : new Set(rows.map(keyOf)))} /></th>`}
        ${columns.map((each) => html`<th class=${each.class ?? ""} scope="col">${each.title}</th>`)}
      </tr></thead>
      <tbody>
        ${first > 0 && html`<tr class="gap" aria-hidden="true" style=${{ height: `${first * ROW}px` }}></tr>`}
        ${seen.map((row, index) => html`<tr key=${keyOf(row)} aria-rowindex=${first + index + 2}
            class=${first + index === at ? "at" : ""}>
          ${onPick && html`<td class="pick"><input type="checkbox" checked=${picked.has(keyOf(row))}
            aria-label=${text.pick(nameText(keyOf(row)))} onChange=${() => {
              const next = new Set(picked);
              if (!next.delete(keyOf(row))) next.add(keyOf(row));
              onPick(next);
            }} /></td>`}
          ${columns.map((each, place) => html`<td class=${each.class ?? ""}>${
            place === 0 && open && open(row) ? html`<a href=${open(row)}>${each.show(row)}</a>` : each.show(row)}</td>`)}
        </tr>`)}
        ${last < rows.length && html`<tr class="gap" aria-hidden="true"
          style=${{ height: `${(rows.length - last) * ROW}px` }}></tr>`}
      </tbody>
    </table>
  </div>`;
}

export function Search({ value, onInput, label, placeholder }) {
  return html`<input class="search" type="search" data-search value=${value} aria-label=${label}
    placeholder=${placeholder ?? label} autocomplete="off" spellcheck=${false}
    onInput=${(event) => onInput(event.currentTarget.value)} />`;
}

// What narrows a list down, once it is typed: what is half typed stays when the list is read again meanwhile.
export function Filter({ label, value, onChange, ...more }) {
  const [typed, setTyped] = useState(null);
  return html`<label class="select"><span>${label}</span><input value=${typed ?? value} autocomplete="off" spellcheck=${false} ...${more}
    onInput=${(event) => setTyped(event.currentTarget.value)} onBlur=${() => setTyped(null)}
    onChange=${(event) => { setTyped(null); onChange(event.currentTarget.value); }} /></label>`;
}

export function Select({ label, value, options, onChange, short = false }) {
  return html`<label class=${short ? "select short" : "select"}><span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
      ${options.map(([each, name]) => html`<option value=${each} selected=${each === value}>${visible(name)}</option>`)}
    </select></label>`;
}

// ----------------------------------------------------------------------------------------------- dialogs

export const dialog = signal(null);
export const notices = signal([]);

let count = 0;

export function tell(words, tone = "good") {
  const notice = { id: ++count, words, tone };
  notices.value = [...notices.value.slice(-3), notice];
  setTimeout(() => { notices.value = notices.value.filter((each) => each !== notice); }, tone === "bad" ? 60_000 : 8000);
}

// Ask before something is done. `name`: what must be typed, where it cannot be undone.
export function ask({ title, what, name, button, act, done }) {
  dialog.value = html`<${Confirm} key=${++count} ...${{ title, what, name, button, act, done }} />`;
}

// What somebody has asked for, one request at a time: {busy, error, run, clear}. A second press does nothing while the first
// one waits. What fails after the view was left is said all the same.
export function useAct(label = "") {
  const [state, setState] = useState({ busy: false, error: null });
  const own = useRef({ busy: false, here: true }).current;
  useEffect(() => () => { own.here = false; }, []);
  const run = async (act) => {
    if (own.busy) return;
    own.busy = true;
    setState({ busy: true, error: null });
    let error = null;
    try { await act(); } catch (failed) { error = asError(failed); }
    own.busy = false;
    if (own.here) setState({ busy: false, error });
    else if (error) tell(text.failed(label, error.unknown ? `${text.unknown} ${error.message}` : error.message), "bad");
  };
  return { ...state, run, clear: () => setState({ busy: false, error: null }) };
}

function Confirm({ title, what, name, button, act, done }) {
  const [typed, setTyped] = useState("");
  const { busy, error, run } = useAct(title);
  const must = name === undefined ? "" : nameText(name);
  const own = useRef(dialog.value).current;
  const confirm = (event) => {
    event.preventDefault();
    if (typed === must) run(async () => {
      const words = await act();
      if (dialog.value === own) dialog.value = null;
      tell(typeof words === "string" ? words : done ?? text.done);
    });
  };
  return html`<${Dialog} title=${title}>
    <form onSubmit=${confirm}>
      ${what && html`<p>${what}</p>`}
      ${must && html`<label class="field"><span>${text.typeName} <code class="name">${must}</code></span>
        <input value=${typed} autocomplete="off" spellcheck=${false} autofocus
          onInput=${(event) => setTyped(event.currentTarget.value)} /></label>`}
      <${Problem} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${() => { dialog.value = null; }}>${text.back}</button>
        <button class=${must ? "danger" : "primary"} disabled=${busy || typed !== must}>${busy ? text.working : error ? text.again : button ?? title}</button>
      </div>
    </form>
  <//>`;
}

export function Dialog({ title, children, closes = true }) {
  const box = useRef(null);
  useEffect(() => {
    const back = document.activeElement;
    box.current.showModal();
    return () => back?.focus?.();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onCancel=${(event) => {
    event.preventDefault();
    if (closes) dialog.value = null;
  }}><h2>${title}</h2>${children}</dialog>`;
}

// A button for one request; says what went wrong beside itself.
export function Action({ label, act, done, tone = "", title }) {
  const { busy, error, run } = useAct(label);
  const press = () => run(async () => {
    const words = await act();
    const told = typeof words === "string" ? words : done ?? text.done;
    if (told) tell(told);
  });
  return html`<${Fragment}><button class=${tone} disabled=${busy} title=${title} onClick=${press}>${label}</button>
    <${Problem} error=${error} again=${press} /><//>`;
}

// ---------------------------------------------------------------------------------- the same, elsewhere

export function Copy({ of }) {
  const [done, setDone] = useState(false);
  const run = async () => {
    try {
      await navigator.clipboard.writeText(of);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch { tell(text.noClipboard, "bad"); }
  };
  return html`<button class="small" onClick=${run}>${done ? text.copied : text.copy}</button>`;
}

export function curl(method, path, body, file) {
  const words = ["curl", ...(method === "GET" ? [] : ["-X", method]), "-H", '"Authorization: Bearer $GATEWAY_API_KEY"'];
  if (body !== undefined) words.push("-H", "'Content-Type: application/json'", "-d", quoted(JSON.stringify(body)));
  if (file) {
    for (const [name, value] of Object.entries(file.headers)) words.push("-H", quoted(`${name}: ${value}`));
    words.push("--data-binary", quoted(`@${file.name}`));
  }
  words.push(quoted(location.origin + path));
  return words.join(" ");
}

// What the view shows or does, as other programs would have it.
export function Same({ method = "GET", path, body, file, cli, toml: settings, open = false }) {
  const forms = [["curl", curl(method, path, body, file)], ["CLI", cli], ["TOML", settings]].filter(([, each]) => each);
  return html`<details class="same" open=${open}><summary>${text.same}</summary>
    ${forms.map(([name, words]) => html`<div class="form"><span class="kind">${name}</span>
      <pre tabindex="0" aria-label=${name}>${visible(words, "\n\t")}</pre><${Copy} of=${words} /></div>`)}
  </details>`;
}

export function Json({ of, label }) {
  return html`<pre class="json" tabindex="0" aria-label=${label}>${visible(JSON.stringify(of, null, 2), "\n")}</pre>`;
}

// A body of a message: as text, JSON or bytes. What is long is cut, and says so.
const BODY_MAX = 100_000;

export function Body({ payload, encoding, cut = false }) {
  const kinds = encoding === "base64" ? ["hex", "base64"] : ["text", "json", "hex"];
  const [kind, setKind] = useState(kinds[0]);
  const shown = useMemo(() => bodyAs(payload, encoding, kind, cut), [payload, encoding, kind, cut]);
  return html`<div class="body">
    <div class="tabs" role="group" aria-label=${text.bodyAs}>${kinds.map((each) => html`<button class="small"
      aria-pressed=${each === kind} onClick=${() => setKind(each)}>${text.bodyKinds[each]}</button>`)}</div>
    <pre tabindex="0" aria-label=${text.body}>${visible(shown.words.slice(0, BODY_MAX), "\n\t")}</pre>
    ${shown.note && html`<p class="quiet">${shown.note}</p>`}
    ${shown.words.length > BODY_MAX && html`<p class="quiet">${text.cut(bytes(BODY_MAX))}</p>`}
  </div>`;
}

function bodyAs(payload, encoding, kind, cut) {
  const words = typeof payload === "string" ? payload : JSON.stringify(payload, null, 2);
  if (kind === "json") {
    try { return { words: JSON.stringify(JSON.parse(words), null, 2) }; } catch (error) {
      return { words, note: cut ? text.cutJson : text.notJson(error.message) };
    }
  }
  if (kind !== "hex") return { words };
  const octets = encoding === "base64" ? Uint8Array.from(atob(words.slice(0, 40_000)), (each) => each.charCodeAt(0))
    : new TextEncoder().encode(words.slice(0, 30_000));
  const rows = [];
  for (let start = 0; start < octets.length; start += 16) {
    const part = [...octets.slice(start, start + 16)];
    const digits = part.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    rows.push(`${start.toString(16).padStart(8, "0")}  ${digits}  ${letters}`);
  }
  return { words: rows.join("\n"), note: words.length > 30_000 ? text.cut(bytes(30_000)) : "" };
}

// A chart of numbers over time: `series` are {label, values}; `times` are seconds.
export function Chart({ times, series, label }) {
  const box = useRef(null);
  useEffect(() => {
    if (!box.current || !times.length) return undefined;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px Arial, sans-serif" };
    const colors = ["--accent", "--bad", "--warn", "--good"].map(color);
    const plot = new globalThis.uPlot({
      width: box.current.clientWidth, height: 190, cursor: { y: false }, legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
      padding: [8, 20, 0, 0],
      hooks: { setCursor: [(own) => { if (own.cursor.idx === null) own.setLegend({ idx: times.length - 1 }); }] },
      axes: [{ ...axis, values: (_, all) => all.map((each) => localTime(new Date(each * 1000), false).slice(0, 5)) }, { ...axis, size: 60, values: (_, all) => all.map((each) => number(each)) }],
      series: [{ label: text.hour, value: (_, at) => (at === null ? "–" : localTime(new Date(at * 1000))) }, ...series.map((each, index) => ({
        label: each.label, stroke: colors[index % colors.length], width: 2, points: { show: times.length < 4 },
        value: (_, value) => (value === null ? "–" : number(value)),
      }))],
    }, [times, ...series.map((each) => each.values)], box.current);
    plot.setLegend({ idx: times.length - 1 });
    const watch = new ResizeObserver(() => plot.setSize({ width: box.current.clientWidth, height: 190 }));
    watch.observe(box.current);
    return () => { watch.disconnect(); plot.destroy(); };
  }, [JSON.stringify([times, series])]);
  return html`<div class="chart" role="img" aria-label=${label}><div ref=${box}></div></div>`;
}
