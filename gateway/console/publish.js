// Publishing a message, now or later; also one that is like a past one.

import { html, number, segment, signal, unique, useState, visible } from "./base.js";
import { ApiError, mayPublish, passes, request, session, usePoll, having } from "./api.js";
import { fileMessage, publishFile, wholeBody } from "./bodies.js";
import { go, goLater, link, route } from "./route.js";
import { Problem, Same, State, View, problemAt, useAct } from "./parts.js";
import { text } from "./text.js";

const words = text.publish;
const EMPTY = { broker: "", exchange: "amq.default", routing_key: "", payload: "", encoding: "string", properties: "", headers: "", delay: "", mandatory: true, file: null };
const TYPED_MAX = 1_048_576; // bytes of a body of the past that are put into the form; a longer one is put there as a file
const draft = signal(null); // kept while the reader looks elsewhere, or has to log in again

let attempt = { key: "", of: "" }; // an idempotency key, and the request that it belongs to

// The same key for the same request, as long as it is not known whether that was done.
function keyFor(of) {
  if (attempt.of !== of) attempt = { key: unique(), of };
  return attempt.key;
}

const exchangeOf = (name) => (name === "" || name === null ? "amq.default" : name);

// Begin a message like one of the past: the ledger has its properties; its body where it keeps bodies.
export async function copied(row) {
  const goOn = goLater();
  const { headers, ...properties } = row.properties;
  const made = {
    ...EMPTY, broker: row.broker, exchange: exchangeOf(row.exchange), routing_key: typeof row.routing_key === "string" ? row.routing_key : "",
    properties: Object.keys(properties).length ? JSON.stringify(properties, null, 2) : "",
    headers: headers && Object.keys(headers).length ? JSON.stringify(headers, null, 2) : "",
    like: { id: row.id, body: false },
  };
  const owed = row.owed?.[0];
  if (owed) {
    try {
      const path = `/v1/deliveries/${owed.id}`;
      const { data } = await request("GET", `${path}?body_max=${TYPED_MAX}`);
      const message = data.message;
      if (message && data.cut) {
        draft.value = { ...made, like: { id: row.id, body: "coming" } };
        goOn("publish");
        await attach(row.id, path, owed.id);
        return;
      }
      if (message) {
        Object.assign(made, { payload: typeof message.payload === "string" ? message.payload : JSON.stringify(message.payload), encoding: message.payload_encoding ?? "string", like: { id: row.id, body: true } });
      }
    } catch (error) { if (passes(error)) throw error; } // else without its body
  }
  draft.value = made;
  goOn("publish");
}

// Put a long body into the form, as a file, unless the form is another one by then.
async function attach(id, path, name) {
  let changes = { like: { id, body: false } };
  try { changes = { file: new File([await wholeBody(`${path}/body`)], `${name}.bin`), like: { id, body: true } }; } catch { /* without its body, then */ }
  if (draft.value?.like?.id === id) draft.value = { ...draft.value, ...changes };
}

