// Brokers, their queues, and one queue: what is in it, who takes from it, and what can be done.

import { bare, decoded, html, nameText, quoted, segment, span, useEffect, useRef, useState, visible } from "./base.js";
import { all, may, mayPublish, page, request, isAdmin, usePoll, having } from "./api.js";
import { filter, go, goLater, link, route } from "./route.js";
import {
  Action, Empty, Facts, Json, Name, Num, Problem, Same, Search, Select, Staleness, State, Table, Time, View, ask, tell, useAct,
} from "./parts.js";
import { BoundTo, Exchanges } from "./exchanges.js";
import { Fields, places, useSchema } from "./forms.js";
import { text } from "./text.js";

const words = text.queues;

// --------------------------------------------------------------------------------------------- brokers

export function Brokers() {
  const feed = usePoll("/v1/brokers?limit=1000", 5000, having("brokers"));
  return html`<${View} title=${text.nav.brokers} feed=${feed}>
    ${feed.data && html`<${Table} label=${text.nav.brokers} rows=${feed.data.brokers} empty=${words.noBrokers}
      open=${(row) => link(`brokers/${segment(row.name)}`)} columns=${[
        { title: text.name, show: (row) => html`<${Name} of=${row.name} />` },
        { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
        { title: words.version, show: (row) => row.version ?? "–" },
        { title: words.product, class: "mid", show: (row) => visible(`${row.product} ${row.product_version}`) },
        { title: words.address, class: "wide", show: (row) => html`<${Name} of=${`${row.host}:${row.port}${row.virtual_host}`} />` },
        { title: words.pending, class: "r mid", show: (row) => html`<${Num} value=${row.pending} />` },
        { title: words.leases, class: "r mid", show: (row) => html`<${Num} value=${row.leases} />` },
        { title: text.reason, class: "wide grow", show: (row) => visible(row.reason) },
      ]} />`}
    <${Same} path="/v1/brokers" cli="gateway brokers" />
  <//>`;
}

export function BrokerPage({ raw }) {
  const path = `/v1/brokers/${raw}`;
  const feed = usePoll(path, 3000);
  const [probed, setProbed] = useState(null);
  const row = feed.data;
  return html`<${View} title=${html`<${Name} of=${decoded(raw)} />`} crumbs=${[[text.nav.brokers, "brokers"]]} feed=${feed}
    actions=${isAdmin() && html`<${Action} label=${words.probe} done=${words.probed} act=${async () => {
      setProbed((await request("POST", `${path}:probe`)).data);
    }} />`}>
    ${row && html`<p class="lead"><${State} of=${row.state} /> ${visible(row.reason)}
        <span class="quiet">${text.since} <${Time} at=${row.since} /></span></p>
      ${row.code && html`<p><a href=${`/docs/errors#${encodeURIComponent(row.code)}`} target="_blank" rel="noreferrer">${visible(row.code)}</a></p>`}
      ${row.alert && html`<p class="problem">${words.alert}: ${visible(row.alert)}</p>`}
      <${Facts} rows=${[
        [words.address, html`<${Name} of=${`${row.host}:${row.port}`} />`], [words.virtualHost, html`<${Name} of=${row.virtual_host} />`],
        [words.version, row.version ?? "–"], [words.product, visible(`${row.product} ${row.product_version}`)],
        [words.publishing, row.publishing ? text.yes : text.no], [words.consuming, row.consuming ? text.yes : text.no],
        [words.pending, html`<${Num} value=${row.pending} />`], [words.leases, html`<${Num} value=${row.leases} />`],
      ]} />
      <p class="row">${may("broker", row.name) && html`<a class="button" href=${link("queues", { broker: row.name })}>${text.nav.queues}</a>`}
        ${may("history") && html`<a class="button" href=${link("messages", { broker: row.name })}>${text.nav.messages}</a>`}</p>
      ${probed && html`<section><h2>${words.probe}</h2><${Table} label=${words.probe} rows=${probed.attempts} keyOf=${(each) => each.version} columns=${[
        { title: words.version, show: (each) => each.version },
        { title: words.speaks, show: (each) => html`<${State} of=${each.speaks ? "up" : "down"} />` },
        { title: words.product, class: "mid", show: (each) => visible(`${each.product} ${each.product_version}`) },
        { title: text.reason, class: "grow mid", show: (each) => visible(each.reason) },
      ]} /></section>`}
      ${may("broker", row.name) && html`<${Exchanges} rawBroker=${raw} />`}
      <details><summary>${words.capabilities}</summary><${Json} of=${row.capabilities} label=${words.capabilities} /></details>
      <${Same} path=${path} cli="gateway brokers" />`}
  <//>`;
}

// ---------------------------------------------------------------------------------------------- queues

const PAGE = 500;

// A value that has not changed for a moment: what is typed is not asked for letter by letter.
function useCalm(value) {
  const [calm, setCalm] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setCalm(value), 150);
    return () => clearTimeout(timer);
  }, [value]);
  return calm;
}

