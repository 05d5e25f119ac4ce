# What `helm test` runs: a message published, pulled and acknowledged through the Service.
# ruff: noqa: S310, T201
import json
import os
import urllib.request
import uuid

url, broker = os.environ["GATEWAY_URL"], os.environ["GATEWAY_TEST_BROKER"]
headers = {"content-type": "application/json"}
key = os.environ.get("GATEWAY_API_KEY", "")
if file := os.environ.get("GATEWAY_API_KEY_FILE"):
    with open(file, encoding="utf-8") as opened:
        key = opened.read().strip()
if key:
    headers["authorization"] = f"Bearer {key}"


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


print("API", ask("GET", "/openapi.json")["info"]["version"])
if broker:
    name = f"gateway-test-{uuid.uuid4().hex[:12]}"
    queue, subscription = f"/v1/brokers/{broker}/queues/{name}", f"/v1/subscriptions/{name}"
    ask("PUT", queue, {})
    try:
        ask("PUT", subscription, {"broker": broker, "queue": name})
        message = {"routing_key": name, "payload": "helm test", "mandatory": True}
        sent = ask("POST", f"/v1/brokers/{broker}/exchanges/amq.default:publish", message)["id"]
        (item,) = ask("POST", f"{subscription}:pull", {"max_messages": 1, "wait": 20})["messages"]
        assert (item["message"]["id"], item["message"]["payload"]) == (sent, "helm test"), item
        (result,) = ask("POST", f"{subscription}:acknowledge", {"ack_ids": [item["ack_id"]]})["results"]
        assert result["status"] == "SUCCESS", result
        print("published, pulled and acknowledged", sent)
    finally:
        ask("DELETE", subscription)
        ask("DELETE", queue)
