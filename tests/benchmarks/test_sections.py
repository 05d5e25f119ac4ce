"""Every section works, on real servers; how fast anything is, is no test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.amqp.message import Properties
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import golang, pamqp_codec
from tests.benchmarks.bench import Bench
from tests.benchmarks.programs import ROOT
from tests.benchmarks.rows import OURS, ClientFailed, Row, Sample
from tests.benchmarks.sections import SECTIONS, bridge, codec, cost, link, outbound
from tests.servers import BrokerJ, PostgreSQL, RabbitMQ310


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(quick=True) as bench:
        yield bench


def works(rows: list[Row]) -> dict[str, list[str]]:
    """Work -> its clients; all of them measured, once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        assert not row.error, row
        assert len(row.samples) == 1, row
        found.setdefault(row.work, []).append(row.client)
    return found


def test_codec(bench: Bench) -> None:
    sessions = [f"{OURS} {version}" for version in ("0-9-1", "0-8", "0-10")]
    assert works(codec.run(bench)) == {
        codec.ENCODE: [OURS, "pamqp"],
        codec.DECODE: [OURS, "pamqp"],
        codec.RAW: [OURS, "pamqp"],
        "session: publish, to octets": sessions,
        "session: delivery, properties left raw": sessions,
        "session: delivery, properties decoded": sessions,
    }


def test_the_codecs_are_held_against_each_other() -> None:
    with pytest.raises(AssertionError):
        pamqp_codec.check(codec.encode(), lambda data: Properties(message_id="another"))
    with pytest.raises(AssertionError):
        pamqp_codec.check(codec.encode().replace(b"ann", b"bob"), lambda data: Properties(message_id="m-1"))


@pytest.mark.long
def test_link_beside_its_peers(bench: Bench) -> None:
    with bench.gateway() as gateway:
        url = f"amqp://guest:guest@127.0.0.1:{gateway.amqp}/%2F?version=0-9-1"
        found = works(link.compare(bench, url, link.PEERS))
    assert found == {work: [OURS, "pika", "py-amqp", "aiormq", "aio-pika"] for work in link.WORKS.values()}


def test_without_go_its_row_says_so_and_the_rest_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(link, "turn", lambda *_, **__: lambda: {"publish": Sample(1, 1.0)})
    ours, go = link.compare(bench, "amqp://nowhere", (link.GO,))
    assert (ours.client, ours.error) == (OURS, "")
    assert (go.client, go.error.partition(":")[0]) == (link.GO, "go is not installed")


def test_go_sources_that_cannot_be_built_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ClientFailed, match="go build failed: no such module"):
        golang.build(tmp_path)


@pytest.mark.long
def test_outbound_beside_httpx(bench: Bench) -> None:
    clients = [OURS, outbound.UNDER_HTTPX, outbound.HTTPX]
    assert works(outbound.run(bench)) == {outbound.work(callers): clients for callers in outbound.CALLERS}