export function Queues() {
  const query = route.value.query;
  const typed = query.get("q") ?? "";
  const search = useCalm(unescaped(typed));
  const broker = query.get("broker") ?? "";
  const sort = query.get("sort") in words.sorts ? query.get("sort") : "name";
  const given = Object.entries({ search, broker, sort }).filter(([, value]) => value !== "");
  const path = `/v1/queues?${new URLSearchParams([...given, ["limit", PAGE]])}`;
  const [pages, setPages] = useState({ path, count: 1 });
  const count = pages.path === path ? pages.count : 1;
  const feed = usePoll(`${path}#${count}`, 5000, async (_, how) => {
    const rows = new Map();
    let answer = { next: path };
    for (let number = 0; number < count && answer.next; number += 1) {
      answer = await page(answer.next, how);
      for (const row of answer.data.queues) rows.set(keyOf(row), row);
    }
    return { ...answer.data, rows: [...rows.values()], more: Boolean(answer.next) };
  });
  const brokers = usePoll("/v1/brokers?limit=1000", 30_000, having("brokers"));
  const seen = (brokers.data?.brokers ?? []).map((each) => each.name);
  const names = seen.filter((each) => may("broker", each));
  const found = feed.data;
  return html`<${View} title=${text.nav.queues} feed=${[feed, brokers]}
    actions=${names.length > 0 && html`<a class="button primary" href=${link("queues/new", { broker: names.includes(broker) ? broker : "" })}>${words.declare}</a>`}>
    <div class="bar"><${Search} label=${words.find} value=${typed} onInput=${(q) => filter({ q })} />
      <${Select} label=${text.broker} value=${broker} onChange=${(each) => filter({ broker: each })}
        options=${[["", text.all], ...seen.map((each) => [each, each])]} />
      <${Select} label=${words.sort} value=${sort} onChange=${(each) => filter({ sort: each })} options=${Object.entries(words.sorts)} />
      <span class="quiet">${found && text.shown(found.rows.length, found.total)}</span></div>
    ${found && html`${found.brokers.length > 0 && html`<${Sources} brokers=${found.brokers} />`}
      <${Table} label=${text.nav.queues} rows=${found.rows} keyOf=${keyOf} empty=${search ? text.nothingFound : words.none}
        open=${(row) => link(`queues/${segment(row.broker)}/${segment(row.name)}`)} columns=${[
          { title: text.queue, class: "grow", show: (row) => html`<${Name} of=${row.name} />` },
          { title: text.broker, show: (row) => html`<${Name} of=${row.broker} />` },
          { title: words.depth, class: "r", show: (row) => html`<${Num} value=${row.depth ?? row.ready} />` },
          { title: words.unacknowledged, class: "r mid", show: (row) => html`<${Num} value=${row.unacknowledged} />` },
          { title: words.consumers, class: "r mid", show: (row) => html`<${Num} value=${row.consumers} />` },
          { title: words.incoming, class: "r mid", show: (row) => html`<${Num} value=${row.publish_rate} />` },
          { title: words.outgoing, class: "r mid", show: (row) => html`<${Num} value=${row.deliver_rate} />` },
          { title: words.features, class: "wide", show: (row) => features(row).map((each) => html`<span class="tag">${each}</span> `) },
        ]} />
      ${found.more && html`<p class="row"><button onClick=${() => setPages({ path, count: count + 1 })}>${words.more}</button></p>`}`}
    ${names.length > 0 && html`<${Other} brokers=${names} />`}
    <${Same} path=${path} cli=${["gateway queues find", search && quoted(search), broker && `--broker ${quoted(broker)}`, `--sort=${sort}`].filter(Boolean).join(" ")} />
  <//>`;
}

