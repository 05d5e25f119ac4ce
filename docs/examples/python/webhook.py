"""Receive webhooks, and verify each: WEBHOOK_SECRET=whsec_… PORT=9000 python3 webhook.py"""

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))


def verify(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether the gateway has signed this body, at most five minutes ago."""
    name, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "0")
    if not stamp.isdigit() or abs(time.time() - int(stamp)) > 300:
        return False
    signed = f"{name}.{stamp}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted.encode(), each.encode()) for each in given)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to a message that it has taken, and 401 to a request that does not verify."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        good = verify(self.headers, body)
        if good:
            print(json.loads(body)["message"]["payload"], flush=True)
        self.send_response(204 if good else 401)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver).serve_forever()
