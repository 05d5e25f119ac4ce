// Bridges, endpoints, subscriptions and taps: their lists, their pages, and the forms that create and change them.

import { bare, html, segment, span, toml, useEffect, useState, visible } from "./base.js";
import { NEVER, all, isAdmin, may, request, usePoll, having } from "./api.js";
import { filter, goLater, link, route } from "./route.js";
import {
  Action, Body, Empty, Facts, Json, Name, Num, Problem, Same, Search, State, Table, Time, View, ask, tell, useAct,
} from "./parts.js";
import { Fields, places, useSchema } from "./forms.js";
import { EndpointAttempts, ReplayWindow } from "./endpoints.js";
import { text } from "./text.js";

const words = text.resources;

const queueAt = (broker, name) => (name ? html`<a href=${link(`queues/${segment(broker)}/${segment(name)}`)}>${place(broker, name)}</a>` : place(broker, name));
const place = (broker, name) => html`<${Name} of=${broker} /> <span class="quiet">·</span> <${Name} of=${name} />`;

export const KINDS = {
  bridges: {
    one: "bridge",
    scope: "admin",
    may: isAdmin,
    columns: [
      { title: text.name, show: (row) => html`<${Name} of=${row.name} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: words.from, class: "wide", show: (row) => place(row.settings.source.broker, row.settings.source.queue || row.settings.source.exchange) },
      { title: words.to, class: "wide", show: (row) => place(row.settings.target.broker, row.settings.target.exchange || row.settings.target.routing_key || "") },
      { title: words.rate, class: "r", show: (row) => html`<${Num} value=${row.rate} />` },
      { title: words.lag, class: "r mid", show: (row) => html`<${Num} value=${row.lag} unit="s" />` },
      { title: words.source, class: "r mid", show: (row) => html`<${Num} value=${row.source_messages} />` },
      { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
    ],
    facts: (row) => [
      [words.from, html`${row.settings.source.queue ? queueAt(row.settings.source.broker, row.settings.source.queue) : place(row.settings.source.broker, row.settings.source.exchange)} <span class="quiet">${row.source_version}</span>`],
      [words.to, html`${place(row.settings.target.broker, row.settings.target.exchange || "amq.default")} <span class="quiet">${row.target_version}</span>`],
      [text.messages.filters.routing_key, row.settings.target.routing_key === null ? words.keyKept : html`<${Name} of=${row.settings.target.routing_key} />`],
      [words.rate, html`<${Num} value=${row.rate} />`], [words.lag, html`<${Num} value=${row.lag} unit="s" />`],
      [words.source, html`<${Num} value=${row.source_messages} />`], [words.inFlight, html`<${Num} value=${row.in_flight} />`],
      [words.forwarded, html`<${Num} value=${row.forwarded} />`], [words.taken, html`<${Num} value=${row.taken} />`],
      [words.deadLettered, html`<${Num} value=${row.dead_lettered} />`], [words.resent, html`<${Num} value=${row.resent} />`],
      [words.duplicates, html`<${Num} value=${row.duplicates_dropped} />`], [words.filtered, html`<${Num} value=${row.filtered} />`],
      [words.looped, html`<${Num} value=${row.looped} />`], [words.oversized, html`<${Num} value=${row.oversized} />`],
    ],
    more: (row) => html`<p class="quiet">${words.countsSince}</p><section><h2>${words.losses}</h2>${Object.keys(row.losses).length === 0
      ? html`<${Empty}>${words.noLosses}<//>`
      : html`<${Facts} rows=${Object.entries(row.losses).map(([name, many]) => [visible(name), html`<${Num} value=${many} />`])} />`}</section>
      <${Compare} name=${row.name} />`,
    verbs: (row) => [
      row.state === "paused" || row.state === "stopped" || row.state === "draining" ? ["resume", words.resume] : ["pause", words.pause],
      ["drain", words.drain],
    ],
    starter: { source: { broker: "", queue: "" }, target: { broker: "" } },
  },
  endpoints: {
    one: "endpoint",
    scope: "endpoint",
    may: (name = "") => may("endpoint", "", name),
    columns: [
      { title: text.name, show: (row) => html`<${Name} of=${row.name} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: words.url, class: "mid grow", show: (row) => html`<${Name} of=${row.settings.url} />` },
      { title: words.format, class: "wide", show: (row) => row.settings.format },
      { title: words.waiting, class: "r mid", show: (row) => html`<${Num} value=${row.pending} />` },
      { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
    ],
    facts: (row) => [
      [words.url, html`<${Name} of=${row.settings.url} />`], [words.format, row.settings.format],
      [words.waiting, html`<${Num} value=${row.pending} />`],
      [words.verified, html`<${Time} at=${row.verified_at} />`],
      [words.secrets, row.secrets.join(", ") || "–"],
    ],
    more: (row) => html`<section><h2>${words.keys}</h2>
        <${Table} label=${words.keys} rows=${row.signing_keys} empty=${words.noKeys} columns=${[
          { title: "id", show: (each) => html`<${Name} of=${each.id} />` },
          { title: words.scheme, show: (each) => each.scheme },
          { title: text.created, class: "mid", show: (each) => html`<${Time} at=${each.created_at} />` },
          { title: words.until, show: (each) => (each.until ? html`<${Time} at=${each.until} />` : each.old ? words.untilFinish : words.untilReplaced) },
        ]} /></section>
      <${EndpointAttempts} name=${row.name} />
      ${isAdmin() && html`<${ReplayWindow} name=${row.name} />`}`,
    verbs: (row) => [
      row.state === "paused" ? ["resume", words.resume] : ["pause", words.pause],
      ...(row.state === "disabled" ? [["enable", words.enable]] : []),
      ...(row.state === "unverified" ? [["verify", words.verify]] : []),
    ],
    actions: (row, reload) => html`<${EndpointActions} row=${row} reload=${reload} />`,
    starter: { url: "" },
  },
  subscriptions: {
    one: "subscription",
    scope: "subscribe",
    may: () => may("subscribe"),
    columns: [
      { title: text.name, show: (row) => html`<${Name} of=${row.name} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: text.queue, class: "mid", show: (row) => place(row.broker, row.queue || row.exchange) },
      { title: words.push, class: "mid", show: (row) => (row.push ? html`<${Name} of=${row.push} />` : "–") },
      { title: words.lease, class: "wide", show: (row) => row.lease },
      { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
    ],
    facts: (row) => [
      [text.queue, html`<a href=${link(`queues/${segment(row.broker)}/${segment(row.queue || `gateway.subscription.${row.name}`)}`)}>${place(row.broker, row.queue || row.exchange)}</a>`],
      row.push ? [words.push, html`<a href=${link(`endpoints/${segment(row.push)}`)}><${Name} of=${row.push} /></a>`] : [words.delivery, words.pulled],
      [words.lease, row.lease],
      [words.leases, html`<${Num} value=${row.leases} />`],
      ...(row.backlog ? [
        [words.waiting, html`<${Num} value=${row.backlog.waiting} />`], [words.out, html`<${Num} value=${row.backlog.out} />`],
        [words.dead, html`<a href=${link("dead", { subscription: row.name })}><${Num} value=${row.backlog.dead} /></a>`],
        [words.oldest, html`<${Time} at=${row.backlog.oldest_at} />`],
      ] : []),
      ...(row.push_status ? [
        [words.pushState, html`<${State} of=${row.push_status.state} /> ${visible(row.push_status.reason)}`],
        [words.inFlight, html`<${Num} value=${row.push_status.in_flight} />`],
        [words.retrying, html`<${Num} value=${row.push_status.retrying} />`],
        [words.nextAttempt, html`<${Time} at=${row.push_status.next_attempt_at} />`],
        [words.lastError, visible(row.push_status.last_error) || "–"],
      ] : []),
    ],
    verbs: (row) => [row.state === "paused" ? ["resume", words.resume] : ["pause", words.pause]],
    starter: { broker: "", queue: "" },
  },
  taps: {
    one: "tap",
    scope: "admin",
    may: isAdmin,
    columns: [
      { title: text.name, show: (row) => html`<${Name} of=${row.name} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: words.from, class: "mid", show: (row) => place(row.settings.broker, row.queue) },
      { title: words.spooled, class: "r", show: (row) => html`<${Num} value=${row.spooled} />` },
      { title: words.rate, class: "r mid", show: (row) => html`<${Num} value=${row.rate} />` },
      { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
    ],
    facts: (row) => [
      [words.from, html`${queueAt(row.settings.broker, row.queue)} <span class="quiet">${row.version}</span>`],
      [words.spooled, html`<${Num} value=${row.spooled} />`], [words.taken, html`<${Num} value=${row.taken} />`],
      [words.rate, html`<${Num} value=${row.rate} />`], [words.source, html`<${Num} value=${row.source_messages} />`],
      [words.inFlight, html`<${Num} value=${row.in_flight} />`], [words.octets, html`<${Num} value=${row.octets} unit="bytes" />`],
      [words.deadLettered, html`<${Num} value=${row.dead_lettered} />`], [words.oversized, html`<${Num} value=${row.oversized} />`],
      [words.duplicates, html`<${Num} value=${row.duplicates_dropped} />`],
    ],
    verbs: (row) => [row.state === "paused" || row.state === "stopped" ? ["resume", words.resume] : ["pause", words.pause]],
    starter: { broker: "", queue: "" },
  },
};

export function List({ kind }) {
  const about = KINDS[kind];
  const feed = usePoll(`/v1/${kind}?limit=1000`, 5000, (path, how) => all(path, kind, how));
  const sought = route.value.query.get("q") ?? "";
  const rows = (feed.data ?? []).filter((row) => !sought || JSON.stringify([row.name, row.settings, row.state]).toLowerCase().includes(sought.toLowerCase()));
  return html`<${View} title=${text.nav[kind]} feed=${feed}
    actions=${about.may() && html`<a class="button primary" href=${link(`${kind}/new`)}>${words.create(about.one)}</a>`}>
    <div class="bar"><${Search} label=${words.find(about.one)} value=${sought} onInput=${(q) => filter({ q })} />
      <span class="quiet">${text.shown(rows.length, feed.data?.length ?? 0)}</span></div>
    ${feed.data && html`<${Table} label=${text.nav[kind]} rows=${rows} columns=${about.columns}
      empty=${sought ? text.nothingFound : words.empty[kind]} open=${(row) => link(`${kind}/${segment(row.name)}`)} />`}
    <${Same} path=${`/v1/${kind}`} cli=${`gateway ${kind} list`} />
  <//>`;
}

export function Page({ kind, raw }) {
  const about = KINDS[kind];
  const path = `/v1/${kind}/${raw}`;
  const feed = usePoll(path, 3000);
  const row = feed.data;
  const name = row?.name ?? decodeURIComponent(raw);
  const changes = row && about.may(name) && !row.read_only;
  const verb = async (each) => { await request("POST", `${path}:${each}`); feed.reload(); return words.told(words[each]); };
  return html`<${View} title=${html`<${Name} of=${name} />`} crumbs=${[[text.nav[kind], kind]]} feed=${feed}
    actions=${row && about.may(name) && html`
      ${about.actions?.(row, feed.reload)}
      ${about.verbs(row).map(([each, label]) => html`<${Action} key=${each} label=${label} act=${() => verb(each)} />`)}
      ${changes && html`<a class="button" href=${link(`${kind}/${raw}/edit`)}>${text.edit}</a>
        <button class="danger" onClick=${() => ask({
          title: words.remove(about.one), what: words.removeWhat[kind], name, button: text.remove,
          act: async () => { const goOn = goLater(); await request("DELETE", path); goOn(kind); return words.removed(about.one); },
        })}>${text.remove}</button>`}`}>
    ${row && html`
      <p class="lead"><${State} of=${row.state} /> ${row.reason && html`<span>${visible(row.reason)}</span>`}
        ${row.since && html`<span class="quiet">${text.since} <${Time} at=${row.since} /></span>`}
        ${row.read_only && html`<span class="tag">${words.readOnly}</span>`}</p>
      ${row.last_error && html`<p class="quiet">${words.lastError}: ${visible(row.last_error)}</p>`}
      <${Facts} rows=${about.facts(row)} />
      ${about.more?.(row)}
      <p><a href=${link("messages", { [about.one]: row.name })}>${words.messages}</a></p>
      <details><summary>${text.settings}</summary><${Json} of=${row.settings} label=${text.settings} /></details>
      <${Same} path=${path} cli=${`gateway ${kind} get ${shell(name)}`} toml=${toml(`${kind}.${bare(name)}`, slim(row.settings))} />`}
  <//>`;
}

const shell = (name) => (/^[\w.-]+$/.test(name) ? name : `'${name.replace(/'/g, "'\\''")}'`);

// Settings without what is as it would be anyhow.
function slim(settings) {
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== "" && value !== null && value !== false
    && !(typeof value === "object" && Object.keys(value).length === 0)));
}

