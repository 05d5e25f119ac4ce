// A form made of the schema that the API has for a body, so that both take the same and say the same.

import { html, useState, visible } from "./base.js";
import { NEVER, bodySchema, usePoll } from "./api.js";
import { problemAt } from "./parts.js";
import { text } from "./text.js";

const OLD = /^(old name of|another name of)/i;

// Every schema has many ways to say the same: what is left is {kind, choices, nullable, ...}.
export function shape(schema) {
  const forms = (schema.anyOf ?? [schema]).flatMap((each) => each.allOf ?? [each])
    .flatMap((each) => (Array.isArray(each.type) ? each.type.map((type) => ({ ...each, type })) : [each]));
  const nullable = forms.some((each) => each.type === "null");
  const real = forms.filter((each) => each.type !== "null");
  const choices = real.flatMap((each) => each.enum ?? (each.const === undefined ? [] : [each.const]));
  if (real.length > 1 && !choices.length) return { kind: "json", nullable };
  if (real.length > 1) return { kind: "text", choices, nullable, mixed: true };
  const one = real[0] ?? {};
  if (one.enum) return { kind: "choice", choices: one.enum, nullable };
  if (one.type === "object" && one.properties) return { kind: "group", schema: one, nullable };
  if (one.type === "boolean") return { kind: "flag", nullable };
  if (one.type === "integer" || one.type === "number") return { kind: "number", whole: one.type === "integer", nullable };
  if (one.type === "string") return { kind: "text", choices: [], nullable };
  return { kind: "json", nullable };
}

// The schema as a feed, which is read once.
export const useSchema = (path, method = "put") => usePoll(`${path} ${method}`, NEVER, (_, how) => bodySchema(path, method, how));

// All fields of a schema that errors may point to: what stands beside a field is not said above the form once more.
export function places(schema, under = "") {
  return Object.entries(schema?.properties ?? {}).flatMap(([name, each]) => {
    const found = shape(each);
    return [`${under}/${name}`, ...(found.kind === "group" ? places(found.schema, `${under}/${name}`) : [])];
  });
}

export function Fields({ schema, value, onChange, error, under = "", choices = {} }) {
  const known = Object.entries(schema.properties ?? {}).filter(([, each]) => !OLD.test(each.description ?? ""));
  const must = new Set(schema.required ?? []);
  const set = (name, next) => {
    const made = { ...value };
    if (next === undefined) delete made[name];
    else made[name] = next;
    onChange(made);
  };
  const needed = known.filter(([name]) => must.has(name) || (under === "" && COMMON.has(name)));
  const others = known.filter(([name]) => !needed.some(([each]) => each === name));
  const field = ([name, each]) => html`<${Field} key=${name} name=${name} schema=${each} must=${must.has(name)}
    value=${value?.[name]} onChange=${(next) => set(name, next)} error=${error} path=${`${under}/${name}`} choices=${choices} />`;
  if (under !== "") return html`<div class="fields">${known.map(field)}</div>`;
  return html`<div class="fields">
    ${needed.map(field)}
    ${others.length > 0 && html`<details class="more" open=${others.some(([name]) => problemAt(error, `/${name}`))}>
      <summary>${text.more(others.length)}</summary><div class="fields">${others.map(field)}</div></details>`}
  </div>`;
}

const COMMON = new Set(["queue", "exchange", "type", "push", "mode", "url", "format", "lease", "filter", "paused", "client", "scopes"]);

