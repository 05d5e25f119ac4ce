"""Pull messages, print them, and acknowledge them: consume.py SUBSCRIPTION"""

import json
import os
import sys
import urllib.parse
import urllib.request

GATEWAY = os.environ.get("GATEWAY_URL", "http://127.0.0.1:8080")


def ask(subscription: str, verb: str, body: dict[str, object]) -> dict[str, list[dict[str, object]]]:
    """Return what the gateway answers."""
    request = urllib.request.Request(
        f"{GATEWAY}/v1/subscriptions/{urllib.parse.quote(subscription, safe='')}:{verb}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    if "GATEWAY_API_KEY" in os.environ:
        request.add_header("Authorization", f"Bearer {os.environ['GATEWAY_API_KEY']}")
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)


if __name__ == "__main__":
    name = sys.argv[1]
    pulled = ask(name, "pull", {"max_messages": 10, "wait_seconds": 20})["messages"]
    for each in pulled:
        print(each["message"]["payload"])
    if pulled:
        settled = ask(name, "acknowledge", {"ack_ids": [each["ack_id"] for each in pulled]})
        for result in settled["results"]:
            print(result["status"])
