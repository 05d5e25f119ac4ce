// Finding a message, and its story.

import { Fragment, html, moment, momentShown, segment, useRef, useState, visible } from "./base.js";
import { isAdmin, may, mayPublish, page, request, usePoll } from "./api.js";
import { filter, go, goLater, link, route } from "./route.js";
import { Action, Facts, Filter, Json, Name, Num, Problem, Same, Select, State, Table, Time, View, ask, useAct } from "./parts.js";
import { BodyPart, PART_MAX } from "./bodies.js";
import { copied } from "./publish.js";
import { text } from "./text.js";

const words = text.messages;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const FILTERS = [
  "broker", "exchange", "routing_key", "state", "since", "until", "message_id", "correlation_id", "type", "content_type",
  "header", "client", "origin", "subscription", "endpoint", "bridge",
];
const FIRST = ["routing_key", "message_id", "header", "state", "since"];
const TIMES = new Set(["since", "until"]);
const STATES = [
  "accepted", "confirmed", "unroutable", "refused", "not_sent", "unknown", "received", "delivered", "acknowledged", "released",
  "rejected", "dead_lettered", "prepared", "forwarded", "discarded", "stored", "spooled", "retrying", "dead", "replayed",
  "scheduled", "cancelled",
];

export function Messages() {
  const query = route.value.query;
  const given = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
  const path = `/v1/messages?${new URLSearchParams({ limit: "200", ...given })}`;
  const feed = usePoll(path, 5000, async (each, how) => {
    const first = await page(each, how);
    return { rows: first.data.messages, next: first.next };
  });
  const [more, setMore] = useState({ path: "", rows: [], next: null });
  const current = useRef(path);
  current.current = path;
  const own = more.path === path;
  const rows = [...(feed.data?.rows ?? []), ...(own ? more.rows : [])];
  const next = own ? more.next : feed.data?.next;
  const further = async () => {
    const { data, next: after } = await page(next);
    if (current.current === path) setMore({ path, rows: [...(own ? more.rows : []), ...data.messages], next: after });
    return words.furtherFound(data.messages.length);
  };
  const { error, run } = useAct(words.open);
  const open = (event) => {
    event.preventDefault();
    const id = new FormData(event.currentTarget).get("id").trim();
    if (!ID.test(id)) { filter({ message_id: id }); return; }
    const goOn = goLater();
    run(async () => {
      try { await request("GET", `/v1/messages/${id}`); } catch (failed) {
        if (failed.status !== 404) throw failed;
        return goOn("search", { q: id }); // publishers use UUIDs, too
      }
      return goOn(`messages/${id}`);
    });
  };
  const others = FILTERS.filter((name) => !FIRST.includes(name));
  const input = (name) => name === "state" ? html`<${Select} label=${words.filters.state} value=${given.state ?? ""} onChange=${(state) => filter({ state })}
      options=${[["", text.all], ...STATES.map((each) => [each, each])]} />`
    : html`<${Filter} label=${words.filters[name]} value=${TIMES.has(name) ? momentShown(given[name] ?? "") : given[name] ?? ""} placeholder=${words.hints[name] ?? ""}
      onChange=${(value) => filter({ [name]: TIMES.has(name) ? moment(value) : value })} />`;
  return html`<${View} title=${text.nav.messages} feed=${feed}>
    <form class="bar" onSubmit=${open}><input class="search" type="search" name="id" data-search placeholder=${words.findHint}
      aria-label=${words.find} autocomplete="off" spellcheck=${false} /><button>${words.open}</button></form>
    <${Problem} error=${error} />
    <div class="bar filters">${FIRST.map(input)}</div>
    <details class="more" open=${others.some((name) => given[name])}><summary>${text.moreFilters(others.length)}</summary><div class="bar filters">${others.map(input)}</div></details>
    ${Object.keys(given).length > 0 && html`<p><button class="small" onClick=${() => go("messages")}>${words.clear}</button></p>`}
    ${feed.data && html`<${Table} label=${text.nav.messages} rows=${rows} open=${(row) => link(`messages/${row.id}`)}
      empty=${next ? words.noneHere : Object.keys(given).length ? words.none : words.noneYet} columns=${[
        { title: text.time, show: (row) => html`<${Time} at=${row.at} />` },
        { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
        { title: words.filters.routing_key, class: "grow", show: (row) => html`<${Name} of=${row.routing_key} />` },
        { title: text.broker, class: "mid", show: (row) => html`<${Name} of=${row.broker} />` },
        { title: words.filters.exchange, class: "wide", show: (row) => html`<${Name} of=${row.exchange === "" ? "amq.default" : row.exchange} />` },
        { title: words.filters.message_id, class: "wide", show: (row) => html`<${Name} of=${row.properties.message_id ?? ""} />` },
        { title: words.size, class: "r mid", show: (row) => html`<${Num} value=${row.size} unit="bytes" />` },
        { title: words.filters.client, class: "wide", show: (row) => html`<${Name} of=${row.client} />` },
      ]} />`}
    ${next && html`<p><${Action} label=${words.further} act=${further} /></p>`}
    <${Same} path=${path} cli=${`gateway messages${Object.entries(given).map(([name, value]) => ` --${name.replace(/_/g, "-")} '${value}'`).join("")}`} />
  <//>`;
}

export function MessagePage({ raw }) {
  const path = `/v1/messages/${raw}`;
  const feed = usePoll(path, 3000);
  const row = feed.data;
  return html`<${View} title=${html`<code class="id">${visible(raw)}</code>`} crumbs=${[[text.nav.messages, "messages"]]} feed=${feed}
    actions=${row && mayPublish(row.broker, "") && html`<${Action} label=${words.copyAs} done="" act=${() => copied(row)} />`}>
    ${row && html`
      <section class="now"><p class="lead"><${State} of=${row.state} /> ${visible(row.now)}</p>
        ${row.waits.length > 0 && html`<div class="why"><h2>${words.why}</h2><ul class="plain">${row.waits.map((each) => html`<li>
          <span>${visible(each.reason)}</span>${each.subscription && html`<a href=${link(`subscriptions/${segment(each.subscription)}`)}>${words.toSubscription}</a>`}
          <${Help} wait=${each} reload=${feed.reload} /></li>`)}</ul></div>`}
        ${row.advice.length > 0 && html`<h2>${words.advice}</h2><ul class="plain">${row.advice.map((each) => html`<li>${visible(each.what)}
          ${each.command && html`<pre tabindex="0" aria-label="CLI">${visible(each.command)}</pre>`}</li>`)}</ul>`}
        ${row.owed.map((each) => html`<${Owed} key=${each.id} of=${each} reload=${feed.reload} />`)}
      </section>
      ${row.dead_letter && html`<section><h2>${words.deadLetter}</h2><${Json} of=${row.dead_letter} label=${words.deadLetter} /></section>`}
      <section><h2>${words.story}</h2><ol class="story">${row.events.map((each, index) => html`<li key=${`${each.shard}-${each.sequence}`}>
        <span class="when"><${Time} at=${each.at} plain exact /></span><${State} of=${each.kind} />
        <span class="what">${visible(row.story[index] ?? "")} <span class="quiet">${visible(each.broker)} ${each.version}</span></span>
        ${each.detail.endpoint && each.detail.attempt && may("endpoint", "", each.detail.endpoint) && html`<a href=${link(`endpoints/${segment(each.detail.endpoint)}`, { message: raw })}>${words.attemptsThere}</a>`}
        ${Object.keys(each.detail).length > 0 && html`<details><summary>${text.details}</summary><${Json} of=${each.detail} label=${text.details} /></details>`}
      </li>`)}</ol></section>
      ${row.related.length > 0 && html`<section><h2>${words.related}</h2><ul class="plain">${row.related.map((id) => html`<li><a href=${link(`messages/${id}`)}><code>${visible(id)}</code></a></li>`)}</ul></section>`}
      <section><h2>${words.properties}</h2><${Facts} rows=${[
        [text.broker, html`<a href=${link(`brokers/${segment(row.broker)}`)}><${Name} of=${row.broker} /></a> <span class="quiet">${row.version}</span>`],
        [words.filters.exchange, html`<a href=${link(`exchanges/${segment(row.broker)}/${segment(row.exchange || "amq.default")}`)}><${Name} of=${row.exchange || "amq.default"} /></a>`],
        [words.filters.routing_key, html`<${Name} of=${row.routing_key} />`],
        [words.size, html`<${Num} value=${row.size} unit="bytes" />`],
        [words.filters.origin, row.origin], [words.filters.client, html`<${Name} of=${row.client} />`],
        [words.bodyKept, row.body_kept ? text.yes : text.no],
      ]} /><${Json} of=${row.properties} label=${words.properties} /></section>
      <${Same} path=${path} cli=${`gateway why ${raw}`} />`}
  <//>`;
}

// The button that helps: what ends the reason for which a message waits.
const HELP = {
  endpoint_paused: ["endpoints", "resume"], endpoint_disabled: ["endpoints", "enable"], endpoint_unverified: ["endpoints", "verify"],
  breaker_open: ["endpoints", "resume"], subscription_paused: ["subscriptions", "resume"],
};

function Help({ wait, reload }) {
  const help = HELP[wait.code];
  const feed = usePoll(help && wait.subscription && (may("consume") || may("subscribe")) ? `/v1/subscriptions/${segment(wait.subscription)}` : null, 60_000);
  if (!help || !feed.data) return null;
  const [kind, verb] = help;
  const name = kind === "endpoints" ? feed.data.push : feed.data.name;
  if (!name || !(kind === "endpoints" ? may("endpoint", "", name) : may("subscribe"))) return null;
  return html`<${Action} tone="small" label=${words.help(text.resources[verb], name)} act=${async () => {
    await request("POST", `/v1/${kind}/${segment(name)}:${verb}`);
    reload();
  }} />`;
}

function Owed({ of, reload }) {
  const [found, setFound] = useState(null);
  const path = `/v1/deliveries/${of.id}`;
  const { error, run } = useAct(words.showBody);
  const show = () => run(async () => setFound((await request("GET", `${path}?body_max=${PART_MAX}`)).data));
  return html`<div class="owed"><p><${State} of=${of.state} /> ${words.owedTo} <a href=${link(`subscriptions/${segment(of.subscription)}`)}><${Name} of=${of.subscription} /></a>, ${words.attempt(of.attempt)}${of.state === "waiting" && html`, ${words.nextTry} <${Time} at=${of.due_at} />`}
      ${of.reason.reason && html`<br /><span class="quiet">${visible(of.reason.reason)}</span>`}</p>
    ${isAdmin() && html`<p class="row">
      <${Action} label=${words.retry} done=${words.retried} act=${async () => { await request("POST", `${path}:retry`); reload(); }} />
      <button onClick=${show}>${words.showBody}</button>
      <button class="danger" onClick=${() => ask({ title: words.purge, what: words.purgeWhat, name: of.id, act: async () => {
        await request("POST", `${path}:purge`);
        reload();
        return words.purged;
      } })}>${words.purge}</button></p>`}
    <${Problem} error=${error} again=${show} />
    ${found?.message && html`<${Message} of=${found.message} shown=${found.payload_bytes} size=${found.octets} path=${`${path}/body`} name=${`${of.id}.bin`} />`}</div>`;
}

// A message of which `shown` of `size` bytes of the body are here; `path` and `name` of the whole body, where there is one.
export function Message({ of, shown, size, path, name }) {
  const { payload, payload_encoding: encoding, properties, headers } = of;
  return html`<${Fragment}>
    <${BodyPart} ...${{ payload, encoding, shown, size, path, name }} />
    ${headers && Object.keys(headers).length > 0 && html`<h3>${words.headers}</h3><${Json} of=${headers} label=${words.headers} />`}
    ${properties && Object.keys(properties).length > 0 && html`<h3>${words.properties}</h3><${Json} of=${properties} label=${words.properties} />`}
  <//>`;
}

