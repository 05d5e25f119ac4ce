// The frame of the console: login, navigation, theme, keys, and which view belongs to an address.

import { Fragment, computed, effect, html, now, render, signal, skew, span, useEffect, useErrorBoundary, useRef, useState, visible } from "./base.js";
import { asError, begin, epoch, feeds, isAdmin, isLate, leave, may, mayPublish, paused, scopes, session, usePulse } from "./api.js";
import { Login, returned } from "./login.js";
import { go, link, route } from "./route.js";
import { Dialog, Empty, Name, Problem, View, dialog, notices } from "./parts.js";
import { Overview } from "./overview.js";
import { BrokerPage, Brokers, Declare, QueuePage, Queues } from "./queues.js";
import { LookPage } from "./look.js";
import { MessagePage, Messages } from "./messages.js";
import { Publish } from "./publish.js";
import { Dead, DeadPage } from "./dead.js";
import { AttemptPage } from "./endpoints.js";
import { ExchangePage } from "./exchanges.js";
import { FrontPage, Fronts } from "./fronts.js";
import { Edit, KINDS, List, Page } from "./resources.js";
import { Events, ReplayPage, Replays, Schedules } from "./work.js";
import { Audit, Keys, Me } from "./access.js";
import { Found } from "./search.js";
import { text } from "./text.js";

const onBrokers = () => scopes().some((each) => /^(admin|publish|route|consume|subscribe|broker)/.test(each));
const consumes = () => may("consume") || may("subscribe");

// Path of a view -> the key that leads there behind `g`, and who is offered it.
const NAV = [
  [null, [["", "h", () => true], ["brokers", "o", onBrokers], ["queues", "q", () => may("broker") || may("consume")]]],
  ["messages", [["messages", "m", () => may("history")], ["publish", "p", () => mayPublish()], ["dead", "d", isAdmin], ["schedules", "s", () => mayPublish()], ["events", "v", () => may("history")]]],
  ["resources", [["subscriptions", "u", consumes], ["endpoints", "e", () => may("endpoint")], ["bridges", "b", isAdmin], ["taps", "t", isAdmin], ["fronts", "f", isAdmin], ["replays", "r", isAdmin]]],
  ["access", [["keys", "k", isAdmin], ["audit", "a", isAdmin], ["me", "i", () => true]]],
];
const ALL = NAV.flatMap(([, views]) => views);

const theme = signal(stored() ?? "auto");

function stored() { try { return localStorage.getItem("theme"); } catch { return null; } }

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  try { localStorage.setItem("theme", theme.value); } catch { /* then it is forgotten */ }
});

// ------------------------------------------------------------------------------------------------ views

function view({ raw, parts }) {
  const [kind, one, two] = raw;
  if (!kind) return html`<${Overview} />`;
  if (kind === "brokers") return one ? html`<${BrokerPage} key=${one} raw=${one} />` : html`<${Brokers} />`;
  if (kind === "queues") {
    if (one === "new") return html`<${Declare} key="queues" kind="queues" />`;
    if (raw[3] === "messages") return html`<${LookPage} key=${raw.join("/")} rawBroker=${one} raw=${two} />`;
    return two !== undefined ? html`<${QueuePage} key=${`${one}/${two}`} rawBroker=${one} raw=${two} />` : html`<${Queues} />`;
  }
  if (kind === "exchanges" && one === "new") return html`<${Declare} key="exchanges" kind="exchanges" />`;
  if (kind === "exchanges" && two !== undefined) return html`<${ExchangePage} key=${`${one}/${two}`} rawBroker=${one} raw=${two} />`;
  if (kind === "fronts") return one ? html`<${FrontPage} key=${one} raw=${one} />` : html`<${Fronts} />`;
  if (kind === "messages") return one ? html`<${MessagePage} key=${one} raw=${one} />` : html`<${Messages} />`;
  if (kind === "dead") return one ? html`<${DeadPage} key=${one} raw=${one} />` : html`<${Dead} />`;
  if (kind === "replays") return one ? html`<${ReplayPage} key=${one} raw=${one} />` : html`<${Replays} />`;
  if (kind in KINDS) {
    if (one === "new" && !two) return html`<${Edit} key=${`${kind} new`} kind=${kind} raw=${null} />`;
    if (kind === "endpoints" && two === "attempts" && raw[3]) return html`<${AttemptPage} key=${raw.join("/")} raw=${one} name=${parts[1]} id=${parts[3]} />`;
    if (two === "edit") return html`<${Edit} key=${`${kind} ${one} edit`} kind=${kind} raw=${one} />`;
    return one ? html`<${Page} key=${`${kind} ${one}`} kind=${kind} raw=${one} />` : html`<${List} key=${kind} kind=${kind} />`;
  }
  const simple = { search: Found, publish: Publish, schedules: Schedules, events: Events, keys: Keys, audit: Audit, me: Me }[kind];
  if (simple) return html`<${simple} key=${kind} />`;
  return html`<${View} title=${text.notFound}><${Empty}>${text.noView(parts.join("/"))}<//><//>`;
}

