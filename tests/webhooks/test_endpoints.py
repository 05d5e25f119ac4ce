"""The endpoints of a gateway: put, changed, sealed, rotated, disabled, and seen by other gateways."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trustme

from gateway.config import EndpointAuth, EndpointSettings, EndpointTls
from gateway.errors import (
    AddressDenied,
    CommitUnknown,
    ConfigurationError,
    ConnectFailed,
    EncodeError,
    EtagMismatch,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchEndpoint,
    Overloaded,
    ReadOnly,
    Unsupported,
)
from gateway.ledger import Ledger
from gateway.outbound import GuardedTransport
from gateway.webhooks.attempts.sender import Sender
from gateway.webhooks.attempts.signing import SignatureOutcome as Signed
from gateway.webhooks.settings import endpoints as module
from gateway.webhooks.settings import resealing
from gateway.webhooks.settings.documents import Spec, purposes_of
from gateway.webhooks.settings.endpoints import ENDPOINT_RESOURCE, STATE, EndpointRegistry, EndpointState
from gateway.webhooks.settings.secrets import Seals
from tests.core.conftest import ledger
from tests.outbound.endpoint import Endpoint as Server
from tests.outbound.endpoint import plain
from tests.webhooks.receivers import message, signed

__all__ = ["ledger"]

Open = Callable[..., Any]
Seen = list[tuple[str, EndpointState] | None]
SEALS = Seals([bytes(32)])


class Clock:
    """Seconds since 1970, as the test has them."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def opened(ledger: Ledger, transport: GuardedTransport, sender: Sender, clock: Clock) -> AsyncIterator[Open]:
    """``await opened(configured)``: endpoints over the ledger, started."""
    made: list[EndpointRegistry] = []

    async def open(configured: dict[str, EndpointSettings] | None = None, seals: Seals = SEALS) -> EndpointRegistry:
        found = EndpointRegistry(ledger, configured or {}, sender, seals, origin="gateway.example", clock=clock)
        made.append(found)
        await found.start()
        return found

    yield open
    for endpoints in made:
        await endpoints.close()


@pytest.fixture
async def endpoints(opened: Open) -> EndpointRegistry:
    return await opened()  # type: ignore[no-any-return]


def settings(server: Server, path: str = "/200", **more: Any) -> EndpointSettings:
    return EndpointSettings(url=server.url(path), **more)


def followed(endpoints: EndpointRegistry) -> Seen:
    """What a follower finds whenever it is notified: URL and state of the endpoint; None: it is gone."""
    seen: Seen = []

    def look(name: str) -> None:
        held = endpoints._held.get(name)
        seen.append(None if held is None else (held.endpoint.settings.url, held.endpoint.state))

    endpoints.on_change.append(look)
    return seen


# ----------------------------------------------------------------------------------------------- settings


async def test_put_get_delete(endpoints: EndpointRegistry, server: Server) -> None:
    heard: list[str] = []
    endpoints.on_change.append(heard.append)
    found, created, keys = await endpoints.put("shop", settings(server), None)
    assert (found.name, found.state, found.reason, found.read_only, created) == (
        "shop", EndpointState.ACTIVE, "", False, True,
    )  # fmt: skip
    assert [key.scheme for key in keys] == ["v1"]
    assert heard == ["shop"]
    assert await endpoints.get("shop") is found
    assert (await endpoints.page(None, 10)) == ([found], None)
    await endpoints.delete("shop", None)
    assert heard == ["shop", "shop"]
    with pytest.raises(NoSuchEndpoint):
        await endpoints.get("shop")
    with pytest.raises(NoSuchEndpoint):
        await endpoints.delete("shop", None)


async def test_the_same_again_changes_nothing(endpoints: EndpointRegistry, server: Server) -> None:
    wanted = settings(server, auth=EndpointAuth(kind="bearer", secret="s"))
    first, _, _ = await endpoints.put("shop", wanted, None)
    for match in (None, "*", first.etag):
        again, created, keys = await endpoints.put("shop", wanted, match)
        assert (again.etag, created, keys) == (first.etag, False, [])
    with pytest.raises(EtagMismatch):
        await endpoints.put("shop", wanted, "other")


async def test_other_settings_need_the_etag(endpoints: EndpointRegistry, server: Server) -> None:
    first, _, (key,) = await endpoints.put("shop", settings(server), None)
    other = settings(server, concurrency=3)
    with pytest.raises(EtagMismatch, match="exists with other settings"):
        await endpoints.put("shop", other, None)
    with pytest.raises(EtagMismatch):
        await endpoints.put("shop", other, "x")
    second, created, keys = await endpoints.put("shop", other, first.etag)
    assert (second.settings.concurrency, created, keys) == (3, False, [])
    assert second.etag != first.etag
    assert [each.id for each in second.keys] == [key.id], "the key stays"
    with pytest.raises(EtagMismatch):
        await endpoints.delete("shop", first.etag)


async def test_the_configuration_file_is_read_only(opened: Open, server: Server) -> None:
    endpoints = await opened({"file": settings(server, signing=("v1a",))})
    found = await endpoints.get("file")
    assert found.read_only
    assert [key.scheme for key in found.keys] == ["v1a"]
    for change in (endpoints.put("file", settings(server), None), endpoints.delete("file", None)):
        with pytest.raises(ReadOnly):
            await change
    assert (await endpoints.pause("file")).state is EndpointState.PAUSED
    again = await (await opened({"file": settings(server, signing=("v1a",))})).get("file")
    assert (again.state, again.keys[0].id) == (EndpointState.PAUSED, found.keys[0].id), "it is remembered"