// What is typed as the console shows it, as it is: see `visible`.
const unescaped = (typed) => typed.replace(/\\u([0-9a-f]{4})/gi, (_, code) => String.fromCharCode(parseInt(code, 16)));

const keyOf = (row) => `${row.broker}/${nameText(row.name)}`;

// Where the list comes from, broker by broker, and what it lacks.
function Sources({ brokers }) {
  const partial = brokers.filter((each) => each.partial);
  return html`<details class="other" open=${partial.length > 0 && partial.length < 4}>
    <summary>${words.sources(brokers.length, partial.length)}</summary>
    <ul class="plain">${brokers.map((each) => html`<li key=${each.name}><${Name} of=${each.name} />
      <span class=${`state ${each.partial ? "warn" : "good"}`}>${each.partial ? words.notAll : words.allOfIt}</span>
      <span class="quiet">${words.source[each.source] ?? visible(each.source)}, ${words.asOf} <${Time} at=${each.as_of} /></span>${" "}
      ${each.reason && html`<span class="reason">${visible(each.reason)}</span>`}</li>`)}</ul></details>`;
}

// A queue that the list does not have: by its name.
function Other({ brokers }) {
  const [name, setName] = useState("");
  const [broker, setBroker] = useState("");
  const run = (event) => { event.preventDefault(); if (name) go(`queues/${segment(broker || brokers[0])}/${segment(name)}`); };
  return html`<details class="other"><summary>${words.other}</summary><form class="bar" onSubmit=${run}>
    <${Select} label=${text.broker} value=${broker || brokers[0]} onChange=${setBroker} options=${brokers.map((each) => [each, each])} />
    <label class="select"><span>${text.queue}</span><input value=${name} onInput=${(event) => setName(event.currentTarget.value)} /></label>
    <button>${words.openIt}</button></form></details>`;
}

function features(row) {
  return [
    row.type, row.state, row.durable && words.durable, row.auto_delete && words.autoDelete, row.exclusive && words.exclusive,
    row.dead_letters && words.deadLetters(row.dead_letter_exchange === null ? "" : nameText(row.dead_letter_exchange)),
  ].filter(Boolean).map((each) => visible(each).slice(0, 60));
}

