// What is wrong, at a glance, and what happened in the last day.

import { Fragment, html, number, segment, short, useMemo, visible } from "./base.js";
import { all, isAdmin, may, scopes, usePoll } from "./api.js";
import { link } from "./route.js";
import { Chart, Name, State, Staleness, Time, View } from "./parts.js";
import { text } from "./text.js";

const words = text.overview;
const HOURS = 24;

async function read() {
  const ask = async (allowed, path, name) => (allowed ? all(`${path}?limit=1000`, name) : []);
  const consumes = may("consume") || may("subscribe");
  const onBrokers = scopes().some((each) => /^(admin|publish|route|consume|subscribe|broker)/.test(each));
  const [brokers, bridges, endpoints, subscriptions, taps] = await Promise.all([
    ask(onBrokers, "/v1/brokers", "brokers"), ask(isAdmin(), "/v1/bridges", "bridges"),
    ask(may("endpoint"), "/v1/endpoints", "endpoints"), ask(consumes, "/v1/subscriptions", "subscriptions"),
    ask(isAdmin(), "/v1/taps", "taps"),
  ]);
  return { brokers, bridges, endpoints, subscriptions, taps };
}

// What an operator should look at: {what, name, path, state, reason}.
export function troubles(found) {
  const rows = [];
  const add = (what, kind, row, reason, bad) => rows.push({
    what, name: row.name, path: `${kind}/${segment(row.name)}`, state: row.state, reason, bad, since: row.since,
  });
  for (const row of found.brokers) {
    if (row.state !== "up") add(words.broker, "brokers", row, row.reason || row.code, row.state !== "connecting");
    else if (row.alert) add(words.broker, "brokers", row, row.alert, false);
  }
  for (const row of found.bridges) {
    if (row.state === "error") add(words.bridge, "bridges", row, row.reason || row.last_error, true);
    else if (row.state !== "running" && row.state !== "starting") add(words.bridge, "bridges", row, row.reason || words.stoppedBy, false);
  }
  for (const row of found.endpoints) {
    if (row.state !== "active") add(words.endpoint, "endpoints", row, row.reason === row.state ? words.pausedBy : row.reason, row.state === "disabled" || row.state === "error");
  }
  for (const row of found.subscriptions) {
    if (row.reason) add(words.subscription, "subscriptions", row, row.reason, row.state !== "paused");
    else if (row.state === "paused") add(words.subscription, "subscriptions", row, words.pausedBy, false);
  }
  for (const row of found.taps) {
    if (row.state === "error" || row.state === "full") add(words.tap, "taps", row, row.reason || row.last_error, true);
    else if (row.state === "paused") add(words.tap, "taps", row, words.pausedBy, false);
  }
  return rows.sort((one, other) => Number(other.bad) - Number(one.bad));
}

