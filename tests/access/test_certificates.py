"""The API over TLS, and callers who are known by their certificates: real handshakes with real certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
import trustme

from gateway import app as apps
from gateway.access.access import Access
from gateway.api.http.guard import names_of
from gateway.app import App, running
from gateway.config import Config, load
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from tests.api.conftest import problem
from tests.ledgers import sqlite_ledger
from tests.upstreams.fake import until

Serve = Callable[..., AbstractAsyncContextManager[App]]
CALLERS = (
    {"client": "shop", "name": "DNS:shop.example", "scopes": ["history"]},
    {"client": "root", "name": "CN:root", "scopes": ["admin"]},
)


class Files:
    """A CA, the server's certificate, and whoever it signs for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.issue("127.0.0.1", "localhost")

    def issue(self, *names: str, ca: trustme.CA | None = None) -> None:
        """A new certificate of the server."""
        made = (ca or self.ca).issue_cert(*names)
        made.private_key_and_cert_chain_pem.write_to_path(str(self.folder / "new.pem"))
        (self.folder / "new.pem").replace(self.folder / "server.pem")

    def client(self, *names: str, ca: trustme.CA | None = None, common_name: str | None = None) -> ssl.SSLContext:
        """What a caller with a certificate of these names connects with; none: it has no certificate."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if names:
            (ca or self.ca).issue_cert(*names, common_name=common_name).configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def serve(files: Files) -> Serve:
    @asynccontextmanager
    async def serve(**more: Any) -> AsyncIterator[App]:
        folder = files.folder
        sqlite_ledger(folder / "data")
        anywhere = {"http.port": 0, "ops.port": 0, "data_dir": str(folder / "data")}
        tls = {
            "http.tls.cert_file": str(folder / "server.pem"), "http.tls.client_ca_file": str(folder / "ca.pem"),
            "access.certificates": list(CALLERS),
        }  # fmt: skip
        async with running(load(None, {}, {**anywhere, **tls, **more})) as app:
            yield app

    return serve


async def ask(app: App, context: ssl.SSLContext, path: str = "/v1/messages", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(verify=context, base_url=app.url, timeout=20) as client:
        return await client.get(path, headers=headers)


async def test_who_has_a_certificate_needs_no_key(serve: Serve, files: Files) -> None:
    async with serve() as app:
        assert app.url.startswith("https://")
        shop = files.client("shop.example")
        assert (await ask(app, shop)).status_code == 200
        problem(await ask(app, shop, "/v1/bridges"), 403, "forbidden")
        assert (await ask(app, files.client("x.example", common_name="root"), "/v1/bridges")).status_code == 200
        found = problem(await ask(app, files.client("other.example")), 401, "unauthorized")
        assert found["detail"] == "no client has this certificate, or several have"
        assert found["advice"].startswith("Have access.certificates name the certificate")
        problem(await ask(app, files.client()), 401, "unauthorized")
        problem(await ask(app, shop, authorization="Bearer wrong"), 401, "unauthorized")
        assert (await ask(app, files.client(), "/openapi.json")).status_code == 200


async def test_certificates_of_nobody_we_know(serve: Serve, files: Files) -> None:
    async with serve() as app:
        with pytest.raises(httpx.HTTPError):
            await ask(app, files.client("shop.example", ca=trustme.CA()))


async def test_certificates_of_callers_that_have_expired(serve: Serve, files: Files) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    async with serve() as app:
        context = files.client()
        files.ca.issue_cert(
            "shop.example", not_before=yesterday - timedelta(days=9), not_after=yesterday
        ).configure_cert(context)
        with pytest.raises(httpx.HTTPError):
            await ask(app, context)
        assert (await ask(app, files.client("shop.example"))).status_code == 200


async def test_an_authority_that_is_taken_out_counts_no_more(
    serve: Serve, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apps, "RENEW_EVERY", 0.02)
    async with serve() as app:
        shop = files.client("shop.example")
        assert (await ask(app, shop)).status_code == 200
        other = trustme.CA()
        other.cert_pem.write_to_path(str(files.folder / "new-ca.pem"))
        with caplog.at_level(logging.INFO, "gateway"):
            (files.folder / "new-ca.pem").replace(files.folder / "ca.pem")
            await until(lambda: "http.tls_renewed" in [r.getMessage() for r in caplog.records], 5.0)
        assert (await ask(app, files.client("shop.example", ca=other))).status_code == 200
        for stranger in (
            files.client("shop.example"),
            shop,
        ):  # the second has shaken hands before: there are no tickets
            with pytest.raises(httpx.HTTPError):
                await ask(app, stranger)
        problem(await ask(app, files.client()), 401, "unauthorized")


async def test_two_callers_in_one_certificate_are_nobody(serve: Serve, files: Files) -> None:
    async with serve() as app:
        both = files.client("shop.example", common_name="root")
        problem(await ask(app, both), 401, "unauthorized")


async def test_a_certificate_can_be_required(serve: Serve, files: Files) -> None:
    async with serve(**{"http.tls.clients": "required"}) as app:
        assert (await ask(app, files.client("shop.example"))).status_code == 200
        with pytest.raises(httpx.HTTPError):
            await ask(app, files.client())


async def test_a_name_in_a_header_is_no_certificate(serve: Serve, files: Files) -> None:
    async with serve() as app:
        for name in ("gateway.certificate", "x-client-cert", "ssl-client-subject-dn"):
            problem(await ask(app, files.client(), **{name: "CN:root"}), 401, "unauthorized")


async def test_a_renewed_certificate_counts_within_five_seconds(serve: Serve, files: Files) -> None:
    limits = httpx.Limits(keepalive_expiry=60)
    async with (
        serve() as app,
        httpx.AsyncClient(verify=files.client("shop.example"), base_url=app.url, limits=limits) as kept,
    ):
        assert (await kept.get("/v1/messages")).status_code == 200
        (files.folder / "server.pem").write_text("half of it")  # not taken
        await asyncio.sleep(apps.RENEW_EVERY + 0.5)
        assert (await ask(app, files.client("shop.example"))).status_code == 200
        other = trustme.CA()
        files.issue("127.0.0.1", ca=other)
        new = files.client("shop.example")
        other.configure_trust(new)
        began = monotonic()
        while True:
            try:
                await ask(app, files.client("shop.example"))
            except httpx.ConnectError:
                break  # whoever knows the old authority only
            await asyncio.sleep(0.1)
        assert monotonic() - began < 15
        assert (await ask(app, new)).status_code == 200
        assert (await kept.get("/v1/messages")).status_code == 200, "connections that are open go on"


async def test_who_never_shakes_hands_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "HANDSHAKE_TIMEOUT", 0.2)
    async with serve() as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.ports.http)
        async with asyncio.timeout(10):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass  # as good as an end
        writer.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"http.tls.cert_file": "/nowhere"}, "http.tls.cert_file"),
        ({"http.tls.client_ca_file": "/nowhere"}, "http.tls.client_ca_file"),
        ({"http.tls.client_ca_file": ""}, "client_ca_file"),
        ({"access.certificates": [{"client": "a", "name": "CN:a", "scopes": ["root"]}]}, "CN:a: scopes"),
        ({"access.certificates": [CALLERS[0], CALLERS[0]]}, "twice"),
        ({"access.certificates": [{"client": "a", "name": "IP:1.2.3.4", "scopes": []}]}, "URI"),
    ],
)
async def test_wrong_settings(serve: Serve, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        async with serve(**more):
            pass


def test_names_in_a_certificate() -> None:
    certificate = {
        "subject": ((("countryName", "XX"),), (("commonName", "till"),)),
        "subjectAltName": (("DNS", "a.example"), ("URI", "spiffe://cluster/ns/shop"), ("IP Address", "192.0.2.1")),
    }
    assert names_of(certificate) == {
        "CN:till", "DNS:a.example", "URI:spiffe://cluster/ns/shop", "IP Address:192.0.2.1"
    }  # fmt: skip
    assert names_of({}) == frozenset()


async def test_without_certificates_nothing_changes(ledger: Ledger) -> None:
    access = Access(Config(), ledger)
    assert (access.required, access.certificates, access.tokens, access.trail) == (False, {}, None, None)
