"""Publish one message, once: publish.py BROKER EXCHANGE ROUTING_KEY PAYLOAD KEY"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

GATEWAY = os.environ.get("GATEWAY_URL", "http://127.0.0.1:8080")


def publish(broker: str, exchange: str, routing_key: str, payload: object, key: str) -> dict[str, object]:
    """Return the outcome. After any failure call it again with the same key: nothing is published twice."""
    name = urllib.parse.quote(exchange, safe="")
    request = urllib.request.Request(
        f"{GATEWAY}/v1/brokers/{broker}/exchanges/{name}:publish",
        json.dumps({"routing_key": routing_key, "payload": payload}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": key},
    )
    if "GATEWAY_API_KEY" in os.environ:
        request.add_header("Authorization", f"Bearer {os.environ['GATEWAY_API_KEY']}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    try:
        print(publish(*sys.argv[1:6])["status"])
    except urllib.error.HTTPError as error:
        problem = json.load(error)
        sys.exit(f"{problem['code']}: {problem['detail']}")
