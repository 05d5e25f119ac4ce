// An endpoint's attempts, and messages once more to it.

import { html, number, segment, span, unique, useRef, useState, visible } from "./base.js";
import { may, request, usePoll } from "./api.js";
import { goLater, link, route } from "./route.js";
import { Empty, Facts, Name, Num, Problem, Same, Select, Staleness, State, Table, Time, View, useAct } from "./parts.js";
import { text } from "./text.js";

const words = text.resources;
const outcome = (each) => html`<${State} of=${each.code || (each.status < 300 ? "delivered" : "attempt_failed")} />`;

// The last requests; with `message` in the address only those of that message.
export function EndpointAttempts({ name }) {
  const message = route.value.query.get("message") ?? "";
  const path = `/v1/endpoints/${segment(name)}/attempts${message ? `?message=${segment(message)}` : ""}`;
  const feed = usePoll(path, 5000);
  return html`<section><h2>${words.attempts}</h2><p class="quiet">${message ? words.attemptsOf(message) : words.attemptsWhat}</p>
    <${Staleness} of=${feed} />
    ${feed.data && html`<${Table} label=${words.attempts} rows=${feed.data.attempts} empty=${words.noAttempts}
      open=${(each) => link(`endpoints/${segment(name)}/attempts/${segment(each.id)}`)} columns=${[
        { title: text.time, show: (each) => html`<${Time} at=${each.at} />` },
        { title: words.outcome, show: outcome },
        { title: words.status, class: "r", show: (each) => each.status ?? "–" },
        { title: words.took, class: "r", show: (each) => span(each.seconds) },
        { title: words.attempt, class: "r mid", show: (each) => (each.test ? words.isTest : each.attempt ?? "–") },
        { title: text.reason, class: "grow mid", show: (each) => visible(each.reason || each.response_body).slice(0, 200) },
        { title: text.subscription, class: "wide", show: (each) => html`<${Name} of=${each.subscription} />` },
      ]} />${!feed.data.complete && html`<p class="quiet">${words.notAll}</p>`}
      <${Same} path=${path} cli=${`gateway endpoints attempts ${name}${message ? ` --message ${message}` : ""}`} />`}
  </section>`;
}

export function AttemptPage({ raw, name, id }) {
  const path = `/v1/endpoints/${raw}/attempts`;
  const feed = usePoll(path, 5000);
  const row = feed.data?.attempts.find((each) => each.id === id);
  return html`<${View} title=${html`${words.oneAttempt} <code class="id">${visible(id)}</code>`} crumbs=${[[text.nav.endpoints, "endpoints"], [visible(name), `endpoints/${raw}`]]} feed=${feed}>
    ${feed.data && !row && html`<${Empty}>${words.forgotten}<//>`}
    ${row && html`<p class="lead">${outcome(row)} ${visible(row.reason)}</p>
      <${Facts} rows=${[
        [text.time, html`<${Time} at=${row.at} />`], [words.status, row.status ?? "–"], [words.took, span(row.seconds)],
        [words.attempt, row.test ? words.isTest : row.attempt ?? "–"],
        [text.subscription, row.subscription && html`<a href=${link(`subscriptions/${segment(row.subscription)}`)}><${Name} of=${row.subscription} /></a>`],
        [words.inIt, number(row.count)], [words.twice, row.resent ? text.yes : text.no],
      ]} />
      ${row.messages.length > 0 && !row.test && may("history") && html`<section><h2>${text.nav.messages}</h2><ul class="plain">${row.messages.map((each) => html`<li><a href=${link(`messages/${segment(each)}`)}><code>${visible(each)}</code></a></li>`)}</ul></section>`}
      <section><h2>${words.requested}</h2><p class="quiet">${text.size} <${Num} value=${row.request_octets} unit="bytes" /></p>
        <pre tabindex="0" aria-label=${words.requested}>${visible(row.request_headers.map((each) => `${each.name}: ${each.value}`).join("\n"), "\n")}</pre></section>
      <section><h2>${words.answered}</h2><p class="quiet">${visible(row.response_type ?? "")}</p>
        ${row.response_body ? html`<pre tabindex="0" aria-label=${words.answered}>${visible(row.response_body, "\n\t")}</pre>` : html`<${Empty}>${words.noAnswer}<//>`}</section>`}
    <${Same} path=${path} cli=${`gateway endpoints attempts ${name} --json`} />
  <//>`;
}

export function ReplayWindow({ name }) {
  const [since, setSince] = useState("1h");
  const [preview, setPreview] = useState(null);
  const { busy, error, run } = useAct(words.replay);
  const body = { source: { messages: { since } }, target: { endpoint: name } };
  const id = useRef(unique()).current; // asked for again under its id, it is the same job
  const dryRun = () => run(async () => setPreview((await request("POST", "/v1/replays", { body: { ...body, dry_run: true }, reads: true })).data));
  const start = () => {
    const goOn = goLater();
    run(async () => {
      await request("POST", "/v1/replays", { body: { ...body, id: `${id}-${since}` }, safe: true });
      goOn(`replays/${id}-${since}`);
    });
  };
  return html`<section><h2>${words.replay}</h2><p class="quiet">${words.replayWhat}</p>
    <div class="bar"><${Select} label=${text.messages.filters.since} value=${since} onChange=${(each) => { setSince(each); setPreview(null); }}
      options=${[["10m", text.last("10 min")], ["1h", text.last("1 h")], ["6h", text.last("6 h")], ["1d", text.last("1 d")]]} />
      <button disabled=${busy} onClick=${dryRun}>${text.dryRun}</button>
      ${preview && html`<button class="primary" disabled=${busy} onClick=${start}>${words.replayStart}</button>`}</div>
    <${Problem} error=${error} />
    ${preview && html`<p role="status">${words.replayFound(preview.count)}</p>`}
    <${Same} method="POST" path="/v1/replays" body=${body} cli=${`gateway replays messages --since ${since} --to-endpoint ${name}`} />
  </section>`;
}
