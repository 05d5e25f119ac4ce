"""Every type of a header, from every version to every version, over HTTP."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from gateway.notation.values import WORDS
from tests.ledgers import sqlite_ledger

BROKERS = ("local-0-8", "local-0-9-1", "local-0-10")
SPECIAL: dict[str, Any] = {
    "void": None, "bool": True, "bit": True, "char": "a", "char-utf32": "é", "double": 0.1, "float": 1.5,
    "decimal": "1.25", "dec64": "1.25", "timestamp": 1_700_000_000, "sequence-no": 7, "table": {"a": 1},
    "array": [1, "x"], "uuid": "0d5c2e0c-8c9f-4b6e-9d43-9b6f3ad9f0c1",
}  # fmt: skip
PLAIN = frozenset({"void", "bool", "int32", "double", "string", "table", "array"})
"""Types that come back as plain JSON."""


def value_of(word: str) -> Any:
    if word in SPECIAL:
        return SPECIAL[word]
    if word.startswith(("int", "uint")):
        return 3
    if word.startswith("str"):
        return "text"
    size = int(word[3:]) // 8 if word[3:].isdigit() else 3
    return b64encode((b"\0\xff" * size)[:size]).decode()


SENT = {word: {"type": word, "value": value_of(word)} for word in WORDS if word != "binary"}
SENT["text"] = {"type": "string", "value": {"type": "binary", "value": "AP8="}}
SENT["bytes of text"] = {"type": "bytes", "value": "AAE="}
EXPECTED = {name: item["value"] if name in PLAIN else item for name, item in SENT.items()}


@pytest.mark.parametrize("source", BROKERS)
async def test_every_type_of_a_header_comes_back_as_it_was_sent(tmp_path: Path, source: str) -> None:
    sqlite_ledger(tmp_path)
    settings = {
        "http.port": 0, "ops.port": 0, "data_dir": str(tmp_path), "embedded.enabled": True, "embedded.port": 0,
        **{f"subscriptions.{name}.broker": name for name in BROKERS},
        **{f"subscriptions.{name}.queue": name for name in BROKERS},
    }  # fmt: skip
    async with (
        running(load(None, {}, settings)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=30, trust_env=False) as client,
    ):
        for target in BROKERS:
            (await client.put(f"/v1/brokers/{source}/queues/{target}", json={})).raise_for_status()
            body = {"routing_key": target, "payload": "x", "headers": SENT}
            answer = await client.post(f"/v1/brokers/{source}/exchanges/amq.default:publish", json=body)
            assert answer.status_code == 200, answer.text
            answer = await client.post(f"/v1/subscriptions/{target}:pull", json={"max_messages": 1, "wait": 10})
            (item,) = answer.json()["messages"]
            headers = item["message"]["headers"]
            assert headers == EXPECTED, target
            assert list(headers) == list(EXPECTED)
        wrong = {"routing_key": source, "payload": "x", "headers": {"n": {"type": "binary", "value": "AAE="}}}
        answer = await client.post(f"/v1/brokers/{source}/exchanges/amq.default:publish", json=wrong)
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "/headers/n/type"
        assert "did you mean bytes" in error["detail"]
