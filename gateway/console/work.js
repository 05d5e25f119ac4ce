// What is under way: replays, scheduled publishes, and events as they happen.

import { html, localTime, nameText, now, number, segment, span, useEffect, useMemo, useRef, useState, visible } from "./base.js";
import { all, endFeed, epoch, follow, may, paused, request, tellFeed, usePoll } from "./api.js";
import { filter, link, route } from "./route.js";
import { Action, Dialog, Facts, Filter, Json, Name, Num, Problem, Same, Search, Select, State, Table, Time, View, ask, dialog, tell, useAct } from "./parts.js";
import { text } from "./text.js";

// --------------------------------------------------------------------------------------------- replays

const replays = text.replays;

export function Replays() {
  const feed = usePoll("/v1/replays?limit=1000", 5000, (path, how) => all(path, "replays", how));
  const rows = [...(feed.data ?? [])].sort((one, other) => (one.asked_at < other.asked_at ? 1 : -1));
  return html`<${View} title=${text.nav.replays} feed=${feed}>
    ${feed.data && html`<${Table} label=${text.nav.replays} rows=${rows} empty=${replays.none} open=${(row) => link(`replays/${segment(row.id)}`)} columns=${[
      { title: "id", class: "grow", show: (row) => html`<${Name} of=${row.id} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: replays.sent, class: "r", show: (row) => html`<${Num} value=${row.sent} />` },
      { title: replays.total, class: "r mid", show: (row) => html`<${Num} value=${row.total} />` },
      { title: replays.asked, class: "mid", show: (row) => html`<${Time} at=${row.asked_at} />` },
      { title: text.client, class: "wide", show: (row) => html`<${Name} of=${row.client} />` },
      { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
    ]} />`}
    <${Same} path="/v1/replays" cli="gateway replays list" />
  <//>`;
}

export function ReplayPage({ raw }) {
  const path = `/v1/replays/${raw}`;
  const feed = usePoll(path, 2000);
  const row = feed.data;
  const over = row && ["done", "failed", "cancelled"].includes(row.state);
  const verb = async (each) => { await request("POST", `${path}:${each}`); feed.reload(); };
  const done = row ? row.sent + row.skipped + Object.values(row.refused).reduce((sum, many) => sum + many, 0) : 0;
  return html`<${View} title=${html`<${Name} of=${row?.id ?? raw} />`} crumbs=${[[text.nav.replays, "replays"]]} feed=${feed}
    actions=${row && !over && html`
      ${row.state === "paused" ? html`<${Action} label=${text.resources.resume} act=${() => verb("resume")} />` : html`<${Action} label=${text.resources.pause} act=${() => verb("pause")} />`}
      <button class="danger" onClick=${() => ask({ title: replays.cancelThis, what: replays.cancelWhat, name: row.id, act: () => verb("cancel") })}>${replays.cancel}</button>`}>
    ${row && html`<p class="lead"><${State} of=${row.state} /> ${visible(row.reason)}</p>
      <progress max=${Math.max(row.total ?? row.found ?? 1, 1)} value=${done} aria-label=${replays.progress}></progress>
      <${Facts} rows=${[
        [replays.total, html`<${Num} value=${row.total} />`], [replays.found, html`<${Num} value=${row.found} />`],
        [row.request.target?.purge ? replays.purged : replays.sent, html`<${Num} value=${row.sent} />`], [replays.skipped, html`<${Num} value=${row.skipped} />`],
        ...Object.entries(row.refused).map(([code, many]) => [`${replays.refused}: ${visible(code)}`, html`<${Num} value=${many} />`]),
        [replays.asked, html`<${Time} at=${row.asked_at} />`], [replays.ended, html`<${Time} at=${row.ended_at} />`],
        [text.client, html`<${Name} of=${row.client} />`],
      ]} />
      <section><h2>${replays.request}</h2><${Json} of=${row.request} label=${replays.request} /></section>
      <${Same} path=${path} cli=${`gateway replays show ${raw}`} />`}
  <//>`;
}

// ------------------------------------------------------------------------------------------- schedules

const schedules = text.schedules;

export function Schedules() {
  const state = route.value.query.get("state") ?? "";
  const sought = route.value.query.get("q") ?? "";
  const path = `/v1/scheduled?${new URLSearchParams({ limit: "1000", ...(state ? { state } : {}) })}`;
  const feed = usePoll(path, 3000, (each, how) => all(each, "scheduled", { ...how, most: 10_000 }));
  const rows = (feed.data ?? []).sort((one, other) => (due(one) < due(other) ? -1 : 1)).filter((row) => !sought || `${row.id} ${row.broker} ${nameText(row.exchange)} ${nameText(row.routing_key)}`.toLowerCase().includes(sought.toLowerCase()));
  const { busy, error, run } = useAct(schedules.retry);
  const retry = (row) => run(async () => {
    await request("POST", `/v1/scheduled/${row.id}:retry`);
    tell(text.done);
    feed.reload();
  });
  return html`<${View} title=${text.nav.schedules} feed=${feed} actions=${html`<a class="button primary" href=${link("publish")}>${schedules.publish}</a>`}>
    <div class="bar"><${Search} label=${schedules.find} value=${sought} onInput=${(q) => filter({ q })} />
      <${Select} label=${text.state} value=${state} onChange=${(each) => filter({ state: each })} options=${[["", text.all], ["scheduled", schedules.scheduled], ["refused", schedules.refused]]} />
      <span class="quiet">${text.shown(rows.length, feed.data?.length ?? 0)}</span></div>
    <${Problem} error=${error} />
    ${feed.data && html`<${Table} label=${text.nav.schedules} rows=${rows} empty=${sought || state ? text.nothingFound : schedules.none} open=${(row) => link(`messages/${row.id}`)} columns=${[
      { title: schedules.due, show: (row) => html`<${Time} at=${due(row)} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.sending ? "sending" : row.state} />` },
      { title: text.broker, class: "mid", show: (row) => html`<${Name} of=${row.broker} />` },
      { title: schedules.to, class: "mid grow", show: (row) => html`<${Name} of=${row.exchange === "" ? "amq.default" : row.exchange} /> <span class="quiet">·</span> <${Name} of=${row.routing_key} />` },
      { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
      { title: text.client, class: "wide", show: (row) => html`<${Name} of=${row.client} />` },
      { title: schedules.steer, show: (row) => html`
        ${row.state === "refused" && html`<button class="small" disabled=${busy} onClick=${() => retry(row)}>${schedules.retry}</button>`}
        ${row.state !== "refused" && html`<button class="small" onClick=${() => { dialog.value = html`<${Move} key=${row.id} row=${row} done=${feed.reload} />`; }}>${schedules.move}</button>`}${" "}
        <button class="small danger" onClick=${() => ask({ title: schedules.cancelThis, what: schedules.cancelWhat,
          act: async () => { const { data } = await request("DELETE", `/v1/scheduled/${row.id}`); feed.reload(); return data ? visible(data.reason) : schedules.cancelled; } })}>${schedules.cancel}</button>` },
    ]} />`}
    <${Same} path=${path} cli=${`gateway scheduled list${state ? ` --state ${state}` : ""}`} />
  <//>`;
}

const due = (row) => row.not_before ?? row.at;

// Another time for one of them.
function Move({ row, done }) {
  const [time, setTime] = useState(localTime(new Date(due(row))).replace(" ", "T"));
  const { busy, error, run } = useAct(schedules.move);
  const path = `/v1/scheduled/${row.id}`;
  const wanted = new Date(time);
  const valid = !Number.isNaN(wanted.getTime());
  const send = (body) => run(async () => {
    await request("PATCH", path, { body });
    dialog.value = null;
    tell(schedules.moved);
    done();
  });
  const body = { not_before: valid ? wanted.toISOString() : "" };
  return html`<${Dialog} title=${schedules.move}><form onSubmit=${(event) => { event.preventDefault(); if (valid) send(body); }}>
    <div class="field"><label for="move-time">${schedules.moveTo}</label>
      <input id="move-time" type="datetime-local" step="1" required autofocus value=${time} onInput=${(event) => setTime(event.currentTarget.value)} />
      ${valid && html`<p class="help">${visible(wanted.toISOString())} UTC</p>`}</div>
    <${Problem} error=${error} />
    <div class="buttons"><button type="button" onClick=${() => { dialog.value = null; }}>${text.cancel}</button>
      <button type="button" disabled=${busy} onClick=${() => send({ delay_seconds: 0 })}>${schedules.now}</button>
      <button class="primary" disabled=${busy || !valid}>${busy ? text.working : schedules.moveIt}</button></div></form>
    <${Same} method="PATCH" path=${path} body=${body} cli=${`gateway scheduled move ${row.id} --not-before ${body.not_before}`} /><//>`;
}

// ---------------------------------------------------------------------------------------------- events

const events = text.events;
const KEPT = 2000; // events that the page keeps

export function Events() {
  const query = route.value.query;
  const given = Object.fromEntries(["kind", "broker", "subscription", "endpoint", "bridge", "message"].map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
  const path = `/v1/events?${new URLSearchParams(given)}`;
  const [rows, setRows] = useState([]);
  const [state, setState] = useState({ of: "connecting", why: "", at: Date.now() }); // `at`: when the stream said something last
  const [count, setCount] = useState(0);
  const buffer = useRef([]);
  const login = epoch.value;
  const isPaused = paused.value;
  useMemo(() => { buffer.current = []; }, [path]);
  useEffect(() => {
    if (isPaused || !may("history")) { setState((before) => ({ ...before, of: "paused" })); return undefined; }
    const stop = new AbortController();
    follow(path, (event) => {
      setStateSoon();
      if (event) { buffer.current.unshift(event); buffer.current.length = Math.min(buffer.current.length, KEPT); counted += 1; }
    }, (of, why) => {
      setState((before) => ({ of, why, at: of === "live" ? Date.now() : before.at }));
      tellFeed(path, { failed: of === "stale" ? why : "", due: Infinity, ...(of === "live" ? { at: Date.now() } : {}) });
    }, stop.signal);
    let counted = 0;
    let heard = false;
    const setStateSoon = () => { heard = true; };
    const timer = setInterval(() => {  // however many there are, the page changes twice a second
      if (heard) setState((before) => ({ ...before, at: Date.now() }));
      heard = false;
      if (counted) { setRows([...buffer.current]); setCount((before) => before + counted); counted = 0; }
    }, 500);
    return () => { stop.abort(); clearInterval(timer); endFeed(path); };
  }, [path, login, isPaused]);
  const input = (name) => html`<${Filter} label=${text.messages.filters[name] ?? events[name]} value=${given[name] ?? ""}
    onChange=${(value) => filter({ [name]: value })} />`;
  return html`<${View} title=${text.nav.events}>
    <div class="bar filters">${["kind", "broker", "subscription", "endpoint", "bridge", "message"].map(input)}</div>
    <p role="status"><${State} of=${state.of} /> ${visible(state.why)}${" "}
      <span class="quiet">${events.since(count)}${["live", "stale"].includes(state.of) ? ` · ${events.heard(span((now.value - state.at) / 1000))}` : ""}</span></p>
    <${Table} label=${text.nav.events} rows=${rows} empty=${may("history") ? events.none : text.needs("history")} keyOf=${(row) => `${row.shard}-${row.sequence}`}
      open=${(row) => link(`messages/${row.id}`)} columns=${[
        { title: text.time, show: (row) => html`<${Time} at=${row.at} plain />` },
        { title: events.kind, show: (row) => html`<${State} of=${row.kind} />` },
        { title: text.broker, class: "mid", show: (row) => html`<${Name} of=${row.broker} />` },
        { title: text.details, class: "grow mid", show: (row) => html`<${Name} of=${brief(row.detail)} />` },
        { title: text.message, class: "wide", show: (row) => html`<code class="id">${row.id}</code>` },
      ]} />
    <${Same} path=${path} cli=${`gateway tail${Object.entries(given).map(([name, value]) => ` --${name} ${value}`).join("")}`} />
  <//>`;
}

function brief(detail) {
  return Object.entries(detail).filter(([, value]) => typeof value !== "object").map(([name, value]) => `${name}=${value}`).join("  ").slice(0, 300);
}

