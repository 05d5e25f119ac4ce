// Exchanges of a broker: what they are, where their messages go, and what can be done.

import { decoded, html, nameText, quoted, segment, useState, visible } from "./base.js";
import { all, may, mayPublish, request, usePoll } from "./api.js";
import { go, goLater, link } from "./route.js";
import { Facts, Json, Name, Problem, Same, Select, Staleness, Table, View, ask, problemAt, tell, useAct } from "./parts.js";
import { text } from "./text.js";

const words = text.exchanges;
const DEFAULT = "amq.default";

const place = (rawBroker, name) => link(`exchanges/${rawBroker}/${name === "" ? DEFAULT : segment(name)}`);

// Those of a broker that were declared through the gateway, and a way to any other one.
export function Exchanges({ rawBroker }) {
  const path = `/v1/brokers/${rawBroker}/exchanges`;
  const feed = usePoll(`${path}?limit=1000`, 10_000, (each, how) => all(each, "exchanges", { ...how, most: 10_000 }));
  const [name, setName] = useState("");
  const run = (event) => { event.preventDefault(); if (name) go(`exchanges/${rawBroker}/${segment(name)}`); };
  return html`<section><h2>${words.title}</h2>
    <${Staleness} of=${feed} />
    ${feed.data && html`<${Table} label=${words.title} rows=${feed.data} keyOf=${(row) => nameText(row.name)} empty=${words.none}
      open=${(row) => place(rawBroker, row.name)} columns=${[
        { title: text.name, class: "grow", show: (row) => html`<${Name} of=${row.name} />` },
        { title: words.type, show: (row) => visible(row.settings.type ?? "") },
        { title: words.durable, class: "mid", show: (row) => known(row.settings.durable) },
        { title: words.internal, class: "wide", show: (row) => known(row.settings.internal) },
      ]} />`}
    <div class="row"><a class="button" href=${link("exchanges/new", { broker: decoded(rawBroker) })}>${words.declare}</a>
      <details class="other"><summary>${text.queues.other}</summary><form class="bar" onSubmit=${run}>
        <label class="select"><span>${words.one}</span><input value=${name} placeholder="amq.topic" autocomplete="off" spellcheck=${false}
          onInput=${(event) => setName(event.currentTarget.value)} /></label><button>${text.queues.openIt}</button></form></details></div></section>`;
}

const known = (value) => (value === null || value === undefined ? text.notKnown : value ? text.yes : text.no);

export function ExchangePage({ rawBroker, raw }) {
  const broker = decoded(rawBroker);
  const path = `/v1/brokers/${rawBroker}/exchanges/${raw}`;
  const feed = usePoll(path, 5000);
  const row = feed.data;
  const name = row?.name ?? decoded(raw);
  const isDefault = name === "" || name === DEFAULT;
  const shown = isDefault ? DEFAULT : nameText(name);
  const steers = may("broker", broker);
  const plain = typeof name === "string";
  return html`<${View} title=${html`<${Name} of=${isDefault ? DEFAULT : name} />`} crumbs=${[[text.nav.brokers, "brokers"], [visible(broker), `brokers/${rawBroker}`]]} feed=${feed}
    actions=${row && html`
      ${mayPublish(broker, shown) && plain && !row.internal && html`<a class="button" href=${link("publish", { broker, exchange: shown })}>${text.nav.publish}</a>`}
      ${steers && !isDefault && html`<button class="danger" onClick=${() => ask({
        title: words.delete, what: words.deleteWhat, name, act: async () => {
          const goOn = goLater();
          await request("DELETE", path);
          goOn(`brokers/${rawBroker}`);
          return words.deleted;
        },
      })}>${words.delete}</button>`}`}>
    ${row && html`
      <${Facts} rows=${[
        [words.type, visible(row.type ?? text.notKnown)], [words.durable, known(row.durable)],
        [words.autoDelete, known(row.auto_delete)], [words.internal, known(row.internal)],
      ]} />
      ${row.arguments && Object.keys(row.arguments).length > 0 && html`<section><h2>${text.queues.arguments}</h2><${Json} of=${row.arguments} label=${text.queues.arguments} /></section>`}
      ${isDefault ? html`<p class="note">${words.defaultWhat}</p>` : steers && html`<${Bindings} rawBroker=${rawBroker} name=${name} />`}
      ${may("history") && plain && html`<p><a href=${link("messages", { broker, exchange: shown })}>${words.messages}</a></p>`}
      <${Same} path=${path} cli=${`gateway exchanges show ${quoted(broker)} ${quoted(shown)}`} />`}
  <//>`;
}

