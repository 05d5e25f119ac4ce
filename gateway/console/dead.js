// Dead letters that the ledger keeps: grouped by reason, and sent again or deleted one by one, as a selection, or all, by a job.

import { html, number, segment, unique, useState, visible } from "./base.js";
import { isAdmin, page as onePage, request, usePoll, having } from "./api.js";
import { filter, goLater, link, route } from "./route.js";
import { Action, Empty, Name, Num, Same, Search, Select, State, Table, Time, View, ask } from "./parts.js";
import { PART_MAX } from "./bodies.js";
import { Message } from "./messages.js";
import { text } from "./text.js";

const words = text.dead;
const SHOWN_MAX = 1000; // as many as one job may be given by their ids
const FILTERS = ["subscription", "endpoint", "code"];
const codeOf = (row) => row.dead_letter?.code || row.reason?.code || words.noCode;
const whyOf = (row) => row.dead_letter?.reason || row.reason?.reason || "";
const counted = (group) => html`<span class="num">${number(group.count)}${group.more ? "+" : ""}</span>`;

export function Dead() {
  const query = route.value.query;
  const [chosenFilters, since, sought] = [FILTERS.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value), query.get("since") ?? "", query.get("q") ?? ""];
  const where = Object.fromEntries(chosenFilters);
  const picks = chosenFilters.length > 0 || since !== "" || sought !== "";
  const groupsPath = `/v1/dead-letters?${new URLSearchParams(where)}`;
  const groups = usePoll(isAdmin() ? groupsPath : null, 10_000, having("groups"));
  const source = { ...where, ...(since ? { since } : {}) };
  const path = `/v1/deliveries?${new URLSearchParams({ state: "dead", limit: String(SHOWN_MAX), newest: "true", ...source })}`;
  const feed = usePoll(isAdmin() && picks ? path : null, 10_000, async (each, how) => {
    const { data, next } = await onePage(each, how);
    return { rows: data.deliveries, cut: next !== null };
  });
  const [picked, setPicked] = useState(new Set());
  if (!isAdmin()) return html`<${View} title=${text.nav.dead}><${Empty}>${text.needs("admin")}<//><//>`;
  const found = feed.data?.rows ?? [];
  const low = sought.toLowerCase();
  const rows = found.filter((row) => !low || JSON.stringify([row.reason, row.dead_letter, row.subscription]).toLowerCase().includes(low));
  const chosen = rows.filter((row) => picked.has(row.id));
  const all = groups.data?.groups ?? [];
  const names = (key) => [...new Set([...all.map((group) => group[key]), where[key]])].filter(Boolean).sort();
  const begin = (verb, deliveries) => {
    const [id, goOn] = [unique(), goLater()]; // asked for again under its id, it is the same job
    return async () => {
      await request("POST", "/v1/replays", { body: { id, source: { deliveries }, target: verb === "purge" ? { purge: true } : {} }, safe: true });
      setPicked(new Set());
      goOn(`replays/${id}`);
      return words.begun;
    };
  };
  const confirm = (verb, title, what, name, deliveries) => ask({ title, button: words[verb], what, name: verb === "purge" ? name : undefined, act: begin(verb, deliveries) });
  const some = (verb) => confirm(verb, words[verb], words.chosenWhat[verb](chosen.length), String(chosen.length), { ids: chosen.map((row) => row.id) });
  const everything = async (verb) => {
    const from = route.value.path;
    const body = { source: { deliveries: source }, target: verb === "purge" ? { purge: true } : {}, dry_run: true };
    const { data } = await request("POST", "/v1/replays", { body, reads: true });
    if (route.value.path !== from) return text.done;
    const refused = Object.entries(data.refused_count).map(([code, many]) => `${visible(code)} ${number(many)}`).join(", ");
    confirm(verb, words.all(words[verb]), html`<strong>${words.would(number(data.count) + (data.complete ? "" : "+"), Object.values(source).map((each) => visible(each)).join(", "))}</strong>
      ${refused && html` <span>${words.cannot(refused)}</span>`}
      <ul class="plain">${data.sample.slice(0, 5).map((row) => html`<li>${visible(row.came_from)} · ${visible(row.id)}</li>`)}</ul>`, where.subscription || "all", source);
    return words.dryRun(number(data.count));
  };
  return html`<${View} title=${text.nav.dead} feed=${[groups, feed]} actions=${all.length > 0 && !sought && html`
      <${Action} label=${words.all(words.retry)} act=${() => everything("retry")} />
      <${Action} tone="danger" label=${words.all(words.purge)} act=${() => everything("purge")} />`}>
    <p class="note">${words.what}</p>
    <div class="bar"><${Search} label=${words.find} value=${sought} onInput=${(q) => filter({ q })} />
      ${FILTERS.map((name) => html`<${Select} label=${words.filters[name]} value=${where[name] ?? ""} onChange=${(each) => filter({ [name]: each })}
        options=${[["", text.all], ...names(name).map((each) => [each, each])]} />`)}
      <${Select} label=${words.filters.since} value=${since} onChange=${(each) => filter({ since: each })} options=${[["", text.all], ...["1h", "1d", "7d"].map((each) => [each, text.last(each)])]} />
      ${picks && html`<a href=${link("dead")}>${words.everyGroup}</a>`}</div>
    ${groups.data && html`<${Table} label=${words.groups} rows=${all} empty=${chosenFilters.length ? text.nothingFound : words.none} keyOf=${(group) => `${group.code} ${group.subscription}`}
      open=${(group) => link("dead", { code: group.code, subscription: group.subscription })} columns=${[
        { title: words.code, show: (group) => html`<${State} of=${group.code} />` },
        { title: words.meaning, class: "grow mid", show: (group) => group.meaning },
        { title: text.subscription, show: (group) => html`<${Name} of=${group.subscription} />` },
        { title: words.filters.endpoint, class: "wide", show: (group) => group.endpoint && html`<a href=${link(`endpoints/${segment(group.endpoint)}`)}><${Name} of=${group.endpoint} /></a>` },
        { title: words.count, class: "r", show: counted },
        { title: words.first, class: "wide", show: (group) => html`<${Time} at=${group.first_at} />` },
        { title: words.last, class: "mid", show: (group) => html`<${Time} at=${group.last_at} />` },
      ]} />${groups.data.more && html`<p class="quiet">${words.moreGroups}</p>`}`}
    ${picks && html`<h2>${words.list}</h2>
    ${chosen.length > 0 && html`<div class="bar selection" role="status"><strong>${words.chosen(chosen.length)}</strong>
      <button onClick=${() => some("retry")}>${words.retry}</button>
      <button class="danger" onClick=${() => some("purge")}>${words.purge}</button></div>`}
    ${feed.data && html`<p class="quiet">${text.shown(rows.length, found.length)}${feed.data.cut ? ` · ${words.cut(number(SHOWN_MAX))}` : ""}</p>
      <${Table} label=${text.nav.dead} rows=${rows} empty=${text.nothingFound} picked=${picked} onPick=${setPicked}
      open=${(row) => link(`dead/${row.id}`)} columns=${[
        { title: text.time, show: (row) => html`<${Time} at=${row.at} />` },
        { title: text.subscription, show: (row) => html`<${Name} of=${row.subscription} />` },
        { title: words.code, show: (row) => html`<${State} of=${codeOf(row)} />` },
        { title: text.reason, class: "grow mid", show: (row) => html`<${Name} of=${whyOf(row)} />` },
        { title: words.attempts, class: "r wide", show: (row) => html`<${Num} value=${row.attempts} />` },
        { title: text.size, class: "r wide", show: (row) => html`<${Num} value=${row.octets} unit="bytes" />` },
      ]} />`}`}
    <${Same} path=${picks ? path : groupsPath} cli=${`gateway dlq ${picks ? "list" : "groups"}${Object.entries(source).map(([name, each]) => ` --${name} ${each}`).join("")}`} />
  <//>`;
}