export function Edit({ kind, raw }) {
  if (KINDS[kind].may()) return html`<${Form} kind=${kind} raw=${raw} />`;
  return html`<${View} title=${text.nav[kind]}><${Empty}>${text.needs(KINDS[kind].scope)}<//><//>`;
}

function Form({ kind, raw }) {
  const about = KINDS[kind];
  const isNew = raw === null;
  const path = isNew ? null : `/v1/${kind}/${raw}`;
  const [found, setFound] = useState(isNew ? { settings: about.starter } : null);
  const [name, setName] = useState(isNew ? "" : decodeURIComponent(raw));
  const [settings, setSettings] = useState(about.starter);
  const { busy, error, run } = useAct(text.save);
  const form = useSchema(`/v1/${kind}/{${about.one}}`);
  const schema = form.data;
  const brokers = usePoll("/v1/brokers?limit=1000", 60_000, having("brokers"));
  const before = usePoll(path, NEVER, async (each, how) => {
    const { data, headers } = await request("GET", each, how);
    return { settings: data.settings, etag: headers.get("etag") };
  });
  useEffect(() => {
    if (found || !before.data) return; // what was typed stays, whatever is read later
    setFound(before.data);
    setSettings(before.data.settings);
  }, [before.data]);
  const save = (event) => {
    event.preventDefault();
    const goOn = goLater();
    run(async () => {
      await request("PUT", `/v1/${kind}/${segment(name)}`, { body: settings, etag: found.etag });
      tell(words.saved(about.one));
      goOn(`${kind}/${segment(name)}`);
    });
  };
  const fields = places(schema);
  const endpoints = usePoll(kind === "subscriptions" && may("endpoint") ? "/v1/endpoints?limit=1000" : null, 60_000, having("endpoints"));
  const choices = { broker: (brokers.data?.brokers ?? []).map((each) => each.name), push: (endpoints.data?.endpoints ?? []).map((each) => each.name) };
  return html`<${View} title=${isNew ? words.create(about.one) : words.change(name)} crumbs=${[[text.nav[kind], kind]]} feed=${[form, before, brokers, endpoints]}>
    ${schema && found && html`<form class="edit" onSubmit=${save}>
      ${isNew && html`<div class="field"><label for="field-name">${text.name}<b class="must">*</b></label>
        <input id="field-name" required value=${name} autocomplete="off" spellcheck=${false}
          onInput=${(event) => setName(event.currentTarget.value)} /></div>`}
      <${Fields} schema=${schema} value=${settings} onChange=${setSettings} error=${error} choices=${choices} />
      <${Problem} error=${error} fields=${fields} />
      <div class="buttons"><a class="button" href=${link(isNew ? kind : `${kind}/${raw}`)}>${text.cancel}</a>
        <button class="primary" disabled=${busy || !name}>${busy ? text.working : text.save}</button></div>
    </form>`}
    <${Same} method="PUT" path=${`/v1/${kind}/${segment(name || "NAME")}`} body=${settings}
      cli=${`gateway ${kind} put ${shell(name || "NAME")} - <<'END'\n${JSON.stringify(settings, null, 2)}\nEND`}
      toml=${toml(`${kind}.${bare(name || "NAME")}`, settings)} open=${isNew} />
  <//>`;
}