// Where messages go from here, and where they come from: the bindings that were made through the gateway.
function Bindings({ rawBroker, name }) {
  const path = `/v1/brokers/${rawBroker}/bindings`;
  const feed = usePoll(`${path}?limit=1000`, 10_000, (each, how) => all(each, "bindings", { ...how, most: 10_000 }));
  const is = (other) => other !== null && nameText(other) === nameText(name);
  const [out, into] = [(feed.data ?? []).filter((each) => is(each.exchange)), (feed.data ?? []).filter((each) => is(each.destination))];
  const key = { title: words.key, class: "grow", show: (each) => html`<${Name} of=${each.binding_key} />` };
  const remove = (each) => ask({
    title: words.unbind, what: words.unbindWhat(nameText(each.queue ?? each.destination)), button: words.unbind, act: async () => {
      const to = each.queue === null ? `destination=${segment(each.destination)}` : `queue=${segment(each.queue)}`;
      const query = `exchange=${segment(each.exchange)}&${to}&binding_key=${segment(each.binding_key)}&arguments=${encodeURIComponent(JSON.stringify(each.arguments))}`;
      await request("DELETE", `${path}?${query}`);
      feed.reload();
      return words.unbound;
    },
  });
  return html`<section><h2>${words.out}</h2>
    <${Staleness} of=${feed} />
    ${feed.data && html`<${Table} label=${words.out} rows=${out} empty=${words.noneOut} keyOf=${(each) => JSON.stringify(each)}
      open=${(each) => (each.queue === null ? place(rawBroker, each.destination) : link(`queues/${rawBroker}/${segment(each.queue)}`))} columns=${[
        { title: text.name, show: (each) => html`<${Name} of=${each.queue ?? each.destination} />` },
        { title: words.kind, class: "mid", show: (each) => (each.queue === null ? words.one : text.queue) },
        key,
        { title: text.queues.arguments, class: "wide", show: (each) => (Object.keys(each.arguments).length ? visible(JSON.stringify(each.arguments)) : "") },
        { title: words.steer, show: (each) => html`<button class="small" onClick=${() => remove(each)}>${words.unbind}</button>` },
      ]} />`}
    <${Bind} path=${path} name=${name} reload=${feed.reload} />
    <p class="note">${words.partial}</p></section>
    ${into.length > 0 && html`<section><h2>${words.into}</h2><${Table} label=${words.into} rows=${into} keyOf=${(each) => JSON.stringify(each)}
      open=${(each) => place(rawBroker, each.exchange)} columns=${[{ title: words.one, show: (each) => html`<${Name} of=${each.exchange === "" ? DEFAULT : each.exchange} />` }, key]} /></section>`}`;
}

// The exchanges that a queue gets its messages from, as far as the gateway bound it.
export function BoundTo({ rawBroker, name }) {
  const feed = usePoll(`/v1/brokers/${rawBroker}/bindings?limit=1000`, 30_000, (each, how) => all(each, "bindings", { ...how, most: 10_000 }));
  const rows = (feed.data ?? []).filter((each) => each.queue !== null && nameText(each.queue) === nameText(name));
  if (!rows.length && !feed.error) return null;
  return html`<section><h2>${words.into}</h2><${Staleness} of=${feed} />${rows.length > 0 && html`<${Table} label=${words.into} rows=${rows} keyOf=${(each) => JSON.stringify(each)}
    open=${(each) => place(rawBroker, each.exchange)} columns=${[
      { title: words.one, show: (each) => html`<${Name} of=${each.exchange === "" ? DEFAULT : each.exchange} />` },
      { title: words.key, class: "grow", show: (each) => html`<${Name} of=${each.binding_key} />` },
    ]} />`}</section>`;
}

function Bind({ path, name, reload }) {
  const [kind, setKind] = useState("queue");
  const [to, setTo] = useState("");
  const [key, setKey] = useState("");
  const { busy, error, run } = useAct(words.bindIt);
  const bind = () => run(async () => {
    await request("POST", path, { body: { exchange: name, [kind]: to, binding_key: key } });
    setTo("");
    reload();
    tell(words.bound);
  });
  return html`<details class="other"><summary>${words.bind}</summary><div class="bar">
    <${Select} label=${words.kind} value=${kind} onChange=${setKind} options=${[["queue", text.queue], ["destination", words.one]]} />
    <label class="select"><span>${text.name}</span><input value=${to} autocomplete="off" spellcheck=${false} onInput=${(event) => setTo(event.currentTarget.value)} /></label>
    <label class="select"><span>${words.key}</span><input value=${key} autocomplete="off" spellcheck=${false} onInput=${(event) => setKey(event.currentTarget.value)} /></label>
    ${to && html`<button disabled=${busy} onClick=${bind}>${words.bindIt}</button>`}</div>
    ${problemAt(error, `/${kind}`) && html`<p class="wrong" role="alert">${visible(problemAt(error, `/${kind}`))}</p>`}
    <${Problem} error=${error} fields=${[`/${kind}`]} /></details>`;
}
