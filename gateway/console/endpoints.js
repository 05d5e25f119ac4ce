// An endpoint's attempts, and messages once more to it.

import { html, segment, useState, visible } from "./base.js";
import { lines, may, request, usePoll } from "./api.js";
import { go, link } from "./route.js";
import { Name, Problem, Same, Select, State, Table, Time } from "./parts.js";
import { text } from "./text.js";

const words = text.resources;
const KINDS = "attempt_failed,acknowledged,dead,dead_lettered,stored,delivered";

export function EndpointAttempts({ name }) {
  const path = may("history") ? `/v1/events?follow=false&since=1h&kind=${KINDS}&endpoint=${segment(name)}` : null;
  const feed = usePoll(path, 10_000, lines);
  if (!path) return html`<section><h2>${words.attempts}</h2><p class="quiet">${text.needs("history")}</p></section>`;
  const rows = (feed.data ?? []).filter((each) => each.kind).reverse();
  return html`<section><h2>${words.attempts}</h2><p class="quiet">${words.attemptsWhat}</p>
    <${Problem} error=${feed.error} />
    ${feed.data && html`<${Table} label=${words.attempts} rows=${rows} empty=${words.noAttempts}
      keyOf=${(each) => `${each.shard}-${each.sequence}`} open=${(each) => link(`messages/${each.id}`)} columns=${[
        { title: text.time, show: (each) => html`<${Time} at=${each.at} />` },
        { title: words.outcome, show: (each) => html`<${State} of=${each.kind} />` },
        { title: words.attempt, class: "r", show: (each) => each.detail.attempt ?? "–" },
        { title: words.status, class: "r", show: (each) => each.detail.status ?? "–" },
        { title: text.reason, class: "grow mid", show: (each) => visible(each.detail.reason ?? each.detail.text ?? "") },
        { title: text.subscription, class: "wide", show: (each) => html`<${Name} of=${each.detail.subscription ?? ""} />` },
      ]} />`}
  </section>`;
}

export function ReplayWindow({ name }) {
  const [since, setSince] = useState("1h");
  const [preview, setPreview] = useState(null);
  const [error, setError] = useState(null);
  const body = { source: { messages: { since } }, target: { endpoint: name } };
  const run = async (dry) => {
    setError(null);
    try {
      const { data } = await request("POST", "/v1/replays", { body: { ...body, dry_run: dry } });
      if (dry) setPreview(data);
      else go(`replays/${data.id}`);
    } catch (failed) { setError(failed); }
  };
  return html`<section><h2>${words.replay}</h2><p class="quiet">${words.replayWhat}</p>
    <div class="row"><${Select} label=${text.messages.filters.since} value=${since} onChange=${(each) => { setSince(each); setPreview(null); }}
      options=${[["10m", text.last("10 min")], ["1h", text.last("1 h")], ["6h", text.last("6 h")], ["1d", text.last("1 d")]]} />
      <button onClick=${() => run(true)}>${text.dryRun}</button>
      ${preview && html`<button class="primary" onClick=${() => run(false)}>${words.replayStart}</button>`}</div>
    <${Problem} error=${error} />
    ${preview && html`<p role="status">${words.replayFound(preview.count)}</p>`}
    <${Same} method="POST" path="/v1/replays" body=${body} cli=${`gateway replays messages --since ${since} --to-endpoint ${name}`} />
  </section>`;
}
