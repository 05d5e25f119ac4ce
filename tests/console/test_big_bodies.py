"""Bodies of 64 MiB: seen in part, downloaded, published from a file. Neither the tab nor the gateway stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pika
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import BROKER, KEYS, Open, Served, console_at, key_of, serving
from tests.servers.process import free_port

pytestmark = pytest.mark.long

SIZE: Final = 64 << 20
"""What the gateway takes at most (``http.body_max``)."""
MARKUP: Final = b"<script>alert(1)</script><img src=x onerror=alert(2)>"
STANDSTILL_MAX: Final = 2.0
"""How long the tab may stand still, in seconds."""
ANSWER_MAX: Final = 10.0
"""How long the gateway may take for another answer meanwhile, in seconds: this says that it stands still, not that the
machine is slow. How long its loop works at a time is measured in ``tests/api/test_replays.py``."""
HEADERS: Final = {"authorization": f"Bearer {key_of('root')}"}
WATCH: Final = """
window.longest = 0;
let before = performance.now();
const frame = () => {
  const now = performance.now();
  window.longest = Math.max(window.longest, now - before);
  before = now;
  setTimeout(frame, 0);
};
frame();
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
"""
"""The longest time for which the tab ran nothing else, in milliseconds: between two turns, and in one task."""


def body_of(seed: int) -> bytes:
    """Markup, and then bytes that are no text."""
    return MARKUP + Random(seed).randbytes(SIZE - len(MARKUP))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway with room for large messages."""
    folder = tmp_path_factory.mktemp("big")
    port = free_port()
    gateway = Gateway(
        folder,
        {
            "data_dir": str(folder / "data"),
            "embedded": {"enabled": True, "port": port, "message_max": SIZE},
            "api_keys": [{"name": name, "key": key_of(name), "scopes": scopes} for name, scopes in KEYS.items()],
        },
    )
    with serving(gateway) as served:
        served.front_port = port
        yield served


@pytest.fixture
def opened(browser: Browser, big: Served) -> Iterator[Open]:
    """A page at that gateway that measures how long it stands still; checked at the end of the test."""
    with console_at(browser, big.url) as open_console:
        pages: list[Page] = []

        def make(path: str = "", **more: Any) -> Page:
            page = open_console(path, **more)
            page.evaluate(WATCH)
            page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
            pages.append(page)
            return page

        with answering(big.url):
            yield make
        for page in pages:
            page.wait_for_timeout(200)  # what is measured last is there in the next turn
            longest = page.evaluate("window.longest") / 1000
            print(f"the tab stood still for {longest:.3f} s at most")
            assert 0 < longest < STANDSTILL_MAX


@contextmanager
def answering(url: str) -> Iterator[None]:
    """The gateway answers others all the time meanwhile."""
    slowest = 0.0
    over = threading.Event()

    def ask() -> None:
        nonlocal slowest
        with httpx.Client(base_url=url, headers=HEADERS, trust_env=False, timeout=60) as client:
            while not over.is_set():
                began = time.monotonic()
                assert client.get("/v1/caller").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    print(f"the gateway took {slowest:.3f} s at most for another answer")
    assert 0 < slowest < ANSWER_MAX