const place = computed(() => (route.value.raw[0] === "exchanges" ? "brokers" : route.value.raw[0] ?? ""));

// ------------------------------------------------------------------------------------------------ frame

const liveness = computed(() => {
  if (paused.value) return { of: "paused", why: text.live.pausedWhy };
  if (session.value.state === "away") return { of: "stale", why: session.value.problem };
  const bad = Object.entries(feeds.value).filter(([path, each]) => each.failed || isLate(path)).map(([, each]) => each);
  if (bad.length) {
    const oldest = Math.min(...bad.map((each) => each.at || now.value));
    return { of: "stale", why: `${text.live.staleWhy(span((now.value - oldest) / 1000))} ${bad.find((each) => each.failed)?.failed ?? ""}` };
  }
  return { of: "live", why: text.live.liveWhy };
});

function Liveness() {
  const { of, why } = liveness.value;
  usePulse();
  useEffect(() => { document.documentElement.dataset.live = of; }, [of]);
  return html`<button class=${`liveness ${of}`} title=${visible(why)} aria-label=${`${text.live[of]}. ${visible(why)} ${text.live.toggle}`}
    onClick=${() => { paused.value = !paused.value; }}><span class="dot" aria-hidden="true"></span>${text.live[of]}</button>`;
}

const GLASS = html`<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" aria-hidden="true"><circle cx="6.8" cy="6.8" r="4.6" /><path d="M10.4 10.4 14.2 14.2" /></svg>`;