async def test_a_wrong_configuration_file_does_not_start(opened: Open, server: Server) -> None:
    for wrong, why in (
        (EndpointSettings(url="http://10.0.0.1/"), r"endpoints.x.*only https is allowed"),
        (settings(server, auth=EndpointAuth(kind="basic")), r"endpoints.x.auth.user: basic needs it"),
        (settings(server, tls=EndpointTls(ca_file="/no/such")), r"endpoints.x.tls.ca_file: /no/such: No such file"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            await opened({"x": wrong})


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"url": "http://127.0.0.1.example/"}, AddressDenied, "only https"),
        ({"url": "https://localhost/"}, None, ""),
        ({"url": "https://metadata.internal/"}, AddressDenied, "internal is denied"),
        ({"url": "https://x.example:22/"}, AddressDenied, "port 22"),
        (
            {"auth": EndpointAuth(kind="oauth2", user="u", secret="s", token_url="https://169.254.169.254/")},
            AddressDenied,
            "169.254.0.0/16",
        ),
        ({"tls": EndpointTls(ca="nonsense")}, EncodeError, "tls.ca: "),
        ({"tls": EndpointTls(cert="-----BEGIN CERTIFICATE-----", key="k")}, EncodeError, "tls.cert: "),
        ({"tls": EndpointTls(ca_file="/etc/passwd")}, EncodeError, "tls.ca_file: files are named in the configuration"),
    ],
)
async def test_what_is_refused_when_it_is_put(
    endpoints: EndpointRegistry, server: Server, given: dict[str, Any], error: Any, why: str
) -> None:
    wanted = msgspec.structs.replace(settings(server), **given)
    if error is None:
        await endpoints.put("x", wanted, None)
        return
    with pytest.raises(error, match=why):
        await endpoints.put("x", wanted, None)
    with pytest.raises(NoSuchEndpoint):
        await endpoints.get("x")


async def test_there_is_an_end_to_them(
    endpoints: EndpointRegistry, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDPOINTS_MAX", 2)
    for name in ("a", "b"):
        await endpoints.put(name, settings(server), None)
    with pytest.raises(LimitExceeded, match="there are 2 endpoints, the limit is 2"):
        await endpoints.put("c", settings(server), None)
    await endpoints.put("b", settings(server, rate=1.0), "*")


async def test_pages(endpoints: EndpointRegistry, server: Server) -> None:
    for name in "dbac":
        await endpoints.put(name, settings(server), None)
    first, cursor = await endpoints.page(None, 3)
    assert ([each.name for each in first], cursor) == (["a", "b", "c"], "c")
    second, cursor = await endpoints.page(cursor, 3)
    assert ([each.name for each in second], cursor) == (["d"], None)


# ------------------------------------------------------------------------------------------------ secrets


async def test_no_secret_is_in_the_database(
    endpoints: EndpointRegistry, server: Server, ledger: Ledger, tmp_path: Path
) -> None:
    pem = trustme.CA().issue_cert("x.example")
    cert = b"".join(blob.bytes() for blob in pem.cert_chain_pems).decode()
    wanted = settings(
        server, "/200/s3cret-path?token=s3cret-query",
        auth=EndpointAuth(kind="basic", user="u", secret="s3cret-password"),
        headers={"x-api-key": "s3cret-header"}, signing=("v1", "v1a"),
        tls=EndpointTls(cert=cert, key=pem.private_key_pem.bytes().decode()),
    )  # fmt: skip
    _, _, keys = await endpoints.put("shop", wanted, None)
    assert (await endpoints.get("shop")).settings == wanted
    with sqlite3.connect(f"file:{tmp_path}/ledger.db?mode=ro", uri=True) as database:
        dump = "\n".join(str(row) for row in database.execute("SELECT CAST(spec AS TEXT) FROM resources"))
    database.close()
    assert "webhook-of" not in dump
    assert f'"url":"{server.url("")}"' in dump
    for secret in ("s3cret", "PRIVATE KEY", *(str(key.key).split("_")[1][:40] for key in keys)):
        assert secret not in dump
    await endpoints.disable("shop", "gone")
    disabled = await ledger.get_resource(STATE, "shop")
    assert disabled is not None
    assert "s3cret" not in json.dumps(disabled.spec)
    assert (await endpoints.get("shop")).state is EndpointState.DISABLED


async def test_urls_that_are_stored_in_clear_are_read(opened: Open, ledger: Ledger, server: Server) -> None:
    """As they were before they counted as secrets; what is put again is sealed."""
    wanted = settings(server, "/200?token=s3cret", signing=())
    await ledger.put_resource(ENDPOINT_RESOURCE, "old", msgspec.to_builtins(Spec(wanted)), None)
    await ledger.put_resource(STATE, "old", {"disabled": {"reason": "gone", "url": wanted.url, "at": 1.0}}, None)
    endpoints = await opened()
    found = await endpoints.get("old")
    assert (found.settings.url, found.state) == (wanted.url, EndpointState.DISABLED)
    put, _, _ = await endpoints.put("old", msgspec.structs.replace(wanted, rate=5.0), "*")
    assert put.settings.url == wanted.url
    resource = await ledger.get_resource(ENDPOINT_RESOURCE, "old")
    assert resource is not None
    assert "s3cret" not in json.dumps(resource.spec)


async def test_they_are_there_after_a_restart(opened: Open, endpoints: EndpointRegistry, server: Server) -> None:
    wanted = settings(server, auth=EndpointAuth(kind="bearer", secret="s"), signing=("v1", "v1a"))
    before, _, _ = await endpoints.put("shop", wanted, None)
    after = await (await opened()).get("shop")
    assert after == before
    assert [str(key.key) for key in after.keys] == [str(key.key) for key in before.keys]


async def test_without_the_key_messages_wait(opened: Open, endpoints: EndpointRegistry, server: Server) -> None:
    """An attempt that cannot be right is none: the endpoint is disabled, and says why."""
    await endpoints.put("shop", settings(server, auth=EndpointAuth(kind="bearer", secret="s"), signing=()), None)
    await endpoints.put("signed", settings(server), None)
    other = await opened(seals=Seals([bytes(range(32))]))
    for name in ("shop", "signed"):
        found = await other.get(name)
        assert found.state is EndpointState.DISABLED
        assert found.reason.startswith(f"its secrets cannot be read here: a secret is sealed with the key {SEALS.name}")
    with pytest.raises(ConfigurationError):
        await other.enable("signed")
    both = await opened(seals=Seals([bytes(range(32)), bytes(32)]))
    assert (await both.get("shop")).state is EndpointState.ACTIVE


async def test_whoever_changes_the_database_gets_no_secret_sent_elsewhere(
    opened: Open, endpoints: EndpointRegistry, server: Server, ledger: Ledger
) -> None:
    await endpoints.put("shop", settings(server, auth=EndpointAuth(kind="bearer", secret="s")), None)
    resource = await ledger.get_resource(ENDPOINT_RESOURCE, "shop")
    assert resource is not None
    resource.spec["settings"]["url"] = server.url("/404")
    await ledger.put_resource(ENDPOINT_RESOURCE, "shop", resource.spec, None)
    found = await (await opened()).get("shop")
    assert found.state is EndpointState.DISABLED
    assert "it was changed or moved" in found.reason
    assert found.settings.auth.secret == ""


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ("tls", "ca", "-----BEGIN CERTIFICATE-----"),
        ("tls", "ca_file", "/tmp/ca.pem"),
        ("tls", "server_name", "evil.example"),
        ("tls", "cert", "-----BEGIN CERTIFICATE-----"),
        ("tls", "cert_file", "/tmp/cert.pem"),
        ("tls", "key_file", "/tmp/key.pem"),
        ("auth", "kind", "basic"),
        ("auth", "user", "somebody"),
        ("auth", "token_url", "https://evil.example/token"),
        ("auth", "scope", "all"),
        ("auth", "secret_file", "/etc/passwd"),
    ],
)
async def test_nor_by_other_settings_that_decide_who_gets_it(
    opened: Open, endpoints: EndpointRegistry, server: Server, ledger: Ledger, table: str, name: str, value: str
) -> None:
    await endpoints.put("shop", settings(server, auth=EndpointAuth(kind="bearer", secret="s")), None)
    resource = await ledger.get_resource(ENDPOINT_RESOURCE, "shop")
    assert resource is not None
    resource.spec["settings"].setdefault(table, {})[name] = value
    await ledger.put_resource(ENDPOINT_RESOURCE, "shop", resource.spec, None)
    found = await (await opened()).get("shop")
    assert (found.state, found.settings.auth.secret) == (EndpointState.DISABLED, "")
    assert "it was changed or moved" in found.reason