export function QueuePage({ rawBroker, raw }) {
  const broker = decoded(rawBroker);
  const path = `/v1/brokers/${rawBroker}/queues/${raw}`;
  const feed = usePoll(path, 3000);
  const consumers = usePoll(may("consume") || may("subscribe") ? "/v1/subscriptions?limit=1000" : null, 15_000,
    (page, how) => all(page, "subscriptions", { signal: how.signal }));
  const bridges = usePoll(isAdmin() ? "/v1/bridges?limit=1000" : null, 15_000, (page, how) => all(page, "bridges", { signal: how.signal }));
  const history = useRef([]);
  const row = feed.data;
  useEffect(() => {
    if (row) history.current = [...history.current.slice(-60), { at: feed.at, messages: row.messages }];
  }, [feed.at]);
  const name = row?.name ?? decoded(raw);
  const shown = nameText(name);
  const trend = rate(history.current);
  const own = (consumers.data ?? []).filter((each) => each.broker === broker && (each.queue || `gateway.subscription.${each.name}`) === name);
  const takes = (bridges.data ?? []).filter((each) => each.settings.source.broker === broker && (each.settings.source.queue || `gateway.bridge.${each.name}`) === name);
  const known = [consumers, bridges].every((each) => !each.asked || each.data);
  const steers = may("broker", broker);
  return html`<${View} title=${html`<${Name} of=${name} />`} crumbs=${[[text.nav.queues, "queues"], [visible(broker), `brokers/${rawBroker}`]]} feed=${feed}
    actions=${row && html`
      ${mayPublish(broker, "amq.default") && typeof name === "string" && html`<a class="button" href=${link("publish", { broker, exchange: "amq.default", routing_key: name })}>${text.nav.publish}</a>`}
      ${steers && html`<button class="danger" onClick=${() => ask({
        title: words.purge, what: words.purgeWhat, name, act: async () => {
          const { data } = await request("POST", `${path}:purge`);
          feed.reload();
          return words.purged(data.messages);
        },
      })}>${words.purge}</button>
      <button class="danger" onClick=${() => ask({
        title: words.delete, what: words.deleteWhat(row.messages), name, act: async () => {
          const goOn = goLater();
          await request("DELETE", path);
          goOn("queues");
          return words.deleted;
        },
      })}>${words.delete}</button>`}`}>
    ${row && html`
      <section class="tiles">
        <div class="tile"><span class="quiet">${words.ready}</span><b class="num">${row.messages.toLocaleString("en")}</b><span class="quiet">${trend}</span></div>
        <div class="tile"><span class="quiet">${words.consumers}</span><b class="num">${row.consumers}</b>
          ${row.consumers === 0 && row.messages > 0 ? html`<span class="state bad">${words.nobody}</span>` : html`<span class="quiet">${words.atBroker}</span>`}</div>
        <div class="tile"><span class="quiet">${words.gatewayConsumers}</span><b class="num">${known ? own.length + takes.length : "–"}</b><span class="quiet">${words.ofGateway}</span></div>
      </section>
      <${Holders} path=${path} />
      <section><h2>${words.who}</h2>
        <${Staleness} of=${[consumers, bridges]} />
        ${own.length + takes.length === 0 ? known && html`<${Empty}>${words.nobodyHere}<//>` : html`<ul class="plain">
          ${own.map((each) => html`<li><a href=${link(`subscriptions/${segment(each.name)}`)}>${text.subscription} <${Name} of=${each.name} /></a>${" "}
            <${State} of=${each.state} /> ${each.leases > 0 && words.holds(each.leases)} ${visible(each.reason)}</li>`)}
          ${takes.map((each) => html`<li><a href=${link(`bridges/${segment(each.name)}`)}>${words.bridge} <${Name} of=${each.name} /></a>${" "}
            <${State} of=${each.state} /> ${each.in_flight > 0 && words.holds(each.in_flight)} ${visible(each.reason)}</li>`)}</ul>`}
      </section>
      ${steers && html`<${BoundTo} rawBroker=${rawBroker} name=${name} />`}
      <section><h2>${words.look}</h2><p class="row">${may("consume", broker, name) && html`<a class="button primary" href=${link(`queues/${rawBroker}/${raw}/messages`)}>${words.lookInto}</a>`}
        ${may("history") && typeof name === "string" && html`<a class="button" href=${link("messages", { broker, exchange: "amq.default", routing_key: name })}>${words.lookLedger}</a>
          <a class="button" href=${link("dead", { q: name })}>${words.lookDead}</a>`}</p></section>
      <section><h2>${text.settings}</h2><${Facts} rows=${[
        [text.exchanges.durable, row.durable === null ? text.notKnown : row.durable ? text.yes : text.no],
        [text.exchanges.autoDelete, row.auto_delete === null ? text.notKnown : row.auto_delete ? text.yes : text.no],
      ]} />${row.arguments && Object.keys(row.arguments).length > 0 && html`<${Json} of=${row.arguments} label=${words.arguments} />`}</section>
      <${Same} path=${path} cli=${`gateway queues show ${broker} ${bare(shown)}`} />`}
  <//>`;
}