function Frame() {
  const [open, setOpen] = useState(false);
  const main = useRef(null);
  const path = route.value.path;
  useEffect(() => {
    setOpen(false);
    const title = main.current?.querySelector("h1");
    document.title = `${title?.textContent || text.overview.title} · ${text.product}`;
    scrollTo(0, 0);
  }, [path]);
  const { state, caller } = session.value;
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>${text.skip}</a>
    <header class="top">
      <button class="menu" aria-expanded=${open} aria-controls="nav" onClick=${() => setOpen(!open)} aria-label=${text.menu}>☰</button>
      <a class="brand" href="#/"><img src="/console/icon.svg" alt="" width="24" height="24" /> ${text.product}</a>
      <span class="space"></span>
      ${caller && html`<a class="button find" href="#/search" aria-label=${text.search.title} title=${text.search.title}>${GLASS}</a>`}
      <${Liveness} />
      <button class="small" onClick=${() => { theme.value = { auto: "dark", dark: "light", light: "auto" }[theme.value]; }}
        aria-label=${text.themeNow(text.themes[theme.value])} title=${text.themeNow(text.themes[theme.value])}>${{ auto: "◐", dark: "☾", light: "☀" }[theme.value]}</button>
      <button class="small" onClick=${help} aria-label=${text.keys.title} title=${text.keys.title}>?</button>
      ${caller?.credential && html`<button class="small" onClick=${leave}>${text.logout}</button>`}
    </header>
    <nav id="nav" class=${open ? "side open" : "side"} aria-label=${text.main}>
      ${NAV.map(([group, views]) => {
        const offered = views.filter(([, , allowed]) => allowed());
        return offered.length > 0 && html`<div class="views" key=${group ?? "first"}>${group && html`<h2>${text.groups[group]}</h2>`}<ul>${offered.map(([to, letter]) => html`<li key=${to}>
          <a href=${link(to)} aria-current=${place.value === to ? "page" : undefined}><span>${text.nav[to || "overview"]}</span><kbd aria-hidden="true">g ${letter}</kbd></a></li>`)}</ul></div>`;
      })}
      ${caller && html`<p class="quiet me"><${Name} of=${caller.name} /><br />${text.version(caller.version)}</p>`}
      ${caller && skew.value !== 0 && html`<p class="quiet me clock">${text.clock(span(Math.abs(skew.value) / 1000))}</p>`}
    </nav>
    <main id="main" ref=${main} tabindex="-1">
      ${state === "away" && html`<div class="problem" role="alert"><strong>${text.away}</strong> ${visible(session.value.problem)} <button onClick=${() => begin()}>${text.again}</button></div>`}
      ${state === "unknown" && html`<p class="quiet" role="status">${text.loading}</p>`}
      ${caller && html`<${Shown} key=${path} />`}
    </main>
  </div>`;
}

// The view, or that it cannot show what the gateway has answered.
function Shown() {
  const [error, again] = useErrorBoundary();
  useEffect(() => {
    const timer = error && setTimeout(again, 5000);
    return () => clearTimeout(timer);
  }, [error]);
  if (!error) return view(route.value);
  return html`<${View} title=${text.notShown}><${Problem} error=${asError(error)} again=${again} /><//>`;
}

function Notices() {
  return html`<div class="notices" role="status" aria-live="polite">${notices.value.map((each) => html`<p key=${each.id} class=${each.tone}>${visible(each.words)}</p>`)}</div>`;
}

// ------------------------------------------------------------------------------------------------- keys

function help() {
  dialog.value = html`<${Dialog} title=${text.keys.title}><dl class="facts keys">
    ${text.keys.list.map(([keys, what]) => html`<div><dt><kbd>${keys}</kbd></dt><dd>${what}</dd></div>`)}
    ${ALL.filter(([, , allowed]) => allowed()).map(([to, letter]) => html`<div><dt><kbd>g ${letter}</kbd></dt><dd>${text.nav[to || "overview"]}</dd></div>`)}
  </dl><div class="buttons"><button autofocus onClick=${() => { dialog.value = null; }}>${text.close}</button></div><//>`;
}

let awaits = 0;

// Nobody means two things by a double click: the second click would act again, or on what the first one has put there.
addEventListener("click", (event) => {
  if (event.detail > 1 && event.target.closest?.("main button, dialog button")) { event.preventDefault(); event.stopPropagation(); }
}, true);

addEventListener("keydown", (event) => {
  const field = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (field) {
    if (event.key === "Escape" && !event.target.closest("dialog")) field.blur();
    return;
  }
  if (dialog.value || session.value.state !== "in") return;
  if (awaits && Date.now() - awaits < 1500) {
    awaits = 0;
    const found = ALL.find(([, letter, allowed]) => letter === event.key && allowed());
    if (found) { event.preventDefault(); go(found[0]); }
    return;
  }
  awaits = 0;
  if (event.key === "g") awaits = Date.now();
  else if (event.key === "?") { event.preventDefault(); help(); }
  else if (event.key === ".") { event.preventDefault(); paused.value = !paused.value; }
  else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.focus(); search.select?.(); } else { event.preventDefault(); go("search"); }
  }
});

function Console() {
  return html`<${Fragment}><${Frame} /><${Notices} />${dialog.value}
    ${session.value.state === "out" && html`<${Login} key=${epoch.value} />`}<//>`;
}

if (returned) render(html`<main class="returned"><h1>${text.login.returned}</h1><p>${text.login.returnedWhat}</p></main>`, document.getElementById("console"));
else {
  render(html`<${Console} />`, document.getElementById("console"));
  begin();
}