async def _sealed_before(ledger: Ledger) -> str:
    """Seal the secrets of an endpoint as a release did that bound them to its URLs alone."""
    resource = await ledger.get_resource(ENDPOINT_RESOURCE, "shop")
    assert resource is not None
    spec = msgspec.convert(resource.spec, Spec)
    now, before = purposes_of("shop", spec.settings)
    sealed = SEALS.seal(before, SEALS.open([now], spec.sealed))
    await ledger.put_resource(ENDPOINT_RESOURCE, "shop", {**resource.spec, "sealed": sealed}, None)
    return sealed


async def test_secrets_of_a_release_before_open_and_are_sealed_anew(
    opened: Open, endpoints: EndpointRegistry, server: Server, ledger: Ledger
) -> None:
    auth = EndpointAuth(kind="bearer", secret="s")
    await endpoints.put("shop", settings(server, auth=auth), None)
    for way in ("put", "rotate"):
        await _sealed_before(ledger)
        later = await opened()
        assert (await later.get("shop")).settings.auth.secret == "s"
        if way == "put":
            await later.put("shop", settings(server, auth=EndpointAuth(kind="bearer"), rate=5), "*")
        else:
            assert await resealing.rotate(ledger, SEALS) == (1, [])
        assert await resealing.rotate(ledger, SEALS) == (0, []), "it is bound to all of it now"
        resource = await ledger.get_resource(ENDPOINT_RESOURCE, "shop")
        assert resource is not None
        spec = msgspec.convert(resource.spec, Spec)
        with pytest.raises(ConfigurationError):
            SEALS.open(purposes_of("shop", spec.settings)[1:], spec.sealed)
        assert (await (await opened()).get("shop")).settings.auth == auth


@pytest.mark.parametrize("spec", [{}, {"settings": 7}, {"settings": {"url": "http://x", "format": "xml"}}])
async def test_documents_that_cannot_be_read(opened: Open, ledger: Ledger, spec: dict[str, Any]) -> None:
    await ledger.put_resource(ENDPOINT_RESOURCE, "shop", spec, None)
    found = await (await opened()).get("shop")
    assert found.state is EndpointState.DISABLED
    assert "its settings cannot be read" in found.reason