function Field({ name, schema, value, onChange, error, path, must, choices }) {
  const found = shape(schema);
  const wrong = problemAt(error, path);
  const help = (schema.description ?? "").replace(/``?/g, "");
  const id = `field${path.replace(/[^a-z0-9]/gi, "-")}`;
  if (found.kind === "group") {
    return html`<fieldset class="group"><legend>${name}${must && html`<b class="must" title=${text.must}>*</b>`}</legend>
      ${help && html`<p class="help">${help}</p>`}${wrong && html`<p class="wrong" role="alert">${visible(wrong)}</p>`}
      <${Fields} schema=${found.schema} value=${value ?? {}} onChange=${onChange} error=${error} under=${path} choices=${choices} />
    </fieldset>`;
  }
  const about = { id, "aria-invalid": wrong ? "true" : undefined, "aria-describedby": wrong ? `${id}-wrong` : help ? `${id}-help` : undefined };
  const given = choices[name];
  let input;
  if (found.kind === "flag") {
    input = html`<input type="checkbox" ...${about} checked=${value ?? schema.default ?? false}
      onChange=${(event) => onChange(event.currentTarget.checked)} />`;
  } else if (found.kind === "choice") {
    input = html`<select ...${about} value=${value ?? schema.default ?? ""}
        onChange=${(event) => onChange(event.currentTarget.value === "" && !found.choices.includes("") ? undefined : event.currentTarget.value)}>
      ${schema.default === undefined && !found.choices.includes("") && html`<option value=""></option>`}
      ${found.choices.map((each) => html`<option value=${each} selected=${each === (value ?? schema.default)}>${each === "" ? text.default : each}</option>`)}
    </select>`;
  } else if (found.kind === "number") {
    input = html`<input type="number" step=${found.whole ? 1 : "any"} ...${about} value=${value ?? ""}
      placeholder=${schema.default ?? ""} onInput=${(event) => {
        const typed = event.currentTarget.value;
        onChange(typed === "" ? undefined : Number(typed));
      }} />`;
  } else if (found.kind === "json") {
    return html`<${JsonField} ...${{ name, id, about, help, wrong, must, value, onChange, schema }} />`;
  } else {
    const list = given ? `${id}-list` : undefined;
    input = html`<input ...${about} value=${value ?? ""} list=${list} autocomplete="off" spellcheck=${false}
      placeholder=${schema.default ?? ""} onInput=${(event) => {
        const typed = event.currentTarget.value;
        onChange(typed === "" && !must ? undefined : typed);
      }} />${given && html`<datalist id=${list}>${given.map((each) => html`<option value=${each}></option>`)}</datalist>`}`;
  }
  return html`<div class=${`field ${found.kind}`}><label for=${id}>${name}${must && html`<b class="must" title=${text.must}>*</b>`}</label>
    ${input}${help && html`<p class="help" id=${`${id}-help`}>${help}</p>`}
    ${wrong && html`<p class="wrong" id=${`${id}-wrong`} role="alert">${visible(wrong)}</p>`}</div>`;
}

// A value that has no simpler form: JSON, or words with commas between them where that is a list of texts.
function JsonField({ name, id, about, help, wrong, must, value, onChange, schema }) {
  const isList = (schema.type === "array") && (schema.items?.type === "string" || schema.items?.enum);
  const written = (each) => (each === undefined ? "" : isList ? each.join(", ") : JSON.stringify(each));
  const [typed, setTyped] = useState(written(value));
  const [bad, setBad] = useState("");
  const input = (event) => {
    const words = event.currentTarget.value;
    setTyped(words);
    setBad("");
    if (words.trim() === "") onChange(undefined);
    else if (isList) onChange(words.split(",").map((each) => each.trim()).filter(Boolean));
    else {
      try { onChange(JSON.parse(words)); } catch (error) { setBad(text.notJson(error.message)); }
    }
  };
  return html`<div class="field json"><label for=${id}>${name}${must && html`<b class="must" title=${text.must}>*</b>`}</label>
    <input ...${about} value=${typed} onInput=${input} autocomplete="off" spellcheck=${false}
      placeholder=${isList ? text.listHint : schema.default === undefined ? "JSON" : JSON.stringify(schema.default)} />
    ${help && html`<p class="help" id=${`${id}-help`}>${help}</p>`}
    ${(bad || wrong) && html`<p class="wrong" id=${`${id}-wrong`} role="alert">${visible(bad || wrong)}</p>`}</div>`;
}
