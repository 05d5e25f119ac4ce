"""API keys: their form, those that the ledger has, and what opens what when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import keys as module
from gateway.access.access import Access
from gateway.access.keys import StoredKeys, checksum, digest_of, is_key, new_key
from gateway.errors import EncodeError, LedgerUnavailable, NoSuchResource, StateError
from gateway.ledger import Ledger
from gateway.ledger.access.api_keys import KEPT, KeyMacs
from gateway.ledger.db.models import api_keys
from tests.api.conftest import problem

DAY = 86_400


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def stored(ledger: Ledger, clock: Clock) -> AsyncIterator[StoredKeys]:
    stored = StoredKeys(ledger, frozenset({"filed"}), clock)
    await stored.start()
    yield stored
    await stored.close()


# ----------------------------------------------------------------------------------------------------- form


def test_the_form_of_a_key() -> None:
    key = new_key("test")
    prefix, environment, random, check = key.split("_")
    assert (prefix, environment, len(random), len(check)) == ("amqpgw", "test", 32, 6)
    assert is_key(key)
    assert len({new_key() for _ in range(100)}) == 100


def test_the_checksum_is_crc_32_in_base_62() -> None:
    assert checksum("123456789") == "3jZRME"  # 0xCBF43926 = 3 421 780 262
    assert checksum("") == "000000"


@given(st.integers(0, 50), st.characters(codec="ascii"))
def test_a_typing_error_is_told_from_a_key(place: int, character: str) -> None:
    key = new_key()
    place %= len(key)
    changed = key[:place] + character + key[place + 1 :]
    assert is_key(changed) == (changed == key)


@given(st.text())
def test_no_text_breaks_the_check(text: str) -> None:
    assert not is_key(text)
    assert not is_key(f"amqpgw_live_{text}")


@pytest.mark.parametrize("environment", ["", "Live", "a_b", "a b", "x" * 17, "é"])
def test_environments_that_are_none(environment: str) -> None:
    with pytest.raises(EncodeError, match="environment"):
        new_key(environment)


# ---------------------------------------------------------------------------------------------------- stored


async def test_a_key_opens_what_its_scopes_say(stored: StoredKeys) -> None:
    key, secret = await stored.create("shop", ["publish:b/x"], brokers=("b",), by="me")
    found = stored.find(secret.encode())
    assert found is not None
    assert (found.name, found.admin, found.credential) == ("shop", False, f"key:{key.id}")
    assert found.may("publish", "b", "x")
    assert not found.may("publish", "b", "y")
    assert secret.startswith(key.hint)
    assert len(key.hint) == len("amqpgw_live_") + 4


async def test_the_ledger_has_no_key_but_its_digest(stored: StoredKeys, ledger: Ledger, tmp_path: Path) -> None:
    key, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    assert (await stored.get(key.id)).digest == digest_of(secret)
    await ledger.record([])
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()
            assert secret.split("_")[2].encode() not in path.read_bytes()


async def test_a_key_ends(stored: StoredKeys, clock: Clock) -> None:
    _, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me", seconds=10)
    clock.now += 9.99
    assert stored.find(secret.encode())
    clock.now += 0.01
    assert stored.find(secret.encode()) is None
    _, again = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    _, second = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    assert stored.find(again.encode())
    assert stored.find(second.encode())


async def test_a_client_that_the_configuration_comes_to_define_has_no_other_keys(stored: StoredKeys) -> None:
    _, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    stored.configured = frozenset({"shop"})  # as a reload does
    assert stored.find(secret.encode()) is None
    stored.configured = frozenset()
    assert stored.find(secret.encode())


async def test_a_client_has_two_live_keys_at_most(stored: StoredKeys) -> None:
    first, one = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    await stored.create("shop", ["admin"], brokers=("b",), by="me")
    with pytest.raises(StateError, match="2 live keys"):
        await stored.create("shop", ["admin"], brokers=("b",), by="me")
    with pytest.raises(StateError, match="2 live keys"):
        await stored.rotate(first.id, by="me")
    await stored.create("other", ["admin"], brokers=("b",), by="me")
    await stored.revoke(first.id, by="me")
    assert stored.find(one.encode()) is None
    await stored.create("shop", ["admin"], brokers=("b",), by="me")


async def test_many_at_once_are_still_two(stored: StoredKeys) -> None:
    made = await asyncio.gather(
        *(stored.create("shop", ["admin"], brokers=("b",), by="me") for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(each, StateError) for each in made) == 8


async def test_rotation_keeps_client_and_scopes(stored: StoredKeys, clock: Clock) -> None:
    old, secret = await stored.create("shop", ["publish:b/x"], brokers=("b",), by="me", seconds=100 * DAY)
    new, replaced = await stored.rotate(old.id, by="you", overlap=60)
    assert (new.client, new.scopes, new.created_by) == ("shop", ("publish:b/x",), "you")
    assert stored.find(secret.encode())
    assert stored.find(replaced.encode())
    clock.now += 60
    assert stored.find(secret.encode()) is None
    assert stored.find(replaced.encode())


async def test_rotation_does_not_make_a_key_live_longer(stored: StoredKeys, clock: Clock) -> None:
    old, _ = await stored.create("shop", ["admin"], brokers=("b",), by="me", seconds=10)
    await stored.rotate(old.id, by="me", overlap=DAY)
    assert (await stored.get(old.id)).expires_at == int((clock.now + 10) * 1e6)
    clock.now += 10
    with pytest.raises(StateError, match="not live"):
        await stored.rotate(old.id, by="me")


async def test_what_is_not_there(stored: StoredKeys) -> None:
    for work in (stored.get("x"), stored.revoke("x", by="me"), stored.rotate("x", by="me")):
        with pytest.raises(NoSuchResource):
            await work


@pytest.mark.parametrize(
    ("client", "scopes", "why"),
    [
        ("", ["admin"], "client"),
        ("a\nb", ["admin"], "client"),
        ("x" * 129, ["admin"], "client"),
        ("filed", ["admin"], "configuration file"),
        ("jwt:shop", ["admin"], "client: jwt:"),
        ("a", [], "scopes"),
        ("a", ["root"], "scopes"),
        ("a", ["history", "publish:b/"], r"scopes\.1: 'publish:b/' has nothing behind the slash"),
        ("a", ["admin"] * 257, "scopes"),
        ("a", ["publish:b/" + "x" * 1_100], "scopes"),
    ],
)
async def test_what_does_not_fit(stored: StoredKeys, client: str, scopes: list[str], why: str) -> None:
    with pytest.raises(EncodeError, match=why):
        await stored.create(client, scopes, brokers=("b",), by="me")


@pytest.mark.parametrize("credential", [b"", b"x", b"\xff\x00", b"amqpgw_live_", b"a" * 10_000])
async def test_nothing_else_opens_anything(stored: StoredKeys, credential: bytes) -> None:
    await stored.create("shop", ["admin"], brokers=("b",), by="me")
    assert stored.find(credential) is None
    assert stored.find(new_key().encode()) is None


async def test_another_process_hears_of_it(ledger: Ledger, stored: StoredKeys, clock: Clock) -> None:
    other = StoredKeys(ledger, clock=clock)
    await other.start()
    key, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    assert other.find(secret.encode()) is None
    await other.refresh()
    assert other.find(secret.encode())
    await stored.revoke(key.id, by="me")
    assert other.find(secret.encode())
    await other.refresh()
    assert other.find(secret.encode()) is None
    await other.close()


async def test_a_scope_that_is_none_any_more_allows_nothing(
    stored: StoredKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "check_scopes", lambda scopes, brokers: tuple(scopes))
    _, secret = await stored.create("shop", ["publish:b/", "publish:b/x"], brokers=("b",), by="me")
    found = stored.find(secret.encode())
    assert found is not None
    assert found.may("publish", "b", "x")
    assert not found.may("publish", "b", "")


async def test_what_is_forgotten_hides_no_change(ledger: Ledger, stored: StoredKeys, clock: Clock) -> None:
    """A row that goes takes its part of what tells that keys have changed with it."""
    other = StoredKeys(ledger, clock=clock)
    old, _ = await stored.create("old", ["admin"], brokers=("b",), by="me")
    await stored.revoke(old.id, by="me")
    clock.now += KEPT / 1e6 + 1
    leaked, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    await stored.revoke((await stored.create("gone", ["admin"], brokers=("b",), by="me"))[0].id, by="me")
    clock.now += KEPT / 1e6 + 1
    await other.start()
    assert other.find(secret.encode())
    await stored.revoke(leaked.id, by="me")
    _, new = await stored.create("shop", ["admin"], brokers=("b",), by="me")  # the one of "gone" goes
    await other.refresh()
    assert other.find(secret.encode()) is None
    assert other.find(new.encode())
    await other.close()


async def test_what_was_changed_here_is_read_whatever_the_version(
    stored: StoredKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def version() -> tuple[int, int, int]:
        return 0, 0, 0

    monkeypatch.setattr(stored._rows, "version", version)
    await stored.refresh()
    key, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    assert stored.find(secret.encode())
    new, replaced = await stored.rotate(key.id, by="me")
    assert stored.find(replaced.encode())
    await stored.revoke(new.id, by="me")
    assert stored.find(replaced.encode()) is None


async def test_what_was_read_before_a_change_does_not_replace_it(
    stored: StoredKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    stored._version = None
    live, go_on = stored._rows.live, asyncio.Event()

    async def slow(now: int) -> Any:
        found = await live(now)
        await go_on.wait()
        return found

    monkeypatch.setattr(stored._rows, "live", slow)
    reading = asyncio.create_task(stored.refresh())
    await asyncio.sleep(0.1)
    revoking = asyncio.create_task(stored.revoke(key.id, by="me"))
    await asyncio.sleep(0.1)
    monkeypatch.setattr(stored._rows, "live", live)
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    await asyncio.gather(reading, revoking)
    assert stored.find(secret.encode()) is None


async def test_it_is_asked_by_itself(ledger: Ledger, stored: StoredKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH", 0.01)
    monkeypatch.setattr(module, "USED_EVERY", 0.0)
    other = StoredKeys(ledger)
    await other.start()
    failures = [LedgerUnavailable("away"), RuntimeError("a defect")]
    refresh = other.refresh

    async def failing() -> None:
        if failures:
            raise failures.pop()
        await refresh()

    monkeypatch.setattr(other, "refresh", failing)
    key, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    while other.find(secret.encode()) is None:
        await asyncio.sleep(0.01)
    assert not failures
    while not (await other.get(key.id)).last_used_at:
        await asyncio.sleep(0.01)
    await other.close()


async def test_old_keys_are_forgotten(stored: StoredKeys, clock: Clock) -> None:
    await stored.create("a", ["admin"], brokers=("b",), by="me", seconds=1)
    two, _ = await stored.create("b", ["admin"], brokers=("b",), by="me")
    await stored.revoke(two.id, by="me")
    again = await stored.revoke(two.id, by="somebody else")
    assert again.revoked_at == (await stored.get(two.id)).revoked_at
    clock.now += KEPT / 1e6 + 2
    kept, _ = await stored.create("c", ["admin"], brokers=("b",), by="me")
    page, cursor = await stored.page(None, 10)
    assert ([key.id for key in page], cursor) == ([kept.id], None)


async def test_pages(stored: StoredKeys) -> None:
    ids = sorted([(await stored.create(f"c{number}", ["admin"], brokers=("b",), by="me"))[0].id for number in range(5)])
    first, cursor = await stored.page(None, 3)
    second, end = await stored.page(cursor, 3)
    assert ([key.id for key in (*first, *second)], end) == (ids, None)


async def test_use_is_remembered_at_the_end(ledger: Ledger, clock: Clock) -> None:
    stored = StoredKeys(ledger, clock=clock)
    await stored.start()
    key, secret = await stored.create("shop", ["admin"], brokers=("b",), by="me")
    clock.now += 5
    stored.find(secret.encode())
    await stored.close()
    assert (await stored.get(key.id)).last_used_at == int(clock.now * 1e6)


# ------------------------------------------------------------------------------------------------- over HTTP


async def test_a_life_over_http(ask: Callable[..., Any]) -> None:
    made = await ask("POST", "/v1/keys", json={"client": "shop", "scopes": ["publish:fake/amq.default"]})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    key = made.json()
    publish = ("POST", "/v1/brokers/fake/exchanges/amq.default:publish", key["key"])
    assert (await ask(*publish, json={"routing_key": "orders"})).status_code == 200
    problem(await ask("GET", "/v1/keys", key["key"]), 403, "forbidden")
    shown = (await ask("GET", f"/v1/keys/{key['id']}")).json()
    assert shown == {name: value for name, value in key.items() if name != "key"}
    assert (shown["live"], shown["created_by"], shown["revoked_at"]) == (True, "root", None)
    new = (await ask("POST", f"/v1/keys/{key['id']}:rotate")).json()
    assert (new["client"], new["scopes"]) == ("shop", key["scopes"])
    listed = (await ask("GET", "/v1/keys")).json()["keys"]
    assert {each["id"] for each in listed} == {key["id"], new["id"]}
    assert not any("key" in each for each in listed)
    problem(await ask("POST", f"/v1/keys/{key['id']}:rotate"), 409, "state")
    revoked = (await ask("POST", f"/v1/keys/{key['id']}:revoke")).json()
    assert (revoked["live"], revoked["revoked_at"] is not None) == (False, True)
    problem(await ask(*publish, json={"routing_key": "orders"}), 401, "unauthorized")
    assert (await ask(*publish[:2], new["key"], json={"routing_key": "orders"})).status_code == 200


async def test_a_list_says_what_opens_nothing(ask: Callable[..., Any], ledger: Ledger) -> None:
    ledger.api_keys.macs = KeyMacs({"one": bytes(32)})
    states = ("live", "changed", "expired", "revoked")
    keys = {
        client: (await ask("POST", "/v1/keys", json={"client": client, "scopes": ["history"]})).json()
        for client in states
    }
    await ask("POST", f"/v1/keys/{keys['revoked']['id']}:revoke")
    for client, values in (("changed", {"scopes": b'["admin"]'}), ("expired", {"expires_at": 1})):
        this = sa.update(api_keys).where(api_keys.c.client == client).values(**values)
        await ledger.task(lambda connection, _, this=this: connection.execute(this) and None)
    listed = {key["client"]: key for key in (await ask("GET", "/v1/keys")).json()["keys"]}
    found = {client: (key["state"], key["live"], key.get("refusal")) for client, key in listed.items()}
    assert found == {
        "live": ("live", True, None),
        "changed": ("refused", False, "the row is not as the gateway wrote it"),
        "expired": ("expired", False, None),
        "revoked": ("revoked", False, None),
    }


async def test_wrong_requests(ask: Callable[..., Any]) -> None:
    problem(await ask("POST", "/v1/keys", json={"client": "shop"}), 422, "invalid_request")
    problem(await ask("POST", "/v1/keys", json={"client": "shop", "scopes": ["root"]}), 422, "invalid_value")
    for field, pointer, value in (
        ("client", "/client", "jwt:shop"),
        ("scopes", "/scopes/0", ["root"]),
        ("environment", "/environment", "Live"),
    ):
        body = {"client": "shop", "scopes": ["history"], field: value}
        found = problem(await ask("POST", "/v1/keys", json=body), 422, "invalid_value")
        assert [error["pointer"] for error in found["errors"]] == [pointer]
    problem(await ask("GET", "/v1/keys/none"), 404, "no_such_resource")


async def test_the_keys_of_the_file_go_on(ask: Callable[..., Any], access: Access) -> None:
    assert (await ask("GET", "/v1/brokers")).status_code == 200
    problem(await ask("GET", "/v1/brokers", "wrong"), 401, "unauthorized")
    problem(await ask("GET", "/v1/brokers", ""), 401, "unauthorized")
    assert access.required


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ("publish:nobroker/x", "there is no broker 'nobroker'. The brokers are: fake."),
        ("consume:nobroker/x", "there is no broker 'nobroker'"),
        ("broker:nobroker", "there is no broker 'nobroker'"),
        ("route:nobroker/x/#", "there is no broker 'nobroker'"),
        ("subscribe:nobroker/x", "there is no broker 'nobroker'"),
        ("publish:fake/orders.*", "for an exchange of that name write route:fake/orders.%2A/#"),
        ("publish:fake/or*", "a * or # within a name is not a pattern"),
        ("publish:fake/orders.#", "a * or # within a name is not a pattern"),
        ("publish:fake/ex/orders.*", "write route:fake/ex%2Forders.%2A/#"),
        ("consume:fake/or*", "this names the one queue that is called 'or*'"),
        ("endpoint:shop-*", "this names the one endpoint that is called 'shop-*'"),
        ("consume:fake/" + "q" * 256, "more than 255 bytes"),
        ("route:fake/ex/or*", "the pattern has the word 'or*'"),
        ("route:fake/ex/a.b#", "the pattern has the word 'b#'"),
        ("route:fake/ex", "has 2 parts, not 3"),
        ("route:fake/ex/a/b", "has 4 parts, not 3"),
        ("route:fake//a", "has no EXCHANGE. Write amq.default for the default exchange."),
        ("route:/ex/a", "has no BROKER"),
        ("route:fake/ex/", "has no PATTERN. Write # for all routing keys."),
        ("route:fake/or*/a", "'or*' is not a name. Only the third part is a pattern."),
        ("route:fake/%2A/a", "'%2A' is not a name"),
        ("route:fake/e%/a", "'e%' is not percent-encoded. Write %25 for a percent sign."),
        ("route:fake/e%g1/a", "'e%g1' is not percent-encoded"),
        ("route:fake/ex/" + "a" * 256, "has 256 bytes; a name has at most 255"),
    ],
)
async def test_scopes_that_can_match_nothing_are_refused(ask: Callable[..., Any], scope: str, why: str) -> None:
    body = {"client": "shop", "scopes": ["history", scope]}
    found = problem(await ask("POST", "/v1/keys", json=body), 422, "invalid_value")
    assert why in found["detail"]
    assert repr(scope) in found["detail"]
    assert [error["pointer"] for error in found["errors"]] == ["/scopes/1"]


@pytest.mark.parametrize(
    "scope",
    ["publish:*/*", "publish:fake/*", "publish:fake/not.there.yet", "publish:fake/a%2Fb", "consume:fake/queue#1",
     "route:*/*/#", "route:fake/amq.default/orders", "route:fake/a%2Fb/eu.*.%23", "subscribe:fake/*", "endpoint:new",
     "route:fake/orders.%2A/#"],
)  # fmt: skip
async def test_scopes_that_may_match_something_are_taken(ask: Callable[..., Any], scope: str) -> None:
    assert (await ask("POST", "/v1/keys", json={"client": "shop", "scopes": [scope]})).status_code == 201