// Who holds messages that are not acknowledged, and since when.
function Holders({ path }) {
  const feed = usePoll(`${path}/holders`, 5000);
  const found = feed.data;
  if (!found && !feed.error) return null;
  return html`<section><h2>${words.held}</h2><${Staleness} of=${feed} />${found && html`
    ${found.holders.length === 0 && !found.others ? html`<${Empty}>${found.unacknowledged === null ? words.noneHeldHere : words.noneHeld}<//>`
      : found.holders.length > 0 && html`<${Table} label=${words.held} rows=${found.holders} keyOf=${(row) => `${row.kind} ${row.name} ${row.client} ${row.address}`}
        open=${(row) => holder(row)} columns=${[
          { title: words.holder, show: (row) => words.holders[row.kind] },
          { title: text.name, class: "grow", show: (row) => html`<${Name} of=${row.name} />` },
          { title: text.client, class: "mid", show: (row) => html`<${Name} of=${row.client} />` },
          { title: words.address, class: "wide", show: (row) => html`<${Name} of=${row.address} />` },
          { title: words.depth, class: "r", show: (row) => html`<${Num} value=${row.count} />` },
          { title: text.since, class: "mid", show: (row) => html`<${Time} at=${row.since} />` },
        ]} />`}
    ${found.others > 0 && html`<p class="note">${words.others(found.others)}</p>`}
    ${!found.complete && html`<p class="note">${words.notAllAnswered}</p>`}
    ${found.reason && html`<p class="note">${visible(found.reason)}</p>`}`}</section>`;
}

const PLACES = { lease: "subscriptions", ledger_lease: "subscriptions", push: "subscriptions", subscription: "subscriptions", bridge: "bridges", tap: "taps", front: "fronts" };

function holder(row) {
  return PLACES[row.kind] ? link(`${PLACES[row.kind]}/${segment(row.name)}`) : null;
}

function rate(history) {
  if (history.length < 2) return words.measuring;
  const [first, last] = [history[0], history.at(-1)];
  const change = (last.messages - first.messages) / ((last.at - first.at) / 1000);
  return words.change(change, span((last.at - first.at) / 1000));
}

// A form for a queue or an exchange.
export function Declare({ kind }) {
  const about = text[kind];
  const one = kind.slice(0, -1);
  const [broker, setBroker] = useState(route.value.query.get("broker") ?? "");
  const [name, setName] = useState("");
  const [settings, setSettings] = useState({ durable: true });
  const { busy, error, run } = useAct(about.declare);
  const fields = useSchema(`/v1/brokers/{broker}/${kind}/{${one}}`);
  const schema = fields.data;
  const brokers = usePoll("/v1/brokers?limit=1000", 60_000, having("brokers"));
  const names = (brokers.data?.brokers ?? []).map((each) => each.name).filter((each) => may("broker", each));
  const at = broker || names[0] || "BROKER";
  const save = (event) => {
    event.preventDefault();
    const goOn = goLater();
    run(async () => {
      await request("PUT", `/v1/brokers/${segment(at)}/${kind}/${segment(name)}`, { body: settings });
      tell(about.declared);
      goOn(`${kind}/${segment(at)}/${segment(name)}`);
    });
  };
  if (brokers.data && names.length === 0) return html`<${View} title=${about.declare}><${Empty}>${text.needs("broker:BROKER")}<//><//>`;
  return html`<${View} title=${about.declare} feed=${[fields, brokers]} crumbs=${[kind === "queues" ? [text.nav.queues, "queues"] : [text.nav.brokers, "brokers"]]}>
    <form class="edit" onSubmit=${save}>
      <div class="field"><label for="declare-broker">${text.broker}</label><select id="declare-broker" onChange=${(event) => setBroker(event.currentTarget.value)}>
        ${names.map((each) => html`<option value=${each} selected=${each === at}>${visible(each)}</option>`)}</select></div>
      <div class="field"><label for="declare-name">${text.name}<b class="must">*</b></label><input id="declare-name" required value=${name} autocomplete="off"
        onInput=${(event) => setName(event.currentTarget.value)} /></div>
      ${schema && html`<${Fields} schema=${schema} value=${settings} onChange=${setSettings} error=${error} />`}
      <${Problem} error=${error} fields=${places(schema)} />
      <div class="buttons"><a class="button" href=${link(kind === "queues" ? "queues" : `brokers/${segment(at)}`)}>${text.cancel}</a><button class="primary" disabled=${busy || !name}>${busy ? text.working : about.declare}</button></div>
    </form>
    <${Same} method="PUT" path=${`/v1/brokers/${segment(at)}/${kind}/${segment(name || "NAME")}`} body=${settings}
      cli=${`gateway ${kind} declare ${quoted(at)} ${quoted(name || "NAME")}`} open />
  <//>`;
}