@pytest.mark.broker
def test_a_message_that_is_left_over_is_no_success(
    bench: Bench, rabbitmq310: RabbitMQ310, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PATIENCE", 0.1)
    publishes = lambda job: link.program(OURS, {**job, "works": ["publish"]})  # noqa: E731
    with pytest.raises(ClientFailed, match="300 messages were left in the queue, of 300"):
        link.turn(bench, rabbitmq310.url("0-9-1"), publishes)()


@pytest.mark.broker
@pytest.mark.parametrize(
    "section",
    ["publish"]
    + [
        pytest.param(name, marks=pytest.mark.long)
        for name in ("versions", "pull", "push", "front", "ledger", "memory", "growth", "cost")
    ],
)
def test_sections_on_real_servers(
    section: str, bench: Bench, rabbitmq310: RabbitMQ310, brokerj: BrokerJ, postgresql: PostgreSQL
) -> None:
    bench.rabbitmq, bench.brokerj, bench.postgresql = rabbitmq310, brokerj, postgresql
    before = rabbitmq310.queues()
    found = works(SECTIONS[section](bench))
    assert found
    assert not {queue for queue in rabbitmq310.queues() - before if queue.startswith("bench-")}
    assert len(bench.versions()) == 3


@pytest.mark.broker
@pytest.mark.long
def test_bridges_beside_shovel_and_across_versions(bench: Bench, rabbitmq310: RabbitMQ310, brokerj: BrokerJ) -> None:
    bench.rabbitmq, bench.brokerj = rabbitmq310, brokerj
    before = rabbitmq310.queues()
    found = works(bridge.run(bench))
    clients = [OURS, bridge.SHOVEL, bridge.SHOVEL_TCP]
    assert found == {
        bridge.MOVE: clients,
        bridge.TOGETHER: clients,
        bridge.COST: [bridge.ALL, bridge.LEDGER, bridge.LINK, bridge.TRANSLATION, bridge.BRIDGE],
        **{bridge.TO_0_10.format(version): [OURS] for version in ("0-8", "0-9-1")},
        **{bridge.queued(number): [OURS] for number in bridge.QUICK_QUEUED},
    }
    assert not {queue for queue in rabbitmq310.queues() - before if queue.startswith(bridge.PREFIX)}
    assert not rabbitmq310.api("GET", "parameters/shovel")
    assert not [policy for policy in rabbitmq310.api("GET", "policies") if policy["name"].startswith(bridge.PREFIX)]


@pytest.mark.broker
def test_a_bridge_that_moves_nothing_is_no_success(
    bench: Bench, rabbitmq310: RabbitMQ310, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "STALLED", 0.1)
    monkeypatch.setattr(bridge, "PATIENCE", 0.1)
    url = rabbitmq310.url("0-9-1")
    with bridge.queues(url, url, 3) as (source, target):
        with pytest.raises(ClientFailed, match="0 of 3 messages came, and no more"):
            bridge.moved(url, target, 3)
        with pytest.raises(ClientFailed, match="3 messages were left at the source"):
            bridge.emptied(url, source)
    assert not {source, target} & rabbitmq310.queues()


def test_the_cpu_of_a_bridge_is_split() -> None:
    whole = Sample(1_000, 1.0, 0.070)
    found = bridge.split(whole, 0.020, Sample(500, 1.0, 0.0125), Sample(2_000, 1.0, 0.010))
    shares = {name: round(sample.microseconds or 0, 3) for name, sample in found.items()}
    assert shares == {"all": 70.0, "ledger": 20.0, "link": 25.0, "translation": 5.0, "bridge": 20.0}


def test_the_cost_is_split_into_what_each_layer_adds() -> None:
    layers = {"link": 0.010, "upstream": 0.015, "core": 0.018, "ledger": 0.030, cost.ALL: 0.090}
    found = cost.split({name: Sample(1_000, 1.0, cpu) for name, cpu in layers.items()})
    shares = {name: round(sample.microseconds or 0, 3) for name, sample in found.items()}
    assert shares == {"all": 90.0, "link": 10.0, "upstream": 5.0, "core": 3.0, "ledger": 12.0, "HTTP": 60.0}


# ------------------------------------------------------------------------------------------------- the run


def test_a_run_prints_header_table_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert benchmarks.main(["--quick", "--ours", "--json", str(file), "codec"]) == 0
    printed = capsys.readouterr().out
    for word in ("command   python -m tests.benchmarks --quick", "machine   ", "load average", codec.ENCODE):
        assert word in printed
    assert printed.endswith("0 of 0 aims met\n")
    assert codec.ENCODE in {row["work"] for row in json.loads(file.read_text())}


def test_a_run_is_put_into_the_block_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- output of make bench -->\n\n```\nold\n```\n\nB\n")
    assert benchmarks.main(["--quick", "--ours", "--page", str(page), "codec"]) == 0
    assert page.read_text() == f"# A\n\n<!-- output of make bench -->\n\n```\n{capsys.readouterr().out}```\n\nB\n"


def test_the_page_of_the_documentation_has_its_block() -> None:
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    assert "\nnew\n" in benchmarks.put(page, "new")
    with pytest.raises(SystemExit, match="0 blocks"):
        benchmarks.put("", "new")


def test_a_section_that_fails_is_a_row_and_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(bench: Bench) -> list[Row]:
        raise RuntimeError("it broke")

    good = lambda bench: [Row("good", "work", OURS, [Sample(1, 1.0)])]  # noqa: E731
    monkeypatch.setattr(benchmarks, "SECTIONS", {"bad": fails, "good": good})
    assert benchmarks.main([]) == 1
    printed = capsys.readouterr().out
    assert "bad: not measured" in printed
    assert "RuntimeError: it broke" in printed
    assert "\nwork " in printed
    assert printed.endswith("1 rows could not be measured\n")


def test_a_section_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmarks.main(["codex"])
    assert "there is no section 'codex'; there are codec, link" in capsys.readouterr().err


def test_a_gateway_that_fails_shows_its_log(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), bench.gateway():
        raise RuntimeError
    assert '"event": "embedded.listening"' in capsys.readouterr().err