def publish(served: Served, queue: str, body: bytes) -> str:
    """Declare a queue, and put this body into it as it is."""
    served.queue(queue)
    path = f"/v1/brokers/{BROKER}/exchanges/amq.default:publish?raw=true&routing_key={queue}"
    answer = served.client.post(path, content=body, headers={"content-type": "text/html"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def downloaded(page: Page, path: Path) -> str:
    """The digest of what the button saves."""
    with page.expect_download() as found:
        page.get_by_role("button", name="Download the body").click()
    found.value.save_as(path)
    assert found.value.suggested_filename.endswith(".bin")
    assert path.stat().st_size == SIZE
    return sha256(path.read_bytes()).hexdigest()


def is_part(page: Page) -> None:
    """The beginning is shown, as text or bytes, and says what it is."""
    expect(page.locator(".part")).to_contain_text("The first 64 KiB of 67,108,864 bytes")
    expect(page.locator(".part pre")).to_contain_text("3c 73 63 72 69 70 74 3e")
    assert page.locator("main img, main script").count() == 0


def leased(served: Served, queue: str, message_id: str) -> tuple[str, str]:
    """Pull a message out of a queue into the ledger: its delivery, and the lease."""
    served.call("PUT", f"/v1/subscriptions/{queue}", {"broker": BROKER, "queue": queue, "lease": "ledger"})
    body = {"max_messages": 1, "wait_seconds": 20}
    (pulled,) = served.call("POST", f"/v1/subscriptions/{queue}:pull", body)["messages"]
    (row,) = served.call("GET", f"/v1/deliveries?message={message_id}")["deliveries"]
    return row["id"], pulled["ack_id"]


def test_a_dead_letter_is_shown_in_part_and_downloaded(opened: Open, big: Served, tmp_path: Path) -> None:
    body = body_of(1)
    message_id = publish(big, "dead-big", body)
    id, ack_id = leased(big, "dead-big", message_id)
    page = opened(f"messages/{message_id}")
    page.get_by_role("button", name="Show the message").click()
    is_part(page)
    assert downloaded(page, tmp_path / "delivery") == sha256(body).hexdigest()
    big.call("POST", "/v1/subscriptions/dead-big:reject", {"ack_ids": [ack_id], "reason": "too big"})
    page.goto(f"{big.url}/console#/dead/{id}")
    expect(page.locator(".lead")).to_contain_text("dead")
    is_part(page)
    assert downloaded(page, tmp_path / "dead") == sha256(body).hexdigest()
    # One like it has the body as a file.
    page.goto(f"{big.url}/console#/messages/{message_id}")
    page.get_by_role("button", name="Publish one like it").click()
    expect(page.locator("main")).to_contain_text(f"The file {id}.bin, 67,108,864 bytes")


def test_a_message_of_a_queue_is_shown_in_part_and_downloaded(opened: Open, big: Served, tmp_path: Path) -> None:
    body = body_of(2)
    publish(big, "queue-big", body)
    page = opened(f"queues/{BROKER}/queue-big")
    page.get_by_role("link", name="Show its messages").click()
    page.get_by_role("region", name="Messages").locator("tbody a").first.click()
    is_part(page)
    assert downloaded(page, tmp_path / "queued") == sha256(body).hexdigest()
    assert big.call("GET", f"/v1/brokers/{BROKER}/queues/queue-big")["messages"] == 1
    # Another message has its place by now.
    big.call("POST", f"/v1/brokers/{BROKER}/queues/queue-big:purge")
    big.publish("queue-big", "another")
    page.get_by_role("button", name="Download the body").click()
    expect(page.locator(".problem")).to_contain_text("is another one by now")


def test_a_message_is_published_from_a_file(opened: Open, big: Served, tmp_path: Path) -> None:
    body = body_of(3)
    file = tmp_path / "größe.bin"
    file.write_bytes(body)
    too_large = tmp_path / "too-large.bin"
    with too_large.open("wb") as out:
        out.truncate(SIZE + 1)
    big.queue("file-big")
    page = opened(f"publish?broker={BROKER}&routing_key=nowhere")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    page.get_by_label("Or a file").set_input_files(too_large)
    expect(page.locator(".wrong")).to_have_text(
        "The file has 67,108,865 bytes. A message may have 67,108,864 at most (http.body_max). Choose a smaller file, "
        "or raise the limit."
    )
    page.get_by_role("button", name="Publish", exact=True).click()
    assert sent == []
    page.get_by_role("button", name="Write a text instead").click()
    page.get_by_label("Or a file").set_input_files(file)
    expect(page.locator("main")).to_contain_text("The file größe.bin, 67,108,864 bytes")
    page.get_by_label("Properties (JSON)").fill('{"message_id": "Größe", "priority": 300}')
    page.get_by_label("Headers (JSON)").fill('{"region": "€u"}')
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".problem")).to_contain_text("300")
    # Nothing that was entered is gone.
    expect(page.locator("main")).to_contain_text("The file größe.bin, 67,108,864 bytes")
    properties = '{"message_id": "Größe", "priority": 3, "content_type": "application/x-größe"}'
    page.get_by_label("Properties (JSON)").fill(properties)
    page.get_by_label("Routing key").fill("file-big")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".result")).to_contain_text("The broker has it")
    assert len(sent) == 2
    found, given = consumed(big.front_port, "file-big")
    assert sha256(found).hexdigest() == sha256(body).hexdigest()
    assert (given.message_id, given.priority, given.content_type) == ("Größe", 3, "application/x-größe")
    assert {name: each for name, each in given.headers.items() if name != "x-gateway"} == {"region": "€u"}


def consumed(port: int, queue: str) -> tuple[bytes, Any]:
    """Body and properties of the first message, as a consumer gets it."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    try:
        channel = connection.channel()
        _, properties, body = channel.basic_get(queue, auto_ack=True)
        assert body is not None
        return body, properties
    finally:
        connection.close()


def test_a_body_is_never_rendered(opened: Open, big: Served) -> None:
    message_id = publish(big, "hostile-big", MARKUP)
    id, _ = leased(big, "hostile-big", message_id)
    answer = big.client.get(f"/v1/deliveries/{id}/body")
    assert (answer.content, answer.headers["content-type"]) == (MARKUP, "application/octet-stream")
    assert answer.headers["content-disposition"] == f'attachment; filename="{id}.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = opened("me")
    page.set_extra_http_headers(HEADERS)
    with page.expect_download() as found:
        page.evaluate("(path) => { location.href = path; }", f"/v1/deliveries/{id}/body")
    assert Path(found.value.path()).read_bytes() == MARKUP
    expect(page.locator("h1")).to_be_visible()
