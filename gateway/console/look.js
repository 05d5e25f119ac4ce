// Looking into a queue: its first messages, as they are. What cannot be shown is said, and what the ledger has is offered.

import { bytes, decoded, html, nameText, quoted, useState, visible } from "./base.js";
import { NEVER, may, request, usePoll } from "./api.js";
import { filter, link, route } from "./route.js";
import { Empty, Name, Num, Same, Select, Table, View, ask } from "./parts.js";
import { Message } from "./messages.js";
import { text } from "./text.js";

const words = text.look;
const LIMITS = ["1", "20", "100"];
const BODIES = ["1024", "65536", "1048576"];

export function LookPage({ rawBroker, raw }) {
  const [broker, queue] = [decoded(rawBroker), decoded(raw)];
  const given = (name, options, otherwise) => (options.includes(route.value.query.get(name)) ? route.value.query.get(name) : otherwise);
  const [limit, bodyMax] = [given("limit", LIMITS, "20"), given("body_max", BODIES, "65536")];
  const path = `/v1/brokers/${rawBroker}/queues/${raw}/messages`;
  const asked = `${path}?${new URLSearchParams({ limit, body_max: bodyMax })}`;
  const feed = usePoll(asked, NEVER); // a queue is looked into when somebody asks, and not again and again
  const [taken, setTaken] = useState(null);
  const found = taken?.asked === asked ? taken.data : feed.data;
  const chosen = found?.messages.find((each) => String(each.position) === route.value.query.get("no"));
  const take = async () => {
    const { data } = await request("POST", `${path}:takeAndGiveBack`, { body: { limit: Number(limit), body_max: Number(bodyMax) } });
    setTaken({ asked, data });
    return words.taken;
  };
  return html`<${View} title=${words.title} feed=${feed}
    crumbs=${[[text.nav.queues, "queues"], [visible(broker), `brokers/${rawBroker}`], [visible(queue), `queues/${rawBroker}/${raw}`]]}
    actions=${html`<button onClick=${() => { setTaken(null); feed.reload(); }}>${words.again}</button>
      ${found?.can_take && html`<button class="danger" onClick=${() => ask({ title: words.take, what: words.takeWhat(Number(limit)), name: queue, act: take })}>${words.take}</button>`}`}>
    <div class="bar"><${Select} label=${words.limit} value=${limit} onChange=${(each) => filter({ limit: each, no: "" })} options=${LIMITS.map((each) => [each, each])} />
      <${Select} label=${words.bodyMax} value=${bodyMax} onChange=${(each) => filter({ body_max: each })} options=${BODIES.map((each) => [each, bytes(Number(each))])} /></div>
    ${found && html`
      ${found.how === "not_shown" ? html`<div class="note"><strong>${words.notShown}</strong> ${visible(found.reason)}
          ${!found.can_take && html`<p><strong>${words.cannotTake}</strong> ${visible(found.take_reason)}</p>`}</div>`
        : html`<p class="quiet" role="status">${found.how === "taken" ? words.taken : words.what(found.ready)} ${!found.complete && found.messages.length > 0 && words.first(found.messages.length)}</p>
          <${Table} label=${words.title} rows=${found.messages} empty=${words.none} keyOf=${(row) => row.position}
            open=${(row) => link(route.value.path, { limit, body_max: bodyMax, no: row.position })} columns=${[
              { title: words.number, show: (row) => row.position },
              { title: text.messages.filters.routing_key, class: "grow", show: (row) => html`<${Name} of=${row.message.routing_key} />` },
              { title: text.messages.filters.message_id, class: "mid", show: (row) => html`<${Name} of=${row.message.properties.message_id ?? ""} />` },
              { title: text.messages.filters.content_type, class: "wide", show: (row) => html`<${Name} of=${row.message.properties.content_type ?? ""} />` },
              { title: words.redelivered, class: "mid", show: (row) => (row.redelivered ? text.yes : text.no) },
              { title: text.size, class: "r", show: (row) => html`<${Num} value=${row.size} unit="bytes" />` },
            ]} />
          ${chosen && html`<section aria-label=${words.chosen(chosen.position)}><h2>${words.chosen(chosen.position)}</h2>
            ${chosen.message.id && may("history") && html`<p><a href=${link(`messages/${chosen.message.id}`)}>${words.story}</a></p>`}
            <${Message} key=${chosen.position} of=${chosen.message} shown=${chosen.payload_bytes} size=${chosen.size}
              path=${found.how === "browsed" && bodyPath(path, chosen)} name=${`${chosen.message.id || `message-${chosen.position}`}.bin`} /></section>`}`}
      ${found.ledger.length > 0 && html`<section><h2>${words.ledger}</h2><ul class="plain">${found.ledger.map((each) => html`<li>
        <a href=${place(each)}>${words.places[each.what](visible(each.name))}</a></li>`)}</ul></section>`}`}
    <${Same} path=${asked} cli=${`gateway queues look ${quoted(broker)} ${quoted(nameText(queue))} --limit ${limit} --body-max ${bodyMax}`} />
  <//>`;
}

// What gives a whole body, if the message still has its place.
function bodyPath(path, { position, size, message }) {
  return `${path}/${position}/body?${new URLSearchParams({ ...(message.id ? { id: message.id } : {}), size })}`;
}

// Where the console shows what a path of the API lists.
function place(each) {
  const [path, query] = each.path.split("?");
  return path === "/v1/messages" ? `${link("messages")}?${query}` : link(`subscriptions/${encodeURIComponent(each.name)}`);
}