async def test_a_secret_stays_where_it_is_put_empty(endpoints: EndpointRegistry, server: Server) -> None:
    await endpoints.put("shop", settings(server, auth=EndpointAuth(kind="bearer", secret="s")), None)
    shown = settings(server, auth=EndpointAuth(kind="bearer"))
    same, _, _ = await endpoints.put("shop", shown, None)
    assert same.settings.auth.secret == "s"
    other, _, _ = await endpoints.put("shop", msgspec.structs.replace(shown, rate=5.0), "*")
    assert (other.settings.auth.secret, other.rate) == ("s", 5.0)
    moved = msgspec.structs.replace(shown, url="https://other.example/")
    with pytest.raises(EncodeError, match=r"auth\.secret: it must be given again"):
        await endpoints.put("shop", moved, "*")


# ---------------------------------------------------------------------------------------------------- keys


async def test_rotation_over_the_wire(
    endpoints: EndpointRegistry, sender: Sender, server: Server, clock: Clock
) -> None:
    _, _, (old,) = await endpoints.put("shop", settings(server), None)

    async def judged() -> list[Signed]:
        await sender.send(await endpoints.get("shop"), [message()], int(clock.now))
        return [signed(server.requests[-1], clock.now, key.key) for key in (old, new)]  # type: ignore[arg-type]

    found, (new,) = await endpoints.rotate("shop", overlap=60.0)
    assert [key.id for key in found.keys] == [new.id, old.id]
    assert await judged() == [Signed.VALID, Signed.VALID]
    clock.now += 59
    assert await judged() == [Signed.VALID, Signed.VALID]
    clock.now += 1
    assert await judged() == [Signed.MISMATCH, Signed.VALID]


async def test_until_it_is_finished(endpoints: EndpointRegistry, server: Server, clock: Clock) -> None:
    await endpoints.put("shop", settings(server, signing=("v1", "v1a")), None)
    found, new = await endpoints.rotate("shop", ["v1"], overlap=None)
    assert [key.scheme for key in new] == ["v1"]
    assert [(key.scheme, key.old) for key in found.keys] == [("v1", False), ("v1", True), ("v1a", False)]
    clock.now += 1e9
    assert len((await endpoints.get("shop")).signing_keys(clock.now)) == 3
    found, new = await endpoints.rotate("shop", finish=True)
    assert (len(found.keys), new) == (2, [])


async def test_what_cannot_be_rotated(endpoints: EndpointRegistry, server: Server) -> None:
    await endpoints.put("shop", settings(server), None)
    await endpoints.put("plain", settings(server, signing=()), None)
    with pytest.raises(Unsupported, match="does not sign with v1a"):
        await endpoints.rotate("shop", ["v1a"])
    with pytest.raises(Unsupported, match="does not sign"):
        await endpoints.rotate("plain")
    with pytest.raises(NoSuchEndpoint):
        await endpoints.rotate("none")


async def test_another_scheme_gets_its_key(endpoints: EndpointRegistry, server: Server) -> None:
    _, _, (first,) = await endpoints.put("shop", settings(server), None)
    found, _, new = await endpoints.put("shop", settings(server, signing=("v1", "v1a")), "*")
    assert [key.scheme for key in new] == ["v1a"]
    assert first.id in {key.id for key in found.keys}
    found, _, new = await endpoints.put("shop", settings(server, signing=("v1a",)), "*")
    assert ([key.scheme for key in found.keys], new) == (["v1a"], [])


async def test_public_keys(endpoints: EndpointRegistry, server: Server, clock: Clock) -> None:
    assert json.loads(endpoints.public_keys().document) == {"keys": []}
    await endpoints.put("shop", settings(server, signing=("v1", "v1a")), None)
    _, (new,) = await endpoints.rotate("shop", ["v1a"], overlap=60.0)
    shown = endpoints.public_keys()
    assert new.id in shown.by_name
    assert len(shown.by_name) == 2
    assert endpoints.public_keys() is shown, "made once"
    clock.now += 60
    assert list(endpoints.public_keys().by_name) == [new.id]
    await endpoints.delete("shop", None)
    assert endpoints.public_keys().by_name == {}


async def test_keys_of_one_that_had_this_name_are_not_taken_over(endpoints: EndpointRegistry, server: Server) -> None:
    _, _, (old,) = await endpoints.put("shop", settings(server), None)
    await endpoints.delete("shop", None)
    _, _, (new,) = await endpoints.put("shop", settings(server), None)
    assert old.told != new.told


async def test_what_is_left_of_one_that_had_this_name_is_not_taken_over(
    opened: Open, endpoints: EndpointRegistry, server: Server, ledger: Ledger
) -> None:
    """The gateway died between the two documents when it deleted them."""
    _, _, (old,) = await endpoints.put("shop", settings(server), None)
    await endpoints.pause("shop")
    await ledger.delete_resource(ENDPOINT_RESOURCE, "shop")
    found, created, (new,) = await (await opened()).put("shop", settings(server), None)
    assert (found.state, created, [key.id for key in found.keys]) == (EndpointState.ACTIVE, True, [new.id])
    assert new.id != old.id


