// Dead letters that the ledger keeps: grouped by reason, and sent again one by one, as a selection, or all.

import { html, number, segment, useMemo, useState, visible } from "./base.js";
import { all, isAdmin, request, usePoll } from "./api.js";
import { filter, link, route } from "./route.js";
import { Action, Empty, Name, Num, Same, Search, Select, State, Table, Time, View, Dialog, Problem, ask, dialog } from "./parts.js";
import { Message } from "./messages.js";
import { text } from "./text.js";

const words = text.dead;
const READ_MAX = 5000;
const codeOf = (row) => row.dead_letter?.code || row.reason?.code || words.noCode;
const whyOf = (row) => row.dead_letter?.reason || row.reason?.reason || "";

export function Dead() {
  const query = route.value.query;
  const subscription = query.get("subscription") ?? "";
  const code = query.get("code") ?? "";
  const sought = query.get("q") ?? "";
  const path = `/v1/deliveries?${new URLSearchParams({ state: "dead", limit: "1000", newest: "true", ...(subscription ? { subscription } : {}) })}`;
  const feed = usePoll(isAdmin() ? path : null, 10_000, (each, partial) => all(each, "deliveries", { most: READ_MAX, onPage: partial }));
  const subscriptions = usePoll("/v1/subscriptions?limit=1000", 60_000, (each) => all(each, "subscriptions"));
  const [picked, setPicked] = useState(new Set());
  const found = feed.data ?? [];
  const groups = useMemo(() => {
    const made = new Map();
    for (const row of found) {
      const group = made.get(codeOf(row)) ?? { code: codeOf(row), count: 0, newest: row.at, why: whyOf(row) };
      group.count += 1;
      made.set(group.code, group);
    }
    return [...made.values()].sort((one, other) => other.count - one.count);
  }, [found]);
  const low = sought.toLowerCase();
  const rows = found.filter((row) => (!code || codeOf(row) === code) && (!low || JSON.stringify([row.reason, row.dead_letter, row.subscription]).toLowerCase().includes(low)));
  const chosen = rows.filter((row) => picked.has(row.id));
  const names = [...new Set([...(subscriptions.data ?? []).map((each) => each.name), ...found.map((row) => row.subscription)])].sort();
  if (!isAdmin()) return html`<${View} title=${text.nav.dead}><${Empty}>${text.needs("admin")}<//><//>`;
  const each = (verb) => {
    const list = chosen;
    dialog.value = html`<${Job} title=${words[verb]} total=${list.length} step=${async (done) => {
      const row = list[done];
      if (!row) return null;
      try { await request("POST", `/v1/deliveries/${row.id}:${verb}`); } catch (error) {
        if (error.status !== 404 && error.status !== 409) throw error; // settled in between
      }
      return 1;
    }} end=${() => { setPicked(new Set()); feed.reload(); }} />`;
  };
  const everything = async (verb) => {
    const body = { filter: subscription ? { subscription } : {} };
    const { data } = await request("POST", `/v1/deliveries:${verb}`, { body: { ...body, dry_run: true } });
    const run = () => {
      dialog.value = html`<${Job} title=${words[verb]} total=${data.count} step=${async (done, progress) => {
        if (progress.last) return null;
        const answer = await request("POST", `/v1/deliveries:${verb}`, { body });
        progress.last = !answer.data.more;
        return answer.data.count;
      }} end=${feed.reload} />`;
    };
    ask({
      title: words.all(words[verb]), button: words[verb],
      what: html`<strong>${words.would(number(data.count) + (data.more ? "+" : ""), subscription)}</strong>
        <ul class="plain">${data.sample.slice(0, 5).map((row) => html`<li>${visible(row.subscription)} · ${visible(codeOf(row))} · ${visible(whyOf(row)).slice(0, 120)}</li>`)}</ul>`,
      name: verb === "purge" ? (subscription || "all") : undefined,
      act: async () => { setTimeout(run, 0); return words.begun; },
    });
    return words.dryRun(number(data.count));
  };
  return html`<${View} title=${text.nav.dead} feed=${feed} actions=${found.length > 0 && html`
      <${Action} label=${words.all(words.retry)} act=${() => everything("retry")} />
      <${Action} tone="danger" label=${words.all(words.purge)} act=${() => everything("purge")} />`}>
    <p class="note">${words.what}</p>
    <div class="bar"><${Search} label=${words.find} value=${sought} onInput=${(q) => filter({ q })} />
      <${Select} label=${text.subscription} value=${subscription} onChange=${(name) => filter({ subscription: name })} options=${[["", text.all], ...names.map((name) => [name, name])]} />
      <span class="quiet">${text.shown(rows.length, found.length)}${found.length >= READ_MAX ? ` · ${words.cut(number(READ_MAX))}` : ""}</span></div>
    ${groups.length > 0 && html`<section class="tiles">${groups.map((group) => html`<button class=${`tile ${group.code === code ? "on" : ""}`} aria-pressed=${group.code === code}
      onClick=${() => filter({ code: group.code === code ? "" : group.code })}><span class="quiet">${visible(group.code)}</span><b class="num">${number(group.count)}</b>
      <span class="quiet clip">${visible(group.why) || html`<${Time} at=${group.newest} />`}</span></button>`)}</section>`}
    ${chosen.length > 0 && html`<div class="bar selection" role="status"><strong>${words.chosen(chosen.length)}</strong>
      <button onClick=${() => each("retry")}>${words.retry}</button>
      <button class="danger" onClick=${() => ask({ title: words.purge, what: words.purgeChosen(chosen.length), name: String(chosen.length), act: async () => { setTimeout(() => each("purge"), 0); return words.begun; } })}>${words.purge}</button></div>`}
    ${feed.data && html`<${Table} label=${text.nav.dead} rows=${rows} empty=${found.length ? text.nothingFound : words.none} picked=${picked} onPick=${setPicked}
      open=${(row) => link(`dead/${row.id}`)} columns=${[
        { title: text.time, show: (row) => html`<${Time} at=${row.at} />` },
        { title: text.subscription, show: (row) => html`<${Name} of=${row.subscription} />` },
        { title: words.code, show: (row) => html`<${State} of=${codeOf(row)} />` },
        { title: text.reason, class: "grow mid", show: (row) => html`<${Name} of=${whyOf(row)} />` },
        { title: words.attempts, class: "r wide", show: (row) => html`<${Num} value=${row.attempts} />` },
        { title: text.size, class: "r wide", show: (row) => html`<${Num} value=${row.octets} unit="bytes" />` },
      ]} />`}
    <${Same} path=${path} cli=${`gateway dlq list${subscription ? ` --subscription ${subscription}` : ""}`} />
  <//>`;
}

