// API keys, what they allow, and who did what.

import { html, useRef, useState, visible } from "./base.js";
import { all, isAdmin, page, request, session, usePoll } from "./api.js";
import { filter, link, route } from "./route.js";
import { Action, Copy, Filter, Name, Problem, Same, Search, State, Table, Time, View, Dialog, ask, dialog, problemAt, useAct } from "./parts.js";
import { text } from "./text.js";

const words = text.access;

export function Keys() {
  const sought = route.value.query.get("q") ?? "";
  const feed = usePoll("/v1/keys?limit=1000", 10_000, (path, how) => all(path, "keys", how));
  const rows = (feed.data ?? []).filter((row) => !sought || `${row.id} ${row.client} ${row.scopes.join(" ")} ${row.state}`.toLowerCase().includes(sought.toLowerCase()));
  const told = (data) => { dialog.value = html`<${Made} of=${data} />`; feed.reload(); };
  return html`<${View} title=${text.nav.keys} feed=${feed}
    actions=${isAdmin() && html`<button class="primary" onClick=${() => { dialog.value = html`<${Create} told=${told} />`; }}>${words.create}</button>`}>
    <p class="note">${words.what}</p>
    <div class="bar"><${Search} label=${words.find} value=${sought} onInput=${(q) => filter({ q })} /><span class="quiet">${text.shown(rows.length, feed.data?.length ?? 0)}</span></div>
    ${feed.data && html`<${Table} label=${text.nav.keys} rows=${rows} empty=${sought ? text.nothingFound : words.none} columns=${[
      { title: text.client, show: (row) => html`<a href=${link("audit", { actor: row.client })}><${Name} of=${row.client} /></a>` },
      { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
      { title: words.hint, class: "mid", show: (row) => html`<code>${visible(row.hint)}…</code>` },
      { title: words.scopes, class: "grow mid", show: (row) => html`<${Name} of=${row.scopes.join("  ")} />` },
      { title: words.used, class: "wide", show: (row) => html`<${Time} at=${row.last_used_at} />` },
      { title: words.expires, class: "wide", show: (row) => (row.expires_at ? html`<${Time} at=${row.expires_at} />` : words.never) },
      { title: words.steer, show: (row) => row.state === "live" && html`
        <button class="small" onClick=${() => ask({ title: words.rotate, what: words.rotateWhat, button: words.rotate, act: async () => {
          const { data } = await request("POST", `/v1/keys/${row.id}:rotate`);
          setTimeout(() => told(data), 0);
          return words.rotated;
        } })}>${words.rotate}</button>${" "}
        <button class="small danger" onClick=${() => ask({ title: words.revoke, what: words.revokeWhat, name: row.client, act: async () => {
          await request("POST", `/v1/keys/${row.id}:revoke`);
          feed.reload();
          return words.revoked;
        } })}>${words.revoke}</button>` },
    ]} />`}
    <${Same} path="/v1/keys" cli="gateway keys list" />
  <//>`;
}

function Create({ told }) {
  const [client, setClient] = useState("");
  const [scopes, setScopes] = useState("");
  const [days, setDays] = useState(365);
  const { busy, error, run } = useAct(words.create);
  const save = (event) => {
    event.preventDefault();
    const body = { client, scopes: scopes.split("\n").map((each) => each.trim()).filter(Boolean), expires_seconds: Math.round(days * 86400) };
    run(async () => told((await request("POST", "/v1/keys", { body })).data));
  };
  const wrong = (path) => problemAt(error, path) && html`<p class="wrong" role="alert">${visible(problemAt(error, path))}</p>`;
  return html`<${Dialog} title=${words.create}><form onSubmit=${save}>
    <div class="field"><label for="key-client">${text.client}</label><input id="key-client" required autofocus value=${client} autocomplete="off" onInput=${(event) => setClient(event.currentTarget.value)} />
      <p class="help">${words.clientHelp}</p>${wrong("/client")}</div>
    <div class="field"><label for="key-scopes">${words.scopes}</label><textarea id="key-scopes" rows="5" required spellcheck=${false} value=${scopes}
      placeholder=${"publish:shop/orders\nconsume:shop/invoices\nhistory"} onInput=${(event) => setScopes(event.currentTarget.value)}></textarea>
      <p class="help">${words.scopesHelp}</p>${wrong("/scopes")}</div>
    <div class="field"><label for="key-days">${words.days}</label><input id="key-days" type="number" min="0" value=${days} onInput=${(event) => setDays(Number(event.currentTarget.value))} />
      <p class="help">${words.daysHelp}</p></div>
    <${Problem} error=${error} fields=${["/client", "/scopes"]} />
    <div class="buttons"><button type="button" onClick=${() => { dialog.value = null; }}>${text.cancel}</button><button class="primary" disabled=${busy}>${busy ? text.working : words.create}</button></div>
  </form><//>`;
}

function Made({ of }) {
  return html`<${Dialog} title=${words.made} closes=${false}><p>${words.madeWhat}</p>
    <p class="secret"><code class="name">${of.key}</code> <${Copy} of=${of.key} /></p>
    <div class="buttons"><button class="primary" autofocus onClick=${() => { dialog.value = null; }}>${words.saved}</button></div><//>`;
}

export function Audit() {
  const query = route.value.query;
  const given = Object.fromEntries(["actor", "action", "object"].map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
  const path = `/v1/audit?${new URLSearchParams({ limit: "200", ...given })}`;
  const feed = usePoll(path, 5000, async (each, how) => { const found = await page(each, how); return { rows: found.data.entries, next: found.next }; });
  const [more, setMore] = useState({ path: "", rows: [], next: null });
  const current = useRef(path);
  current.current = path;
  const own = more.path === path;
  const rows = [...(feed.data?.rows ?? []), ...(own ? more.rows : [])];
  const next = own ? more.next : feed.data?.next;
  const input = (name) => html`<${Filter} label=${words.filters[name]} value=${given[name] ?? ""} data-search=${name === "actor"}
    onChange=${(value) => filter({ [name]: value })} />`;
  return html`<${View} title=${text.nav.audit} feed=${feed}>
    <div class="bar filters">${["actor", "action", "object"].map(input)}</div>
    ${feed.data && html`<${Table} label=${text.nav.audit} rows=${rows} keyOf=${(row) => row.sequence} empty=${Object.keys(given).length ? text.nothingFound : words.noAudit} columns=${[
      { title: text.time, show: (row) => html`<${Time} at=${row.at} plain />` },
      { title: words.filters.actor, show: (row) => html`<button class="link" onClick=${() => filter({ actor: row.actor })}><${Name} of=${row.actor} /></button>` },
      { title: words.filters.action, show: (row) => html`<button class="link" onClick=${() => filter({ action: row.action })}><${Name} of=${row.action} /></button>` },
      { title: words.filters.object, class: "grow mid", show: (row) => html`<${Name} of=${row.object} />` },
      { title: words.result, class: "mid", show: (row) => html`<${Name} of=${row.result} />` },
      { title: words.address, class: "wide", show: (row) => html`<${Name} of=${row.address} />` },
      { title: words.credential, class: "wide", show: (row) => html`<${Name} of=${row.credential} />` },
    ]} />`}
    ${next && html`<p><${Action} label=${text.messages.further} act=${async () => {
      const found = await page(next);
      if (current.current === path) setMore({ path, rows: [...(own ? more.rows : []), ...found.data.entries], next: found.next });
      return text.messages.furtherFound(found.data.entries.length);
    }} /></p>`}
    <${Same} path=${path} cli="gateway audit export --config FILE" />
  <//>`;
}

export function Me() {
  const caller = session.value.caller;
  return html`<${View} title=${text.nav.me}>
    <p class="lead"><strong><${Name} of=${caller.name} /></strong> ${caller.credential ? words.by[caller.credential] ?? caller.credential : words.openGateway}</p>
    <section><h2>${words.scopes}</h2><ul class="plain">${caller.scopes.map((each) => html`<li><code class="name">${visible(each)}</code></li>`)}</ul></section>
    <p class="quiet">${text.version(caller.version)}</p>
    <${Same} path="/v1/caller" />
  <//>`;
}