export function Publish() {
  const query = route.value.query;
  const brokers = usePoll("/v1/brokers?limit=1000", 30_000, having("brokers"));
  const usable = (brokers.data?.brokers ?? []).filter((each) => mayPublish(each.name, ""));
  const names = usable.map((each) => each.name);
  const [result, setResult] = useState(null);
  const { busy, error, run, clear } = useAct(words.send);
  const given = Object.fromEntries(["broker", "exchange", "routing_key"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  const from = query.toString(); // what a link says of the place counts more than what was typed before the link was followed
  const form = { ...EMPTY, ...draft.value, ...(draft.value?.typed && (from === "" || draft.value.from === from) ? {} : given) };
  form.broker ||= names[0] ?? "";
  const set = (changes) => { draft.value = { ...form, ...changes, typed: true, from }; setResult(null); };
  const most = [["http.body_max", session.value.caller?.body_max], ["message_max", usable.find((each) => each.name === form.broker)?.message_max]]
    .map(([setting, bytes]) => ({ setting, bytes: bytes ?? Infinity })).reduce((one, other) => (other.bytes < one.bytes ? other : one));
  const { body, query: asked, headers, wrong } = form.file ? fileMessage(form, most) : bodyOf(form);
  const path = `/v1/brokers/${segment(form.broker || "BROKER")}/exchanges/${segment(exchangeOf(form.exchange))}:publish`;
  const send = (event) => {
    event.preventDefault();
    if (Object.keys(wrong).length) return;
    setResult(null);
    run(async () => {
      const { file } = form;
      const of = file ? `${path} ${asked} ${JSON.stringify(headers)} ${file.name} ${file.size} ${file.lastModified}` : `${path} ${JSON.stringify(body)}`;
      const once = keyFor(of);
      let again = false;
      try {
        setResult((file ? await publishFile(path, { file, query: asked, headers, once }) : await request("POST", path, { body, once })).data);
      } catch (failed) {
        if (failed.name === "NotReadableError" || failed.name === "NotFoundError") throw new ApiError({ code: "unread", title: words.unread });
        again = failed.unknown || failed.status === 409; // then another try is the same publish
        throw failed;
      } finally { if (!again) attempt = { key: "", of: "" }; }
    });
  };
  const at = (name) => wrong[name] || problemAt(error, `/${FIELDS[name] ?? name}`);
  const field = (name, input, help) => html`<div class="field"><label for=${`publish-${name}`}>${words[name]}</label>${input}
    ${help && html`<p class="help">${help}</p>`}${at(name) && html`<p class="wrong" role="alert">${visible(at(name))}</p>`}</div>`;
  const typed = (name, more = {}) => html`<input id=${`publish-${name}`} value=${form[name]} autocomplete="off" spellcheck=${false} ...${more}
    onInput=${(event) => set({ [name]: event.currentTarget.value })} />`;
  const area = (name, rows, hint = "") => html`<textarea id=${`publish-${name}`} rows=${rows} spellcheck=${false} placeholder=${hint} value=${form[name]}
    onInput=${(event) => set({ [name]: event.currentTarget.value })}></textarea>`;
  const cli = `gateway publish ${form.broker} ${exchangeOf(form.exchange)} '${form.routing_key}' '${form.payload.replace(/'/g, "'\\''").slice(0, 2000)}'${form.encoding === "base64" ? " --base64" : ""}${form.delay ? ` --delay ${form.delay}` : ""}`;
  return html`<${View} title=${words.title} feed=${brokers} actions=${html`<button onClick=${() => { draft.value = null; setResult(null); clear(); go("publish"); }}>${words.clear}</button>`}>
    ${form.like && html`<p class="note">${words.like} <a href=${link(`messages/${form.like.id}`)}><code>${visible(form.like.id)}</code></a>. ${form.like.body === "coming" ? words.coming : form.like.body ? words.withBody : words.noBody}</p>`}
    <form class="edit" onSubmit=${send}>
      <div class="cols">
        ${field("broker", html`<select id="publish-broker" onChange=${(event) => set({ broker: event.currentTarget.value })}>
          ${names.map((each) => html`<option value=${each} selected=${each === form.broker}>${visible(each)}</option>`)}</select>`)}
        ${field("exchange", typed("exchange"), words.exchangeHelp)}
        ${field("routing_key", typed("routing_key"), words.keyHelp)}
      </div>
      ${form.file ? html`<div class="field"><span>${words.fileIs}</span><p class="row">${words.chosen(visible(form.file.name), number(form.file.size))}
          <button type="button" class="small" onClick=${() => set({ file: null })}>${words.noFile}</button></p>
          ${at("file") && html`<p class="wrong" role="alert">${at("file")}</p>`}</div>`
        : field("payload", area("payload", 8))}
      ${!form.file && field("file", html`<input id="publish-file" type="file" onChange=${(event) => set({ file: event.currentTarget.files[0] ?? null })} />`, words.fileHelp)}
      <div class="cols">
        ${!form.file && field("encoding", html`<select id="publish-encoding" onChange=${(event) => set({ encoding: event.currentTarget.value })}>
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
    ${form.file ? html`<${Same} method="POST" path=${`${path}?${asked}`} file=${{ name: form.file.name, headers }} />`
      : html`<${Same} method="POST" path=${path} body=${body} cli=${cli} />`}
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