export function DeadPage({ raw }) {
  const path = `/v1/deliveries/${raw}`;
  const feed = usePoll(path, 10_000);
  const row = feed.data;
  return html`<${View} title=${words.one} crumbs=${[[text.nav.dead, "dead"]]} feed=${feed} actions=${row && html`
      <${Action} label=${words.retry} done=${words.retried} act=${async () => { await request("POST", `${path}:retry`); feed.reload(); }} />
      <button class="danger" onClick=${() => ask({ title: words.purge, what: words.purgeOne, name: row.id, act: async () => {
        await request("POST", `${path}:purge`);
        location.hash = link("dead");
      } })}>${words.purge}</button>`}>
    ${row && html`<p class="lead"><${State} of=${row.state} /> <${State} of=${codeOf(row)} /> ${visible(whyOf(row))}</p>
      <p><a href=${link(`messages/${row.message_id}`)}>${words.story}</a> · <a href=${link(`subscriptions/${segment(row.subscription)}`)}>${text.subscription} <${Name} of=${row.subscription} /></a></p>
      ${row.message ? html`<${Message} of=${row.message} />` : html`<${Empty}>${words.unreadable}<//>`}
      <${Same} path=${path} cli=${`gateway dlq show ${raw}`} />`}
  <//>`;
}

// Something that is done part by part: how far it is, and a way to stop it.
function Job({ title, total, step, end }) {
  const [done, setDone] = useState(0);
  const [state, setState] = useState("ready");
  const [error, setError] = useState(null);
  const [stop] = useState({ asked: false });
  const run = async () => {
    setState("running");
    const progress = {};
    let count = 0;
    try {
      for (;;) {
        if (stop.asked) { setState("cancelled"); break; }
        const more = await step(count, progress);
        if (more === null) { setState("done"); break; }
        count += more;
        setDone(count);
      }
    } catch (failed) { setError(failed); setState("failed"); }
    end();
  };
  useMemo(() => { setTimeout(run, 0); }, []);
  const over = state !== "running" && state !== "ready";
  return html`<${Dialog} title=${title} closes=${over}><p role="status"><${State} of=${state} /> ${words.progress(number(done), number(total))}</p>
    <progress max=${Math.max(total, 1)} value=${done} aria-label=${title}></progress><${Problem} error=${error} />
    <div class="buttons">${over ? html`<button autofocus onClick=${() => { dialog.value = null; }}>${text.close}</button>`
      : html`<button onClick=${() => { stop.asked = true; }}>${words.stop}</button>`}</div><//>`;
}

