// Publishing a message, now or later; also one that is like a past one.

import { html, segment, signal, useState, visible } from "./base.js";
import { mayPublish, request, usePoll } from "./api.js";
import { go, link, route } from "./route.js";
import { Problem, Same, State, View, problemAt } from "./parts.js";
import { text } from "./text.js";

const words = text.publish;
const EMPTY = { broker: "", exchange: "amq.default", routing_key: "", payload: "", encoding: "string", properties: "", headers: "", delay: "", mandatory: true };
const draft = signal(null); // kept while the reader looks elsewhere, or has to log in again

const exchangeOf = (name) => (name === "" || name === null ? "amq.default" : name);

// Begin a message like one of the past: the ledger has its properties; its body where it keeps bodies.
export async function copied(row) {
  const { headers, ...properties } = row.properties;
  draft.value = {
    ...EMPTY, broker: row.broker, exchange: exchangeOf(row.exchange), routing_key: typeof row.routing_key === "string" ? row.routing_key : "",
    properties: Object.keys(properties).length ? JSON.stringify(properties, null, 2) : "",
    headers: headers && Object.keys(headers).length ? JSON.stringify(headers, null, 2) : "",
    like: { id: row.id, body: false },
  };
  const owed = row.owed?.[0];
  if (owed) {
    try {
      const { data } = await request("GET", `/v1/deliveries/${owed.id}`);
      const message = data.message;
      if (message) {
        draft.value = { ...draft.value, payload: typeof message.payload === "string" ? message.payload : JSON.stringify(message.payload), encoding: message.payload_encoding ?? "string", like: { id: row.id, body: true } };
      }
    } catch { /* without its body, then */ }
  }
  go("publish");
}

export function Publish() {
  const query = route.value.query;
  const brokers = usePoll("/v1/brokers?limit=1000", 30_000);
  const names = (brokers.data?.brokers ?? []).map((each) => each.name).filter((each) => mayPublish(each, ""));
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const given = Object.fromEntries(["broker", "exchange", "routing_key"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  const from = query.toString(); // what a link says of the place counts more than what was typed before the link was followed
  const form = { ...EMPTY, ...draft.value, ...(draft.value?.typed && (from === "" || draft.value.from === from) ? {} : given) };
  form.broker ||= names[0] ?? "";
  const set = (changes) => { draft.value = { ...form, ...changes, typed: true, from }; setResult(null); };
  const { body, wrong } = bodyOf(form);
  const path = `/v1/brokers/${segment(form.broker || "BROKER")}/exchanges/${segment(exchangeOf(form.exchange))}:publish`;
  const send = async (event) => {
    event.preventDefault();
    if (Object.keys(wrong).length) return;
    setBusy(true);
    setError(null);
    setResult(null);
    try { setResult((await request("POST", path, { body })).data); } catch (failed) { setError(failed); }
    setBusy(false);
  };
  const at = (name) => wrong[name] || problemAt(error, `/${FIELDS[name] ?? name}`);
  const field = (name, input, help) => html`<div class="field"><label for=${`publish-${name}`}>${words[name]}</label>${input}
    ${help && html`<p class="help">${help}</p>`}${at(name) && html`<p class="wrong" role="alert">${visible(at(name))}</p>`}</div>`;
  const typed = (name, more = {}) => html`<input id=${`publish-${name}`} value=${form[name]} autocomplete="off" spellcheck=${false} ...${more}
    onInput=${(event) => set({ [name]: event.currentTarget.value })} />`;
  const area = (name, rows, hint = "") => html`<textarea id=${`publish-${name}`} rows=${rows} spellcheck=${false} placeholder=${hint} value=${form[name]}
    onInput=${(event) => set({ [name]: event.currentTarget.value })}></textarea>`;
  const cli = `gateway publish ${form.broker} ${exchangeOf(form.exchange)} '${form.routing_key}' '${form.payload.replace(/'/g, "'\\''").slice(0, 2000)}'${form.encoding === "base64" ? " --base64" : ""}${form.delay ? ` --delay ${form.delay}` : ""}`;
  return html`<${View} title=${words.title} actions=${html`<button onClick=${() => { draft.value = null; setResult(null); setError(null); go("publish"); }}>${words.clear}</button>`}>
    ${form.like && html`<p class="note">${words.like} <a href=${link(`messages/${form.like.id}`)}><code>${visible(form.like.id)}</code></a>. ${form.like.body ? words.withBody : words.noBody}</p>`}
    <form class="edit" onSubmit=${send}>
      <div class="cols">
        ${field("broker", html`<select id="publish-broker" onChange=${(event) => set({ broker: event.currentTarget.value })}>
          ${names.map((each) => html`<option value=${each} selected=${each === form.broker}>${visible(each)}</option>`)}</select>`)}
        ${field("exchange", typed("exchange"), words.exchangeHelp)}
        ${field("routing_key", typed("routing_key"), words.keyHelp)}
      </div>
      ${field("payload", area("payload", 8))}
      <div class="cols">
        ${field("encoding", html`<select id="publish-encoding" onChange=${(event) => set({ encoding: event.currentTarget.value })}>
          ${["string", "json", "base64"].map((each) => html`<option value=${each} selected=${each === form.encoding}>${words.encodings[each]}</option>`)}</select>`)}
        ${field("delay", typed("delay", { type: "number", min: 0, placeholder: "0" }), words.delayHelp)}
        <div class="field flag"><label for="publish-mandatory">${words.mandatory}</label><input id="publish-mandatory" type="checkbox" checked=${form.mandatory}
          onChange=${(event) => set({ mandatory: event.currentTarget.checked })} /><p class="help">${words.mandatoryHelp}</p></div>
      </div>
      <div class="cols">
        ${field("properties", area("properties", 4, '{"content_type": "text/plain", "message_id": "m-1"}'))}
        ${field("headers", area("headers", 4, '{"region": "eu", "small": {"type": "int8", "value": 3}}'))}
      </div>
      <${Problem} error=${error} fields=${["/routing_key", "/payload", "/properties", "/headers", "/delay_seconds"]} />
      ${result && html`<div class="result" role="status"><${State} of=${result.status} />${" "}
        ${result.status === "scheduled" ? words.scheduled : result.routed ? (result.durable ? words.safe : words.confirmed) : words.unroutable}${" · "}
        <a href=${link(result.status === "scheduled" ? "schedules" : `messages/${result.id}`)}>${result.status === "scheduled" ? text.nav.schedules : words.story}</a>${" "}
        <code class="id">${result.id}</code></div>`}
      <div class="buttons"><button class="primary" disabled=${busy || !form.broker}>${busy ? text.working : form.delay > 0 ? words.later : words.send}</button></div>
    </form>
    <${Same} method="POST" path=${path} body=${body} cli=${cli} />
  <//>`;
}

const FIELDS = { delay: "delay_seconds" };

function bodyOf(form) {
  const wrong = {};
  const body = { routing_key: form.routing_key };
  if (form.payload !== "") {
    if (form.encoding === "json") {
      try { body.payload = JSON.parse(form.payload); } catch (error) { wrong.payload = text.notJson(error.message); }
    } else {
      body.payload = form.payload;
      if (form.encoding === "base64") body.payload_encoding = "base64";
    }
  }
  for (const name of ["properties", "headers"]) {
    if (form[name].trim() === "") continue;
    try { body[name] = JSON.parse(form[name]); } catch (error) { wrong[name] = text.notJson(error.message); }
  }
  if (form.delay > 0) body.delay_seconds = Number(form.delay);
  if (!form.mandatory) body.mandatory = false;
  return { body, wrong };
}

