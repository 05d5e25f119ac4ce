// Receive webhooks, and verify each: WEBHOOK_SECRET=whsec_… PORT=9000 node webhook.mjs
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const secret = Buffer.from(process.env.WEBHOOK_SECRET.replace(/^whsec_/, ""), "base64");

function verify(headers, body) {
  const { "webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": given = "" } = headers;
  if (!(Math.abs(Date.now() / 1000 - Number(stamp)) <= 300)) return false;
  const text = Buffer.concat([Buffer.from(`${id}.${stamp}.`), body]);
  const wanted = Buffer.from(`v1,${createHmac("sha256", secret).update(text).digest("base64")}`);
  return given.split(" ").map((each) => Buffer.from(each))
    .some((each) => each.length === wanted.length && timingSafeEqual(each, wanted));
}

createServer(async (request, response) => {
  const body = Buffer.concat(await request.toArray());
  const good = request.method === "POST" && verify(request.headers, body);
  if (good) console.log(JSON.parse(body).message.payload);
  response.writeHead(good ? 204 : 401).end();
}).listen(Number(process.env.PORT ?? 9000), "127.0.0.1");
