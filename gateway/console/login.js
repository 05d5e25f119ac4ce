// Logging in: with a key or a token that is typed, or at the issuer of tokens in a window of its own.
//
// The window comes back to this page with a code behind #, which browsers send to nobody. It passes the code on to the
// page that asked, by a channel of this origin, and closes. Only that page has the verifier, in its memory, so the code
// is of use to nobody else; what was typed in the page is still there.

import { html, signal, useEffect, useState, visible } from "./base.js";
import { begin, get, request, session } from "./api.js";
import { Dialog } from "./parts.js";
import { text } from "./text.js";

const words = text.login;
const CHANNEL = "gateway-login";

const came = new URLSearchParams(location.hash.slice(1));
export const returned = came.has("state") && (came.has("code") || came.has("error"));
if (returned) {
  history.replaceState(null, "", location.pathname);
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage({ state: came.get("state"), code: came.get("code"), error: came.get("error_description") || came.get("error") });
  channel.close();
  setTimeout(() => window.close(), 50);
}

const base64url = (octets) => btoa(String.fromCharCode(...octets)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

const issuer = signal(null); // where people log in; null: it is not known yet, or there is nothing

async function look() {
  try {
    const found = await get("/v1/login");
    issuer.value = found.client_id && globalThis.crypto?.subtle ? found : null; // without https there is no PKCE
  } catch { issuer.value = null; }
}

// A token of the issuer, by way of the person in front of the browser.
async function atIssuer(found) {
  const page = window.open("", "_blank", "popup,width=520,height=720"); // at once: later it would be blocked
  if (!page) throw new Error(words.blocked);
  const [verifier, state] = [random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const redirect = `${location.origin}/console`;
  const url = new URL(found.authorize_url);
  for (const [name, value] of Object.entries({
    response_type: "code", response_mode: "fragment", client_id: found.client_id, redirect_uri: redirect, scope: found.scope, state,
    code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256",
  })) url.searchParams.set(name, value);
  const answer = await new Promise((resolve) => {
    const channel = new BroadcastChannel(CHANNEL);
    waits?.();
    waits = () => { channel.close(); resolve(null); };
    channel.onmessage = ({ data }) => { if (data.state === state) { channel.close(); waits = null; resolve(data); } };
    page.location = url.href;
  });
  if (answer === null) return null;
  if (!answer.code) throw new Error(answer.error);
  return (await request("POST", "/v1/login", { body: { code: answer.code, code_verifier: verifier, redirect_uri: redirect } })).data.token;
}

let waits = null; // ends the wait for a window that was opened before

export function Login() {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState("");
  const [wrong, setWrong] = useState("");
  const { problem, caller } = session.value;
  useEffect(() => { look(); return () => waits?.(); }, []);
  const enter = async (event) => {
    event.preventDefault();
    setBusy("key");
    setWrong("");
    const opened = await begin(typed.trim());
    setBusy("");
    if (opened !== null) setTyped(""); // the gateway has said what it is worth
  };
  const ask = async () => {
    setBusy("issuer");
    setWrong("");
    try {
      const token = await atIssuer(issuer.value);
      if (token === null) return; // another window was opened
      await begin(token);
    } catch (error) { setWrong(error.message); }
    setBusy("");
  };
  const told = wrong || problem;
  return html`<${Dialog} title=${caller ? words.again : words.title} closes=${false}>
    <p>${caller ? words.againWhat : words.what}</p>
    ${issuer.value && html`<p><button class="primary" onClick=${ask}>${words.at(new URL(issuer.value.authorize_url).hostname)}</button></p>
      ${busy === "issuer" && html`<p class="quiet" role="status">${words.inWindow}</p>`}`}
    <form class="login" onSubmit=${enter}>
      <div class="field"><label for="key">${words.key}</label>
        <input id="key" type="password" autofocus required autocomplete="current-password" spellcheck=${false} value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} /></div>
      ${told && html`<div class="problem" role="alert">${visible(told)}</div>`}
      <p class="quiet">${words.memory}</p>
      <div class="buttons"><button class=${issuer.value ? "" : "primary"} disabled=${busy === "key" || !typed}>${busy === "key" ? text.working : words.enter}</button></div>
    </form><//>`;
}
