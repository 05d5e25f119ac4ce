// Fronts: the ports for AMQP clients of other versions, their connections to brokers, and who is connected.

import { decoded, html, quoted, segment, visible } from "./base.js";
import { all, request, usePoll } from "./api.js";
import { link } from "./route.js";
import { Empty, Facts, Name, Num, Same, Staleness, State, Table, Time, View, ask } from "./parts.js";
import { text } from "./text.js";

const words = text.fronts;

export function Fronts() {
  const feed = usePoll("/v1/fronts", 5000);
  return html`<${View} title=${text.nav.fronts} feed=${feed}>
    <p class="note">${words.what}</p>
    ${feed.data && html`<${Table} label=${text.nav.fronts} rows=${feed.data.fronts} empty=${words.none} open=${(row) => link(`fronts/${segment(row.name)}`)} columns=${[
      { title: text.name, show: (row) => html`<${Name} of=${row.name} />` },
      { title: words.listens, class: "mid", show: (row) => visible(`${row.host}:${row.port}`) },
      { title: text.queues.version, class: "mid", show: (row) => row.versions.join(", ") },
      { title: words.clients, class: "r", show: (row) => html`<${Num} value=${row.clients} />` },
      { title: words.connections, class: "r", show: (row) => html`<${Num} value=${row.connections.filter((each) => each.up).length} /> / <${Num} value=${row.connections.length} />` },
      { title: text.broker, class: "wide grow", show: (row) => html`<${Name} of=${[...new Set(Object.values(row.virtual_hosts))].join(", ")} />` },
    ]} />`}
    <${Same} path="/v1/fronts" cli="gateway fronts list" />
  <//>`;
}

export function FrontPage({ raw }) {
  const path = `/v1/fronts/${raw}`;
  const feed = usePoll(path, 3000);
  const row = feed.data;
  const counts = row ? [
    [words.publishes, row.publishes], [words.deliveries, row.deliveries], [words.rewrites, row.rewrites],
    [words.refusals, Object.fromEntries(row.refusals.map((each) => [`${each.operation}: ${each.code}`, each.count]))],
  ].filter(([, found]) => Object.values(found).some((many) => many > 0)) : [];
  return html`<${View} title=${html`<${Name} of=${decoded(raw)} />`} crumbs=${[[text.nav.fronts, "fronts"]]} feed=${feed}>
    ${row && html`
      <${Facts} rows=${[
        [words.listens, visible(`${row.host}:${row.port}${row.tls ? " (TLS)" : ""}`)], [text.queues.version, row.versions.join(", ")],
        [words.login, words.logins[row.login] ?? visible(row.login)], [words.store, words.stores[row.store] ?? visible(row.store)],
        [words.refusedLogins, html`<${Num} value=${row.logins_refused} />`],
        [words.stored, html`<${Num} value=${row.stored_bytes} unit="bytes" />`], [words.unconfirmed, html`<${Num} value=${row.unconfirmed_bytes} unit="bytes" />`],
        [words.held, html`<${Num} value=${row.held_bytes} unit="bytes" />`],
      ]} />
      <section><h2>${words.connections}</h2><${Table} label=${words.connections} rows=${row.connections} empty=${words.noConnection}
        keyOf=${(each) => row.connections.indexOf(each)} open=${(each) => link(`brokers/${segment(each.broker)}`)} columns=${[
          { title: text.broker, show: (each) => html`<${Name} of=${each.broker} />` },
          { title: text.state, show: (each) => html`<${State} of=${!each.up ? "down" : each.blocked ? "blocked" : "up"} /> ${visible(each.blocked)}` },
          { title: words.user, class: "mid", show: (each) => html`<${Name} of=${each.login} />` },
          { title: words.clients, class: "r", show: (each) => html`<${Num} value=${each.clients} />` },
          { title: words.channels, class: "r mid", show: (each) => html`<${Num} value=${each.channels} />` },
          { title: words.restores, class: "r mid", show: (each) => html`<${Num} value=${each.restores} />` },
          { title: text.queues.product, class: "wide", show: (each) => visible(`${each.product} ${each.product_version}`) },
        ]} /></section>
      <${Clients} path=${path} />
      ${counts.length === 0 ? html`<section><h2>${words.publishes}</h2><${Empty}>${words.nothing}<//></section>` : counts.map(([title, found]) => html`<section key=${title}><h2>${title}</h2>
        <${Facts} rows=${Object.entries(found).map(([name, many]) => [visible(name), html`<${Num} value=${many} />`])} /></section>`)}
      <section><h2>${words.virtualHosts}</h2><ul class="plain">${Object.entries(row.virtual_hosts).map(([host, broker]) => html`<li key=${host}>
        <${Name} of=${host} /> <span class="quiet">→</span> <a href=${link(`brokers/${segment(broker)}`)}><${Name} of=${broker} /></a></li>`)}</ul></section>
      <${Same} path=${path} cli=${`gateway fronts show ${quoted(row.name)}`} />`}
  <//>`;
}

function Clients({ path }) {
  const feed = usePoll(`${path}/clients?limit=1000`, 5000, (each, how) => all(each, "clients", { ...how, most: 10_000 }));
  const close = (each) => ask({ title: words.close, what: words.closeWhat, name: each.user, act: async () => {
    await request("DELETE", `${path}/clients/${each.client}`);
    feed.reload();
    return words.closed;
  } });
  return html`<section><h2>${words.clients}</h2>
    <${Staleness} of=${feed} />
    ${feed.data && html`<${Table} label=${words.clients} rows=${feed.data} empty=${words.noClient} keyOf=${(each) => each.client} columns=${[
      { title: words.user, show: (each) => html`<${Name} of=${each.user} />` },
      { title: text.queues.address, class: "mid", show: (each) => visible(each.address) },
      { title: text.queues.version, class: "mid", show: (each) => each.version },
      { title: text.queues.product, class: "wide grow", show: (each) => visible(`${each.product} ${each.product_version}`) },
      { title: text.since, class: "mid", show: (each) => html`<${Time} at=${each.since} />` },
      { title: text.queues.consumers, class: "r mid", show: (each) => html`<${Num} value=${each.consumers} />` },
      { title: text.queues.unacknowledged, class: "r", show: (each) => html`<${Num} value=${each.unacknowledged} />` },
      { title: words.waiting, class: "r wide", show: (each) => html`<${Num} value=${each.waiting} />` },
      { title: words.steer, show: (each) => html`<button class="small danger" onClick=${() => close(each)}>${words.close}</button>` },
    ]} />`}</section>`;
}
