// One search over names and messages: what the gateway found, and what it did not search and why.

import { Fragment, html, localTime, useEffect, useState, visible } from "./base.js";
import { get, usePoll } from "./api.js";
import { filter, link, route, viewOf } from "./route.js";
import { Action, Empty, Name, Same, Search, Staleness, State, Table, Time, View } from "./parts.js";
import { text } from "./text.js";

const words = text.search;
const OF_MESSAGES = ["message", "scheduled"];
const OF_NAMES = Object.keys(words.kinds).filter((kind) => !OF_MESSAGES.includes(kind));
const pathOf = (sought, kinds) => `/v1/search?${new URLSearchParams([["q", sought], ...kinds.map((kind) => ["kind", kind])])}`;

export function Found() {
  const sought = (route.value.query.get("q") ?? "").trim();
  const [typed, setTyped] = useState(sought);
  const [asked, setAsked] = useState(0); // how often somebody pressed Enter: what came meanwhile is found, too
  useEffect(() => document.querySelector("main [data-search]")?.focus(), []);
  return html`<${View} title=${words.title}>
    <form class="bar" onSubmit=${(event) => { event.preventDefault(); filter({ q: typed.trim() }); setAsked(asked + 1); }}>
      <${Search} label=${words.find} placeholder=${words.hint} value=${typed} onInput=${setTyped} /><button>${text.messages.open}</button></form>
    ${sought === "" ? html`<${Empty}>${words.what}<//>` : html`<${Answer} key=${`${sought} ${asked}`} sought=${sought} />`}
    <${Same} path=${`/v1/search?${new URLSearchParams({ q: sought })}`} cli=${`gateway search ${JSON.stringify(sought)}`} />
  <//>`;
}

function Answer({ sought }) {
  const ofNames = usePoll(pathOf(sought, OF_NAMES)); // they do not wait for the search of messages, which takes longer
  const ofMessages = usePoll(pathOf(sought, OF_MESSAGES), 60_000);
  const [more, setMore] = useState({}); // kind -> the rows of further pages, and how its search stands since
  const answers = [ofNames.data, ofMessages.data].filter(Boolean);
  const first = answers.flatMap((each) => each.found);
  const only = answers.length === 2 && first.length > 0 && first.every((row) => row.match === "id") ? new Set(first.map((row) => viewOf(row.path))) : null;
  useEffect(() => { if (only?.size === 1 && !only.has(null)) location.replace([...only][0]); }, [ofNames.data, ofMessages.data]);
  const found = [...first, ...Object.values(more).flatMap((each) => each.rows)];
  const kinds = answers.flatMap((each) => each.kinds).map((each) => more[each.kind]?.kind ?? each);
  const gaps = [...answers.flatMap((each) => each.gaps).filter((each) => !more[each.kind]), ...Object.values(more).flatMap((each) => each.gaps)];
  const further = (kind, told) => async () => {
    const answer = await get(kind.next);
    setMore((before) => ({ ...before, [kind.kind]: { rows: [...(before[kind.kind]?.rows ?? []), ...answer.found], kind: answer.kinds[0], gaps: answer.gaps } }));
    return told(answer.found.length);
  };
  const names = found.filter((row) => !OF_MESSAGES.includes(row.kind));
  const messages = found.filter((row) => OF_MESSAGES.includes(row.kind));
  const message = kinds.find((each) => each.kind === "message");
  const open = (row) => viewOf(row.path);
  return html`<${Fragment}>
    <${Staleness} of=${[ofNames, ofMessages]} />
    ${ofNames.data && html`<section><h2>${words.names}</h2>
      <${Table} label=${words.names} rows=${names} empty=${words.noName} keyOf=${(row) => row.path} open=${open} columns=${[
        { title: text.name, class: "grow", show: (row) => html`<${Name} of=${row.name} />` },
        { title: words.kind, show: (row) => html`${words.kinds[row.kind]} ${row.state && html`<${State} of=${row.state} />`}` },
        { title: text.broker, class: "mid", show: (row) => row.broker && html`<${Name} of=${row.broker} />` },
      ]} />
      ${kinds.filter((each) => each.next && each.kind !== "message").map((each) => html`<${Action} key=${each.kind} tone="small" label=${words.more(words.kinds[each.kind])} act=${further(each, words.moreFound)} /> `)}</section>`}
    ${message && message.searched !== "none" && html`<section><h2>${text.nav.messages}</h2>
      <${Table} label=${text.nav.messages} rows=${messages} empty=${message.next ? text.messages.noneHere : text.messages.none} keyOf=${(row) => row.path} open=${open} columns=${[
        { title: text.time, show: (row) => html`<${Time} at=${row.at} />` },
        { title: text.state, show: (row) => html`<${State} of=${row.state} />` },
        { title: words.match, show: (row) => words.matches[row.match] ?? row.match },
        { title: text.messages.filters.routing_key, class: "grow", show: (row) => html`<${Name} of=${row.routing_key} />` },
        { title: text.broker, class: "mid", show: (row) => html`<${Name} of=${row.broker} />` },
      ]} />
      ${message.next && html`<p class="row"><${Action} label=${text.messages.further} act=${further(message, text.messages.furtherFound)} />
        <span class="quiet">${message.reached && words.reached(localTime(new Date(message.reached)))}</span></p>`}</section>`}
    ${gaps.length > 0 && html`<details class="more" open=${answers.length === 2 && found.length === 0}><summary>${words.gaps(gaps.length)}</summary>
      <ul class="plain">${gaps.map((each) => html`<li key=${`${each.kind} ${each.broker} ${each.reason}`}><strong>${words.kinds[each.kind]}</strong>
        ${each.broker && html` <${Name} of=${each.broker} />`}: ${visible(each.reason)}</li>`)}</ul></details>`}<//>`;
}