async def test_what_is_left_of_one_that_had_this_name_need_not_be_readable(
    endpoints: EndpointRegistry, server: Server, ledger: Ledger
) -> None:
    """Its keys were sealed under a secret that is not there any more."""
    left = {"scheme": "v1", "id": "lost", "at": 1.0, "sealed": "nobody can read this"}
    await ledger.put_resource(STATE, "shop", {"keys": [left]}, None)
    found, created, (new,) = await endpoints.put("shop", settings(server), None)
    assert (found.state, created, [key.id for key in found.keys]) == (EndpointState.ACTIVE, True, [new.id])


async def test_one_whose_keys_were_not_made_gets_them_at_the_start(
    opened: Open, server: Server, ledger: Ledger
) -> None:
    """The gateway died between the two documents."""
    await ledger.put_resource(ENDPOINT_RESOURCE, "shop", {"settings": {"url": server.url("/200")}, "sealed": ""}, None)
    found = await (await opened()).get("shop")
    assert (found.state, len(found.keys)) == (EndpointState.ACTIVE, 1)


@pytest.mark.parametrize("fails", [ENDPOINT_RESOURCE, STATE])
async def test_what_is_stored_though_its_put_fails_is_done_by_the_next(
    endpoints: EndpointRegistry, server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    seen = followed(endpoints)
    put = ledger.put_resource

    async def cut(kind: str, name: str, spec: Any, condition: str | None = None) -> Any:
        if kind == fails == STATE:
            raise LedgerUnavailable("away")
        found = await put(kind, name, spec, condition)
        if kind == fails:
            raise CommitUnknown("cut off")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "put_resource", cut)
        with pytest.raises(LedgerUnavailable):
            await endpoints.put("shop", settings(server), None)
    found, created, (key,) = await endpoints.put("shop", settings(server), None)
    assert (found.state, created, [each.id for each in found.keys]) == (EndpointState.ACTIVE, False, [key.id])
    assert seen[-1] == (server.url("/200"), EndpointState.ACTIVE)
    seen.clear()
    other = settings(server, concurrency=3)
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "put_resource", cut)
        with suppress(LedgerUnavailable):  # its state stays as it is, so that only the other write can fail
            await endpoints.put("shop", other, found.etag)
    again, _, keys = await endpoints.put("shop", other, None)
    assert (again.settings.concurrency, keys) == (3, [])
    assert set(seen) == {(server.url("/200"), EndpointState.ACTIVE)}


@pytest.fixture
def no_states(ledger: Ledger) -> Callable[[], AbstractContextManager[None]]:
    """``with no_states():`` no state of an endpoint can be written."""

    @contextmanager
    def away() -> Iterator[None]:
        put = ledger.put_resource

        async def fail(kind: str, *arguments: Any) -> Any:
            if kind == STATE:
                raise LedgerUnavailable("away")
            return await put(kind, *arguments)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ledger, "put_resource", fail)
            yield

    return away


async def test_settings_count_though_the_state_is_not_written(
    endpoints: EndpointRegistry, server: Server, no_states: Callable[[], AbstractContextManager[None]]
) -> None:
    """The caller's next attempt finds the same settings, and has nothing to change."""
    first, _, _ = await endpoints.put("shop", settings(server), None)
    await endpoints.resume("shop")
    seen = followed(endpoints)
    other = settings(server, "/201", paused=True)
    with no_states(), pytest.raises(LedgerUnavailable):
        await endpoints.put("shop", other, first.etag)
    again, created, _ = await endpoints.put("shop", other, None)
    assert (again.settings.url, created) == (server.url("/201"), False)
    assert seen
    assert seen[-1] == (again.settings.url, again.state)


