// What is wrong, at a glance, and what happened in the last day.

import { Fragment, html, number, short, skew, useMemo, visible } from "./base.js";
import { isAdmin, may, usePoll, having } from "./api.js";
import { link, viewOf } from "./route.js";
import { Chart, Name, Same, State, Time, View } from "./parts.js";
import { text } from "./text.js";

const words = text.overview;
const HOURS = 24;
const TILES = new Set(["brokers", "queues", "bridges", "endpoints", "subscriptions", "taps", "replays"]);

export function Overview() {
  const feed = usePoll("/v1/overview", 5000, having("troubles"));
  const since = useMemo(() => new Date(Math.floor((Date.now() + skew.value) / 3_600_000) * 3_600_000 - (HOURS - 1) * 3_600_000).toISOString(), [skew.value]);
  // What is wrong comes first: the chart is asked for once that is there.
  const counts = usePoll((feed.data || feed.error) && may("history") ? `/v1/statistics?by=kind&limit=1000&since=${since}` : null, 15_000);
  const found = feed.data;
  const wrong = found?.troubles ?? [];
  const bad = wrong.filter((each) => each.severity === "bad").length;
  return html`<${View} title=${words.title} feed=${[feed, counts]}>
    ${found && html`<${Fragment}>
      <section class=${`verdict ${bad ? "bad" : wrong.length ? "warn" : "good"}`} role="status">
        <strong>${bad ? words.bad(bad) : wrong.length ? words.warn(wrong.length) : isAdmin() ? words.good : words.goodSeen}</strong>
      </section>
      ${wrong.length > 0 && html`<ul class="troubles">${wrong.map((each) => html`<${Trouble} key=${`${each.path} ${each.code}`} of=${each} />`)}</ul>`}
      ${found.more && html`<p class="quiet">${words.more}</p>`}
      <section class="tiles">
        ${found.kinds.filter((each) => each.count > 0 || TILES.has(`${each.kind}s`)).map((each) => html`<${Tile} of=${each} troubles=${wrong} />`)}
        ${found.backlog && amount(words.waiting, found.backlog.waiting + found.backlog.out, words.messages, "subscriptions")}
        ${found.backlog && found.backlog.dead > 0 && amount(text.nav.dead, found.backlog.dead, words.messages, "dead")}
        ${found.bridged !== null && found.kinds.some((each) => each.kind === "bridge" && each.count > 0) && amount(words.bridged, found.bridged, words.perSecond, "bridges")}
        ${found.events && Object.entries(SHOWN).filter(([kind]) => found.events[kind]).map(([kind, label]) => amount(label, found.events[kind], words.perSecondHour, "messages"))}
      </section>
    <//>`}
    ${may("history") && html`<section><h2>${words.hours}</h2>
      ${counts.data && html`<${Hours} hours=${counts.data.hours} since=${since} />`}</section>`}
    <${Same} path="/v1/overview" cli="gateway overview" />
  <//>`;
}

function Trouble({ of }) {
  const view = viewOf(of.path);
  const what = html`<span class="kind">${words.kinds[of.kind] ?? of.kind}</span> <${Name} of=${of.name} title=${false} />`;
  return html`<li class=${of.severity === "bad" ? "bad" : "warn"}>
    ${view ? html`<a href=${view}>${what}</a>` : html`<span>${what}</span>`}
    <span class=${`state ${of.severity === "bad" ? "bad" : "warn"}`}>${visible(of.code)}</span>
    <span class="why">${visible(of.reason)}${of.message && html` <a href=${link(`messages/${of.message}`)}>${words.theMessage}</a>`}</span>
    ${of.since && html`<span class="quiet since"><${Time} at=${of.since} /></span>`}
  </li>`;
}

function amount(title, value, unit, path) {
  return html`<a class="tile" href=${link(path)}><span class="quiet">${title}</span><b class="num" title=${number(value)}>${short(value)}</b><span class="quiet">${unit}</span></a>`;
}

function Tile({ of, troubles }) {
  const bad = troubles.some((each) => each.kind === of.kind && each.severity === "bad");
  const content = html`<span class="quiet">${text.nav[`${of.kind}s`]}</span>
    <b class="num">${number(of.count)}${of.more ? "+" : ""}</b>
    ${of.count === 0 ? html`<span class="quiet">${of.more ? words.unread : words.none}</span>`
      : of.well === of.count ? html`<span class="state good">${of.kind === "queue" ? words.allTaken : words.allWell}</span>`
      : html`<span class=${`state ${bad ? "bad" : "warn"}`}>${(of.kind === "queue" ? words.notTaken : words.notWell)(of.count - of.well)}</span>`}`;
  return html`<a class="tile" href=${link(`${of.kind}s`)}>${content}</a>`;
}

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