export function DeadPage({ raw }) {
  const path = `/v1/deliveries/${raw}`;
  const feed = usePoll(`${path}?body_max=${PART_MAX}`, 10_000);
  const row = feed.data;
  return html`<${View} title=${words.one} crumbs=${[[text.nav.dead, "dead"]]} feed=${feed} actions=${row && html`
      <${Action} label=${words.retry} done=${words.retried} act=${async () => { await request("POST", `${path}:retry`); feed.reload(); }} />
      <button class="danger" onClick=${() => ask({ title: words.purge, what: words.purgeOne, name: row.id, act: async () => {
        const goOn = goLater();
        await request("POST", `${path}:purge`);
        goOn("dead");
      } })}>${words.purge}</button>`}>
    ${row && html`<p class="lead"><${State} of=${row.state} /> <${State} of=${codeOf(row)} /> ${visible(whyOf(row))}</p>
      <p><a href=${link(`messages/${row.message_id}`)}>${words.story}</a> · <a href=${link(`subscriptions/${segment(row.subscription)}`)}>${text.subscription} <${Name} of=${row.subscription} /></a></p>
      ${row.message ? html`<${Message} of=${row.message} shown=${row.payload_bytes} size=${row.octets} path=${`${path}/body`} name=${`${row.id}.bin`} />` : html`<${Empty}>${words.unreadable}<//>`}
      <${Same} path=${path} cli=${`gateway dlq show ${raw}`} />`}
  <//>`;
}