async def test_one_that_was_deleted_though_that_failed_gets_nothing_more(
    endpoints: EndpointRegistry, server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await endpoints.put("shop", settings(server), None)
    heard: list[str] = []
    endpoints.on_change.append(heard.append)
    delete = ledger.delete_resource

    async def cut(*arguments: Any) -> bool:
        await delete(*arguments)
        raise CommitUnknown("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "delete_resource", cut)
        with pytest.raises(CommitUnknown):
            await endpoints.delete("shop", None)
    with pytest.raises(NoSuchEndpoint):
        await endpoints.delete("shop", None)
    assert heard == ["shop"]


# -------------------------------------------------------------------------------------------------- states


async def test_pause_resume(opened: Open, endpoints: EndpointRegistry, server: Server) -> None:
    await endpoints.put("shop", settings(server), None)
    paused = await endpoints.pause("shop")
    assert (paused.state, paused.reason) == (EndpointState.PAUSED, "paused")
    assert (await (await opened()).get("shop")).state is EndpointState.PAUSED
    other, _, _ = await endpoints.put("shop", settings(server, rate=1.0), "*")
    assert other.state is EndpointState.PAUSED, "other settings do not resume it"
    assert (await endpoints.resume("shop")).state is EndpointState.ACTIVE
    put, _, _ = await endpoints.put("shop", settings(server, paused=True), "*")
    assert put.state is EndpointState.PAUSED, "the settings say so"
    assert (await endpoints.resume("shop")).state is EndpointState.ACTIVE
    for verb in (endpoints.pause, endpoints.resume, endpoints.enable, endpoints.verify, endpoints.test):
        with pytest.raises(NoSuchEndpoint):
            await verb("none")


async def test_disabled_until_it_is_enabled_or_has_another_url(
    opened: Open, endpoints: EndpointRegistry, server: Server, clock: Clock
) -> None:
    await endpoints.put("shop", settings(server, "/410"), None)
    found = await endpoints.disable("shop", "410: gone")
    assert (found.state, found.reason) == (EndpointState.DISABLED, "410: gone")
    assert (await (await opened()).get("shop")).state is EndpointState.DISABLED
    assert (await endpoints.resume("shop")).state is EndpointState.DISABLED
    assert (await endpoints.enable("shop")).state is EndpointState.ACTIVE
    await endpoints.disable("shop", "410: gone")
    other, _, _ = await endpoints.put("shop", settings(server), "*")
    assert other.state is EndpointState.ACTIVE
    back, _, _ = await endpoints.put("shop", settings(server, "/410"), "*")
    assert back.state is EndpointState.DISABLED, "it has said so at that URL"
    await endpoints.enable("shop")
    await endpoints.put("shop", settings(server), "*")
    late = await endpoints.disable("shop", "410: gone", back.settings.url)
    assert late.state is EndpointState.ACTIVE, "the answer came late, from where it was before"


async def test_changes_at_once_are_all_there(endpoints: EndpointRegistry, server: Server) -> None:
    await endpoints.put("shop", settings(server, signing=("v1", "v1a")), None)
    await asyncio.gather(
        endpoints.pause("shop"), endpoints.rotate("shop", ["v1"]), endpoints.rotate("shop", ["v1a"]),
        endpoints.disable("shop", "gone"),
    )  # fmt: skip
    found = await endpoints.get("shop")
    assert (found.state, len(found.keys)) == (EndpointState.DISABLED, 4)
    assert (await endpoints.enable("shop")).state is EndpointState.PAUSED


# --------------------------------------------------------------------------------------------- handshakes


class Owner(Server):
    """Allows itself to be called, or not."""

    answer = plain(405)

    async def _answer(self, request: Any, reader: Any, writer: Any) -> bool:
        writer.write(self.answer)
        return True


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    found = Owner()
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = listening.sockets[0].getsockname()[1]
    yield found
    listening.close()
    await found.close()


ALLOWED = plain(200, "WebHook-Allowed-Origin: *\r\nWebHook-Allowed-Rate: 60\r\n")


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_it_is_asked_until_it_allows_it(opened: Open, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERIFY_AFTER", (0.0, 0.0, 0.05, 0.05, 0.05, 0.05, 0.05))
    endpoints = await opened()
    heard: list[EndpointState] = []
    endpoints.on_change.append(lambda name: heard.append(endpoints._held[name].endpoint.state))
    found, _, _ = await endpoints.put("shop", settings(owner, handshake=True, rate=5.0), None)
    assert found.state is EndpointState.UNVERIFIED
    await until(lambda: len(owner.requests) >= 2)
    waiting = await endpoints.get("shop")
    assert (waiting.state, waiting.verified_at) == (EndpointState.UNVERIFIED, None)
    assert waiting.reason == "not verified: it answered OPTIONS with 405"
    owner.answer = ALLOWED
    await until(lambda: heard[-1] is EndpointState.ACTIVE)
    allowed = await endpoints.get("shop")
    assert (allowed.rate, allowed.allowed_rate) == (1.0, 1.0)
    assert allowed.verified_at is not None
    again = await (await opened()).get("shop")
    assert again.state is EndpointState.ACTIVE
    moved, _, _ = await endpoints.put("shop", settings(owner, "/other", handshake=True), "*")
    assert moved.state is EndpointState.UNVERIFIED, "another URL may be another's"


async def test_verify_by_hand(endpoints: EndpointRegistry, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERIFY_AFTER", ())
    await endpoints.put("shop", settings(owner, handshake=True), None)
    assert (await endpoints.get("shop")).reason == "it has not been asked yet"
    owner.answer = ALLOWED
    assert (await endpoints.verify("shop")).state is EndpointState.ACTIVE
    with monkeypatch.context() as away:
        away.setattr(module.handshake, "ask", _away)
        with pytest.raises(ConnectFailed):
            await endpoints.verify("shop")
    assert (await endpoints.get("shop")).state is EndpointState.ACTIVE, "what it allowed still holds"
    owner.answer = plain(200)
    found = await endpoints.verify("shop")
    assert (found.state, found.verified_at) == (EndpointState.UNVERIFIED, None), "it takes it back"


@pytest.mark.parametrize("signing", [(), ("v1",)])
async def test_one_whose_state_was_not_written_is_asked_all_the_same(
    endpoints: EndpointRegistry,
    owner: Owner,
    signing: Any,
    no_states: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "VERIFY_AFTER", (0.0, 0.05, 0.05, 0.05, 0.05))
    owner.answer = ALLOWED
    wanted = settings(owner, handshake=True, signing=signing)
    with no_states(), pytest.raises(LedgerUnavailable):
        await endpoints.put("shop", wanted, None)
    await endpoints.put("shop", wanted, None)
    await until(lambda: endpoints._held["shop"].endpoint.state is EndpointState.ACTIVE)


async def _away(*_: object) -> float:
    raise ConnectFailed("nobody is there")


async def test_one_that_is_not_there_is_not_verified(
    endpoints: EndpointRegistry, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERIFY_AFTER", ())
    monkeypatch.setattr(module.handshake, "ask", _away)
    await endpoints.put("shop", settings(owner, handshake=True), None)
    found = await endpoints.verify("shop")
    assert (found.state, found.reason) == (EndpointState.UNVERIFIED, "not verified: nobody is there")


# --------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("form", ["json", "raw", "cloudevents-binary", "cloudevents-structured", "cloudevents-batch"])
async def test_a_test_is_marked_and_signed(
    endpoints: EndpointRegistry, server: Server, clock: Clock, form: Any
) -> None:
    _, _, (key,) = await endpoints.put("shop", settings(server, format=form), None)
    await endpoints.pause("shop")
    outcome = await endpoints.test("shop")
    assert (outcome.status, outcome.body) == (200, b"ok")
    (request,) = server.requests
    assert request.headers["webhook-id"] == outcome.id
    assert signed(request, clock.now, key.key) is Signed.VALID  # type: ignore[arg-type]
    marks = (request.headers.get("amqp-test"), b'"test":true' in request.body, b'"amqptest":true' in request.body)
    assert any(marks)


# -------------------------------------------------------------------------------------- several gateways


@pytest.fixture
def shared(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is one that others write to as well."""
    monkeypatch.setattr(ledger, "work", SimpleNamespace(shared=True))
    monkeypatch.setattr(module, "REFRESH", 0.02)


@pytest.mark.usefixtures("shared")
async def test_what_another_gateway_changes_is_seen(opened: Open, server: Server) -> None:
    one, other = await opened(), await opened()
    heard: list[str] = []
    other.on_change.append(heard.append)
    await one.put("shop", settings(server), None)
    assert (await other.get("shop")).settings == settings(server), "at once, if somebody asks for it"
    await one.pause("shop")
    await until(lambda: other._held["shop"].endpoint.state is EndpointState.PAUSED)
    assert set(heard) == {"shop"}
    await other.resume("shop")
    await until(lambda: one._held["shop"].endpoint.state is EndpointState.ACTIVE)
    reads, quiet = other._loads, len(heard)
    await until(lambda: other._loads >= reads + 3)
    assert len(heard) == quiet, "nothing is said of what has not changed"
    await one.delete("shop", None)
    await until(lambda: not other._held)
    assert len(heard) > quiet


@pytest.mark.usefixtures("shared")
async def test_both_change_it_at_once(opened: Open, server: Server) -> None:
    one, other = await opened(), await opened()
    await one.put("shop", settings(server, signing=("v1", "v1a")), None)
    await other.get("shop")
    await asyncio.gather(*(each.rotate("shop", [scheme]) for each in (one, other) for scheme in ("v1", "v1a")))
    await other.pause("shop")
    found = await (await opened()).get("shop")
    assert (len(found.keys), found.state) == (6, EndpointState.PAUSED)


@pytest.mark.usefixtures("shared")
async def test_a_reading_that_was_overtaken_undoes_nothing(
    opened: Open, server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH", 3_600.0)
    endpoints = await opened()
    await endpoints.put("shop", settings(server), None)
    await endpoints.put("gone", settings(server), None)
    read = ledger.list_resources
    going, on = asyncio.Event(), asyncio.Event()

    async def slow(kind: str, cursor: str | None, limit: int) -> Any:
        found = await read(kind, cursor, limit)
        if kind == ENDPOINT_RESOURCE:
            going.set()
            await on.wait()
        return found

    monkeypatch.setattr(ledger, "list_resources", slow)
    loading = asyncio.create_task(endpoints._load())
    await going.wait()
    await endpoints.pause("shop")
    await endpoints.put("new", settings(server), None)
    await endpoints.delete("gone", None)
    on.set()
    await loading
    assert (await endpoints.get("shop")).state is EndpointState.PAUSED
    assert {each.name for each in (await endpoints.page(None, 10))[0]} == {"shop", "new"}


@pytest.fixture
async def two(opened: Open, shared: None, monkeypatch: pytest.MonkeyPatch) -> tuple[EndpointRegistry, EndpointRegistry]:
    """The endpoints of two gateways, which look for changes of the other only when the test has them look."""
    monkeypatch.setattr(module, "REFRESH", 3_600.0)
    return await opened(), await opened()


async def test_one_that_is_read_before_the_refresh_finds_it_is_reported(
    two: tuple[EndpointRegistry, EndpointRegistry], server: Server
) -> None:
    """Else what was pushed to it waits for ever: the refresh finds nothing different."""
    one, other = two
    seen = followed(other)
    found, _, _ = await one.put("shop", settings(server), None)
    assert await other.get("shop") == found
    assert seen == [(server.url("/200"), EndpointState.ACTIVE)]
    await other._load()
    assert len(seen) == 1


async def test_other_settings_that_a_refused_put_finds_are_reported(
    two: tuple[EndpointRegistry, EndpointRegistry], server: Server
) -> None:
    one, other = two
    first, _, _ = await one.put("shop", settings(server), None)
    await other._load()
    seen = followed(other)
    await one.put("shop", settings(server, "/201"), first.etag)
    with pytest.raises(EtagMismatch):
        await other.put("shop", settings(server, "/202"), first.etag)
    assert seen == [(server.url("/201"), EndpointState.ACTIVE)]
    await other._load()
    assert len(seen) == 1


@pytest.mark.parametrize("verb", ["pause", "disable", "rotate"])
async def test_one_that_a_change_finds_deleted_is_reported(
    two: tuple[EndpointRegistry, EndpointRegistry], server: Server, verb: str
) -> None:
    one, other = two
    await one.put("shop", settings(server), None)
    await other._load()
    seen = followed(other)
    await one.delete("shop", None)
    with pytest.raises(NoSuchEndpoint):
        await (other.disable("shop", "gone") if verb == "disable" else getattr(other, verb)("shop"))
    assert seen == [None]
    await other._load()
    assert len(seen) == 1


async def test_what_is_read_while_all_are_read_is_the_newer(
    two: tuple[EndpointRegistry, EndpointRegistry], server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    read = ledger.list_resources
    going, on = asyncio.Event(), asyncio.Event()

    async def slow(kind: str, cursor: str | None, limit: int) -> Any:
        found = await read(kind, cursor, limit)
        if kind == ENDPOINT_RESOURCE:
            going.set()
            await on.wait()
        return found

    monkeypatch.setattr(ledger, "list_resources", slow)
    seen = followed(other)
    loading = asyncio.create_task(other._load())
    await going.wait()
    await one.put("shop", settings(server), None)
    await other.get("shop")
    on.set()
    await loading
    assert "shop" in other
    assert seen == [(server.url("/200"), EndpointState.ACTIVE)]


async def test_what_is_put_while_it_is_read_is_the_newer(
    two: tuple[EndpointRegistry, EndpointRegistry], server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be pushed to the URL of before until the next refresh."""
    one, other = two
    await one.put("shop", settings(server), None)
    read = ledger.get_resource
    going, on = asyncio.Event(), asyncio.Event()

    async def slow(kind: str, name: str) -> Any:
        found = await read(kind, name)
        if not going.is_set():
            going.set()
            await on.wait()
        return found

    monkeypatch.setattr(ledger, "get_resource", slow)
    seen = followed(other)
    reading = asyncio.create_task(other.get("shop"))
    await going.wait()
    putting = asyncio.create_task(other.put("shop", settings(server, "/201"), "*"))
    await asyncio.wait([putting], timeout=0.2)
    on.set()
    await asyncio.gather(reading, putting)
    assert seen[-1] == (server.url("/201"), EndpointState.ACTIVE)
    assert (await other.get("shop")).settings.url == server.url("/201")


async def test_a_refresh_that_fails_halfway_loses_none(
    two: tuple[EndpointRegistry, EndpointRegistry], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    for name in ("a", "b"):
        await one.put(name, settings(server), None)
    await other._load()
    await one.pause("b")
    seen = followed(other)
    with monkeypatch.context() as patched:
        patched.setattr(other._documents, "make", _broken)
        with pytest.raises(RuntimeError):
            await other._load()
    assert [each.name for each in (await other.page(None, 10))[0]] == ["a", "b"]
    assert seen == []
    await other._load()
    assert seen == [(server.url("/200"), EndpointState.PAUSED)]


def _broken(*_: object) -> Any:
    raise RuntimeError("a defect")


@pytest.mark.usefixtures("shared")
async def test_closing_them_is_no_fault(opened: Open) -> None:
    endpoints = await opened()
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    await endpoints.close()
    assert faults == []


@pytest.mark.usefixtures("shared")
async def test_a_ledger_that_is_away_is_asked_again(
    opened: Open, server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await opened(), await opened()
    read, fails = ledger.list_resources, 3

    async def away(*arguments: Any) -> Any:
        nonlocal fails
        if fails:
            fails -= 1
            raise LedgerUnavailable("away")
        return await read(*arguments)

    monkeypatch.setattr(ledger, "list_resources", away)
    await one.put("shop", settings(server), None)
    await until(lambda: "shop" in other._held)


@pytest.mark.usefixtures("shared")
async def test_a_defect_does_not_end_the_looking(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await opened(), await opened()
    read, errors = other._load, [RuntimeError("a defect"), Overloaded("too much")]

    async def broken() -> None:
        if errors:
            raise errors.pop()
        await read()

    monkeypatch.setattr(other, "_load", broken)
    await one.put("shop", settings(server), None)
    await until(lambda: "shop" in other._held)
    logged = [record.getMessage() for record in caplog.records]
    assert [each for each in logged if each.startswith("endpoints.")] == ["endpoints.not_read", "endpoints.failed"]


async def test_ten_thousand_are_started_with(opened: Open, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read by pages, and each by itself."""
    monkeypatch.setattr(module, "PAGE", 3)
    rng = random.Random(1)
    for number in range(10):
        spec = {"settings": {"url": f"https://{rng.random()}.example/", "signing": []}, "sealed": ""}
        await ledger.put_resource(ENDPOINT_RESOURCE, f"e{number}", spec, None)
    await ledger.put_resource(STATE, "e3", {"paused": True}, None)
    await ledger.put_resource(STATE, "orphan", {"paused": True}, None)
    page, _ = await (await opened()).page(None, 100)
    assert [each.name for each in page if each.state is EndpointState.PAUSED] == ["e3"]
    assert len(page) == 10


async def test_what_one_gateway_was_allowed_all_are(
    ledger: Ledger, transport: GuardedTransport, sender: Sender, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name of our own in the settings it is the machine's, and another's there."""
    owner.answer = ALLOWED
    configured = {"shop": settings(owner, handshake=True)}
    states = {}
    for host, origin in (("one", ""), ("other", ""), ("other", "gateway.example")):
        monkeypatch.setattr(module.socket, "gethostname", lambda host=host: host)
        monkeypatch.setattr(module, "VERIFY_AFTER", (0.0,) if not states else ())
        endpoints = EndpointRegistry(ledger, configured, sender, SEALS, origin=origin)
        await endpoints.start()
        if not states:
            await until(lambda: endpoints._held["shop"].endpoint.state is EndpointState.ACTIVE)  # noqa: B023
        states[host, origin] = (await endpoints.get("shop")).state
        await endpoints.close()
    assert [request.headers["webhook-request-origin"] for request in owner.requests] == ["one"]
    assert list(states.values()) == [EndpointState.ACTIVE, EndpointState.ACTIVE, EndpointState.UNVERIFIED]
