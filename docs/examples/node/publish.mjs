// Publish one message, once: node publish.mjs BROKER EXCHANGE ROUTING_KEY PAYLOAD KEY
const { GATEWAY_URL = "http://127.0.0.1:8080", GATEWAY_API_KEY } = process.env;
const [broker, exchange, routingKey, payload, key] = process.argv.slice(2);

const answer = await fetch(`${GATEWAY_URL}/v1/brokers/${broker}/exchanges/${encodeURIComponent(exchange)}:publish`, {
  method: "POST",
  headers: {
    "Content-Type": "application/json",
    "Idempotency-Key": key, // after any failure send the same again: nothing is published twice
    ...(GATEWAY_API_KEY && { Authorization: `Bearer ${GATEWAY_API_KEY}` }),
  },
  body: JSON.stringify({ routing_key: routingKey, payload }),
});
const outcome = await answer.json();
console.log(answer.ok ? outcome.status : `${outcome.code}: ${outcome.detail}`);
process.exitCode = answer.ok ? 0 : 1;
