"""Queues of a gateway that runs, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx


class Queue:
    """A queue of one of its brokers."""

    def __init__(self, url: str, name: str, broker: str = "local-0-9-1") -> None:
        self.url = url
        self.name = name
        self.broker = broker
        self._queue = f"{url}/v1/brokers/{broker}/queues/{name}"
        self._pull = f"{url}/v1/subscriptions/{name}"
        httpx.put(self._queue, json={}).raise_for_status()

    def __len__(self) -> int:
        found: int = httpx.get(self._queue).json()["messages"]
        return found

    def delete(self) -> None:
        """Delete it."""
        httpx.delete(self._queue).raise_for_status()

    def put(self, messages: Iterable[dict[str, Any]]) -> None:
        """Publish messages to it."""
        batch = [{"routing_key": self.name, "mandatory": True, **each} for each in messages]
        path = f"{self.url}/v1/brokers/{self.broker}/exchanges/amq.default:publish"
        results = httpx.post(path, json={"messages": batch}, timeout=30).json()["results"]
        assert [each["status"] for each in results] == [200] * len(batch)

    def take(self, most: int = 1_000) -> list[dict[str, Any]]:
        """Take messages out of it."""
        httpx.put(self._pull, json={"broker": self.broker, "queue": self.name}).raise_for_status()
        found = httpx.post(f"{self._pull}:pull", json={"max_messages": most}).json()["messages"]
        if found:
            ids = [each["ack_id"] for each in found]
            httpx.post(f"{self._pull}:acknowledge", json={"ack_ids": ids}).raise_for_status()
        httpx.delete(self._pull).raise_for_status()
        return [each["message"] | {"resent": each["resent"]} for each in found]

    def look(self, most: int) -> None:
        """Take the first messages and give them back, which marks them as redelivered."""
        httpx.put(self._pull, json={"broker": self.broker, "queue": self.name}).raise_for_status()
        found = httpx.post(f"{self._pull}:pull", json={"max_messages": most}).json()["messages"]
        released = httpx.post(f"{self._pull}:release", json={"ack_ids": [each["ack_id"] for each in found]})
        released.raise_for_status()
        httpx.delete(self._pull).raise_for_status()
