// Large bodies of messages: the beginning is shown, all of it is a file. Files pass through the browser and never through
// this page's scripts: no view reads one.

import { html, number } from "./base.js";
import { request } from "./api.js";
import { Action, Body } from "./parts.js";
import { text } from "./text.js";

export const PART_MAX = 65_536; // bytes of a body that a view reads at first
const PATIENCE = 1_800_000; // milliseconds for a whole body, up or down

// A body as a Blob, which the browser keeps outside the memory of the page.
export async function wholeBody(path) {
  return (await request("GET", path, { accept: "application/octet-stream", blob: true, patience: PATIENCE })).data;
}

async function download(path, name) {
  const address = URL.createObjectURL(await wholeBody(path));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  return text.bodies.saved(name);
}

// A body of which `shown` of `size` bytes are in `payload`. `path`: what gives all of it; without one, nothing does.
export function BodyPart({ payload, encoding, shown, size, path, name }) {
  const cut = shown < size;
  return html`<div class="part">
    <p class="row"><strong>${cut ? text.bodies.part(extent(shown), number(size)) : text.bodies.whole(number(size))}</strong>
      ${path && html`<${Action} tone="small" label=${text.bodies.download} act=${() => download(path, name)} />`}
      ${cut && !path && html`<span class="quiet">${text.bodies.noFile}</span>`}</p>
    <${Body} payload=${payload} encoding=${encoding} cut=${cut} /></div>`;
}

const extent = (count) => (count && count % 1024 === 0 ? `${number(count / 1024)} KiB` : `${number(count)} bytes`);

// Publish a file as it is: in place of JSON its properties stand in headers.
export async function publishFile(path, { file, query, headers, once }) {
  await file.slice(0, 1).arrayBuffer(); // fails where the file is gone, and says so better than an upload does
  const body = file.slice(0, file.size, ""); // without the type that the browser guesses: `headers` have it
  const encoded = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, octets(value)]));
  return request("POST", `${path}?${query}`, { body, headers: encoded, once, patience: PATIENCE });
}

// The message of a form with a file, and what is wrong with it by field. `most`: bytes, and the setting that says so.
export function fileMessage(form, most) {
  const wrong = {};
  const headers = {};
  const query = new URLSearchParams({ raw: "true", routing_key: form.routing_key });
  if (form.delay > 0) query.set("delay_seconds", form.delay);
  if (!form.mandatory) query.set("mandatory", "false");
  if (form.file.size > most.bytes) wrong.file = text.bodies.tooLarge(number(form.file.size), number(most.bytes), most.setting);
  const [properties, table] = ["properties", "headers"].map((name) => {
    try {
      const found = JSON.parse(form[name].trim() || "{}");
      if (found !== null && typeof found === "object" && !Array.isArray(found)) return found;
      wrong[name] = text.bodies.notObject;
    } catch (error) { wrong[name] = text.notJson(error.message); }
    return {};
  });
  if (form.file.type) headers["content-type"] = form.file.type;
  for (const [name, value] of Object.entries(properties)) {
    const plain = typeof value === "number" || (typeof value === "string" && !/[\u0000-\u001f\u007f]|^\s|\s$/.test(value)); // eslint-disable-line no-control-regex
    if (!plain || !/^[a-z_]+$/.test(name)) wrong.properties = text.bodies.notPlain(name);
    else headers[name.startsWith("content_") ? name.replace("_", "-") : `amqp-${name.replace(/_/g, "-")}`] = String(value);
  }
  if (Object.keys(table).length) headers["amqp-headers"] = JSON.stringify(table);
  return { query, headers, wrong };
}

// UTF-8 in a header: `fetch` takes one character for each byte.
const octets = (value) => Array.from(new TextEncoder().encode(value), (each) => String.fromCharCode(each)).join("");