export function Overview() {
  const feed = usePoll("overview", 5000, read);
  const since = useMemo(() => new Date(Math.floor(Date.now() / 3_600_000) * 3_600_000 - (HOURS - 1) * 3_600_000).toISOString(), []);
  const counts = usePoll(may("history") ? `/v1/statistics?by=kind&limit=1000&since=${since}` : null, 15_000);
  const found = feed.data;
  const wrong = found ? troubles(found) : [];
  const bad = wrong.filter((each) => each.bad).length;
  return html`<${View} title=${words.title} feed=${feed}>
    ${found && html`<${Fragment}>
      <section class=${`verdict ${bad ? "bad" : wrong.length ? "warn" : "good"}`} role="status">
        <strong>${bad ? words.bad(bad) : wrong.length ? words.warn(wrong.length) : words.good}</strong>
      </section>
      ${wrong.length > 0 && html`<ul class="troubles">${wrong.map((each) => html`<li key=${each.path} class=${each.bad ? "bad" : "warn"}>
        <a href=${link(each.path)}><span class="kind">${each.what}</span> <${Name} of=${each.name} title=${false} /></a>
        <${State} of=${each.state} />
        <span class="why">${visible(each.reason)}</span>
        ${each.since && html`<span class="quiet since"><${Time} at=${each.since} /></span>`}
      </li>`)}</ul>`}
      <section class="tiles">
        ${tile(text.nav.brokers, "brokers", found.brokers, (row) => row.state === "up")}
        ${isAdmin() && tile(text.nav.bridges, "bridges", found.bridges, (row) => row.state === "running")}
        ${may("endpoint") && tile(text.nav.endpoints, "endpoints", found.endpoints, (row) => row.state === "active")}
        ${(may("consume") || may("subscribe")) && tile(text.nav.subscriptions, "subscriptions", found.subscriptions, (row) => row.state === "active" && !row.reason)}
        ${isAdmin() && tile(text.nav.taps, "taps", found.taps, (row) => row.state === "running")}
        ${found.bridges.length > 0 && html`<a class="tile" href=${link("bridges")}><span class="quiet">${words.bridged}</span>
          <b class="num">${number(found.bridges.reduce((sum, row) => sum + row.rate, 0))}</b><span class="quiet">${words.perSecond}</span></a>`}
      </section>
    <//>`}
    ${may("history") && html`<section><h2>${words.hours}</h2>
      ${counts.error && html`<${Staleness} ...${counts} />`}
      ${counts.data && html`<${Hours} hours=${counts.data.hours} since=${since} />`}</section>`}
  <//>`;
}

function tile(title, path, rows, isWell) {
  const well = rows.filter(isWell).length;
  return html`<a class="tile" href=${link(path)}><span class="quiet">${title}</span>
    <b class="num">${number(rows.length)}</b>
    ${rows.length === 0 ? html`<span class="quiet">${words.none}</span>`
      : well === rows.length ? html`<span class="state good">${words.allWell}</span>`
      : html`<span class=${`state ${rows.some((row) => WORST.has(row.state)) ? "bad" : "warn"}`}>${words.notWell(rows.length - well)}</span>`}</a>`;
}

const WORST = new Set(["down", "failed", "error", "full", "disabled", "blocked", "closed"]);
const SHOWN = { confirmed: words.published, delivered: words.delivered, forwarded: words.forwarded };
const WRONG = new Set(["refused", "unroutable", "unknown", "not_sent", "dead", "dead_lettered", "rejected", "attempt_failed", "lease_expired", "lease_lost"]);

function Hours({ hours, since }) {
  const first = Date.parse(since) / 1000;
  const times = Array.from({ length: HOURS }, (_, index) => first + index * 3600);
  const at = new Map(times.map((time, index) => [time, index]));
  const series = [...Object.entries(SHOWN).map(([kind, label]) => ({ kind, label })), { kind: null, label: words.failures }]
    .map(({ kind, label }) => {
      const values = times.map(() => 0);
      for (const each of hours) {
        const place = at.get(Date.parse(each.hour) / 1000);
        if (place !== undefined && (kind === null ? WRONG.has(each.kind) : each.kind === kind)) values[place] += each.events;
      }
      return { label, values };
    });
  series.splice(1, 0, series.pop()); // what went wrong has the color of that
  const sums = {};
  for (const each of hours) sums[each.kind] = (sums[each.kind] ?? 0) + each.events;
  const kinds = Object.entries(sums).sort((one, other) => other[1] - one[1]);
  if (!kinds.length) return html`<p class="empty">${words.nothingYet}</p>`;
  return html`<${Chart} times=${times} series=${series} label=${words.hours} />
    <ul class="counts">${kinds.map(([kind, many]) => html`<li key=${kind}><a href=${link("messages", { state: STATES[kind] ?? "" })}>
      <${State} of=${kind} /> <b class="num" title=${number(many)}>${short(many)}</b></a></li>`)}</ul>`;
}

const STATES = {
  confirmed: "confirmed", refused: "refused", unroutable: "unroutable", unknown: "unknown", not_sent: "not_sent",
  dead: "dead", dead_lettered: "dead_lettered", rejected: "rejected", delivered: "delivered", stored: "stored",
  acknowledged: "acknowledged", forwarded: "forwarded", scheduled: "scheduled", cancelled: "cancelled",
};