function EndpointActions({ row, reload }) {
  const path = `/v1/endpoints/${segment(row.name)}`;
  const [result, setResult] = useState(null);
  return html`
    <${Action} label=${words.test} done=${words.tested} act=${async () => {
      setResult(null);
      const { data } = await request("POST", `${path}:test`);
      setResult(data);
      return data.delivered ? words.testOk(data.status) : words.testBad(data.reason || data.problem?.title || "");
    }} />
    <button onClick=${() => ask({
      title: words.rotate, what: words.rotateWhat, button: words.rotate,
      act: async () => {
        const { data } = await request("POST", `${path}:rotate`);
        setResult({ keys: data.signing_keys.filter((each) => each.secret) });
        reload();
        return words.rotated;
      },
    })}>${words.rotate}</button>
    ${result && html`<div class="result" role="status">
      ${result.keys ? html`<strong>${words.newKeys}</strong>${result.keys.map((each) => html`<p><code class="name">${each.secret}</code></p>`)}`
        : html`<strong>${words.testResult}</strong> <${State} of=${result.delivered ? "delivered" : "failed"} />
          <span>${result.status ?? ""} ${visible(result.reason)} · ${span(result.seconds)}</span>
          ${result.problem && html`<p>${visible(result.problem.detail)}</p>`}
          ${result.body && html`<${Body} payload=${result.body} encoding=${result.body_encoding} />`}`}
      <button class="small" onClick=${() => setResult(null)}>${text.close}</button></div>`}`;
}

function Compare({ name }) {
  const [found, setFound] = useState(null);
  const run = async (peek) => {
    const { data } = await request("POST", `/v1/bridges/${segment(name)}:compare`, { body: { peek }, reads: !peek });
    setFound(data);
    return data.equal ? words.equal : words.differ;
  };
  return html`<section><h2>${words.compare}</h2>
    <p class="quiet">${words.compareWhat}</p>
    <div class="row"><${Action} label=${words.compareLedger} act=${() => run(false)} />
      <button onClick=${() => ask({ title: words.comparePeek, what: words.comparePeekWhat, name, act: () => run(true) })}>${words.comparePeek}</button></div>
    ${found && html`<p><${State} of=${found.equal ? "done" : "failed"} /> ${found.equal ? words.equal : words.differ}</p>
      <${Json} of=${found} label=${words.compare} />`}
  </section>`;
}

