// One search over names and messages. Names are found in the lists that the caller may see; messages by their id, the
// publisher's id, the routing key, or NAME=VALUE of a header, further and further back.

import { Fragment, html, localTime, segment, useEffect, useState, visible } from "./base.js";
import { all, isAdmin, may, page, scopes, usePoll } from "./api.js";
import { filter, go, link, route } from "./route.js";
import { Action, Empty, Name, Same, Search, State, Table, Time, View } from "./parts.js";
import { text } from "./text.js";

const words = text.search;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const SHOWN = 50;
const onBrokers = () => scopes().some((each) => /^(admin|publish|route|consume|subscribe|broker)/.test(each));

// Kind -> the list, the member of its answer, and who may read it.
const KINDS = {
  brokers: ["/v1/brokers?limit=1000", onBrokers], bridges: ["/v1/bridges?limit=1000", isAdmin], taps: ["/v1/taps?limit=1000", isAdmin],
  endpoints: ["/v1/endpoints?limit=1000", () => may("endpoint")],
  subscriptions: ["/v1/subscriptions?limit=1000", () => may("consume") || may("subscribe")],
};

export function Found() {
  const sought = (route.value.query.get("q") ?? "").trim();
  const [typed, setTyped] = useState(sought);
  useEffect(() => document.querySelector("main [data-search]")?.focus(), []);
  return html`<${View} title=${words.title}>
    <form class="bar" onSubmit=${(event) => { event.preventDefault(); if (ID.test(typed.trim()) && may("history")) go(`messages/${typed.trim()}`); else filter({ q: typed.trim() }); }}>
      <${Search} label=${words.find} placeholder=${words.hint} value=${typed} onInput=${setTyped} /><button>${text.messages.open}</button></form>
    ${sought === "" ? html`<${Empty}>${words.what}<//>` : html`<${Fragment}>
      <${Names} key=${`names ${sought}`} sought=${sought} />
      ${may("history") && queries(sought).map(([what, query]) => html`<${Messages} key=${`${what} ${sought}`} what=${what} query=${query} />`)}<//>`}
    <${Same} path=${`/v1/queues?${new URLSearchParams({ search: sought })}`} cli=${`gateway queues find ${JSON.stringify(sought)}`} />
  <//>`;
}

// How a text may be meant in a search for messages.
function queries(sought) {
  const found = [["message_id", { message_id: sought }], ["routing_key", { routing_key: sought }]];
  if (/^[^=]+=./.test(sought)) found.push(["header", { header: sought }]);
  return found;
}

function Names({ sought }) {
  const low = sought.toLowerCase();
  const feed = usePoll(`names#${sought}`, 60_000, async () => {
    const asked = Object.entries(KINDS).filter(([, [, allowed]]) => allowed()).map(async ([kind, [path]]) => {
      const rows = await all(path, kind, { most: 10_000 });
      return rows.filter((row) => row.name.toLowerCase().includes(low)).map((row) => ({ kind, name: row.name, to: `${kind}/${segment(row.name)}` }));
    });
    if (may("broker") || may("consume")) {
      asked.push(page(`/v1/queues?${new URLSearchParams({ search: sought, limit: SHOWN })}`).then(({ data }) =>
        data.queues.map((row) => ({ kind: "queues", name: row.name, broker: row.broker, to: `queues/${segment(row.broker)}/${segment(row.name)}` }))));
    }
    const ended = await Promise.allSettled(asked);
    const failed = ended.find((each) => each.status === "rejected");
    return { rows: ended.flatMap((each) => each.value ?? []), failed: failed?.reason.message ?? "" };
  });
  return html`<section><h2>${words.names}</h2>${feed.data === null ? html`<p class="quiet" role="status">${text.loading}</p>` : html`
    <${Table} label=${words.names} rows=${feed.data.rows} empty=${words.noName} keyOf=${(row) => row.to} open=${(row) => link(row.to)} columns=${[
      { title: text.name, class: "grow", show: (row) => html`<${Name} of=${row.name} />` },
      { title: words.kind, show: (row) => text.nav[row.kind] },
      { title: text.broker, class: "mid", show: (row) => row.broker && html`<${Name} of=${row.broker} />` },
    ]} />${feed.data.failed && html`<p class="note">${visible(feed.data.failed)}</p>`}`}</section>`;
}

// Messages that fit one meaning of the text; each further page goes on where the one before has ended.
function Messages({ what, query }) {
  const path = `/v1/messages?${new URLSearchParams({ ...query, limit: SHOWN })}`;
  const feed = usePoll(path, 60_000, page);
  const [more, setMore] = useState(null);
  const rows = [...(feed.data?.data.messages ?? []), ...(more?.rows ?? [])];
  const [next, reached] = more ? [more.next, more.reached] : [feed.data?.next, feed.data?.data.reached];
  const further = async () => {
    const { data, next: after } = await page(next);
    setMore({ rows: [...(more?.rows ?? []), ...data.messages], next: after, reached: data.reached });
    return text.messages.furtherFound(data.messages.length);
  };
  if (feed.error && !feed.data) return html`<section><h2>${words.messages[what]}</h2><p class="note">${visible(feed.error.message)}</p></section>`;
  if (!feed.data) return null;
  return html`<section><h2>${words.messages[what]}</h2>
    <${Table} label=${words.messages[what]} rows=${rows} empty=${next ? text.messages.noneHere : text.messages.none} open=${(row) => link(`messages/${row.id}`)} columns=${[
      { title: text.time, show: (row) => html`<${Time} at=${row.at} />` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: text.messages.filters.routing_key, class: "grow", show: (row) => html`<${Name} of=${row.routing_key} />` },
      { title: text.broker, class: "mid", show: (row) => html`<${Name} of=${row.broker} />` },
      { title: text.messages.filters.message_id, class: "mid", show: (row) => html`<${Name} of=${row.properties.message_id ?? ""} />` },
    ]} />
    ${next && html`<p class="row"><${Action} label=${text.messages.further} act=${further} /> <span class="quiet">${reached && words.reached(localTime(new Date(reached)))}</span></p>`}</section>`;
}
