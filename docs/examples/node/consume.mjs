// Pull messages, print them, and acknowledge them: node consume.mjs SUBSCRIPTION
const { GATEWAY_URL = "http://127.0.0.1:8080", GATEWAY_API_KEY } = process.env;
const subscription = encodeURIComponent(process.argv[2]);

async function ask(verb, body) {
  const answer = await fetch(`${GATEWAY_URL}/v1/subscriptions/${subscription}:${verb}`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      ...(GATEWAY_API_KEY && { Authorization: `Bearer ${GATEWAY_API_KEY}` }),
    },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

const { messages } = await ask("pull", { max_messages: 10, wait_seconds: 20 });
for (const { message } of messages) console.log(message.payload);
if (messages.length) {
  const { results } = await ask("acknowledge", { ack_ids: messages.map((each) => each.ack_id) });
  for (const { status } of results) console.log(status);
}
