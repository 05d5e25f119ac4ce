"""Logging in at an issuer: the window comes and goes, what was typed stays, and no address ever has a token."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from playwright.sync_api import Browser, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import PATIENCE, WATCH, Watched
from tests.servers.process import free_port


class Issuer(ThreadingHTTPServer):
    """Asks who is there, by a page with a link; gives a code, and a token for it once its verifier is right."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.lasts = 300.0
        """How long a token counts, in seconds."""
        self.refuses = False
        self.asked: dict[str, str] = {}
        self.codes: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/jwks":
            key = json.loads(ECAlgorithm.to_jwk(self.server.key.public_key()))
            self._answer("application/json", json.dumps({"keys": [{**key, "kid": "one", "use": "sig"}]}))
            return
        if path != "/authorize":
            self._answer("text/plain", "", 404)
            return
        self.server.asked = {name: values[0] for name, values in query.items()}
        code = f"code-{len(self.server.codes)}"
        self.server.codes[code] = self.server.asked["code_challenge"]
        back = {"code": code, "state": self.server.asked["state"], "session_state": "x"}
        if self.server.refuses:
            back = {"error": "access_denied", "state": self.server.asked["state"]}
        self._answer("text/html", f'<a href="{self.server.asked["redirect_uri"]}#{urlencode(back)}">It is me</a>')

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"][0].encode()).digest()).rstrip(b"=")
        if self.server.codes.pop(form["code"][0], "") != challenge.decode():
            self._answer("application/json", '{"error": "invalid_grant"}', 400)
            return
        claims = {
            "iss": self.server.url, "aud": "gateway", "sub": "anna", "exp": time.time() + self.server.lasts,
            "scope": "admin",
        }  # fmt: skip
        token = jwt.encode(claims, self.server.key, "ES256", headers={"kid": "one"})
        self._answer("application/json", json.dumps({"access_token": token, "expires_in": self.server.lasts}))

    def _answer(self, kind: str, body: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    server = Issuer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[str]:
    """A gateway that takes tokens of the issuer."""
    folder = tmp_path_factory.mktemp("login")
    login = {
        "client_id": "console",
        "authorize_url": f"{issuer.url}/authorize?prompt=login",
        "token_url": f"{issuer.url}/token",
    }
    tokens = {
        "issuer": issuer.url, "audience": "gateway", "jwks_url": f"{issuer.url}/jwks", "leeway": 0, "login": login,
    }  # fmt: skip
    gateway = Gateway(
        folder,
        {
            "data_dir": str(folder / "data"),
            "embedded": {"enabled": True, "port": free_port()},
            "outbound": {"allow": ["127.0.0.1/32"]},
            "access": {"tokens": tokens},
        },
    )
    gateway.start()
    yield f"http://127.0.0.1:{gateway.port}"
    gateway.terminate()
    gateway.close()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE)
    context.add_init_script(WATCH)
    page = context.new_page()
    watched = Watched(url)
    page.on("request", watched.request)
    page.on("console", watched.console)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    yield page
    watched.check([page])
    context.close()


def come_back(page: Page) -> None:
    """Log in at the issuer, in its window."""
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Log in at 127.0.0.1").click()
    window = opened.value
    window.get_by_role("link", name="It is me").click()


def test_a_person_logs_in_at_the_issuer(page: Page, url: str, issuer: Issuer) -> None:
    page.goto(f"{url}/console#/brokers")
    come_back(page)
    expect(page.locator("h1")).to_have_text("Brokers")
    expect(page.get_by_role("navigation", name="Views")).to_contain_text("jwt:anna")
    assert issuer.asked["response_mode"] == "fragment"
    assert issuer.asked["redirect_uri"] == f"{url}/console"
    assert issuer.asked["prompt"] == "login"
    assert issuer.codes == {}, "redeemed once"
    expect(page).to_have_url(f"{url}/console#/brokers")
    assert (
        page.evaluate("[...Object.values(sessionStorage), ...Object.values(localStorage)].join().includes('ey')")
        is False
    )


def test_what_was_typed_stays_when_the_token_ends(page: Page, url: str, issuer: Issuer) -> None:
    issuer.lasts = 8.0
    page.goto(f"{url}/console#/publish")
    come_back(page)
    page.get_by_label("Body", exact=True).fill("half a message")
    expect(page.locator("dialog")).to_contain_text("no longer counts")
    issuer.lasts = 300.0
    come_back(page)
    page.locator("dialog").wait_for(state="detached")
    expect(page.get_by_label("Body", exact=True)).to_have_value("half a message")


def test_a_refusal_is_said_in_the_dialog(page: Page, url: str, issuer: Issuer) -> None:
    issuer.refuses = True
    page.goto(f"{url}/console#/")
    come_back(page)
    expect(page.get_by_role("alert")).to_contain_text("access_denied")
    issuer.refuses = False
    issuer.lasts = -1.0
    come_back(page)
    expect(page.get_by_role("alert")).to_contain_text("the token has expired")
    page.get_by_label("API key or token").fill("wrong")
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")


def test_a_code_of_somebody_else_is_passed_over(page: Page, url: str, issuer: Issuer) -> None:
    page.goto(f"{url}/console#/")
    page.get_by_role("button", name="Log in at 127.0.0.1").wait_for()
    other = page.context.new_page()
    other.goto(f"{url}/console#code=stolen&state=guessed")
    expect(other.locator("h1")).to_have_text("You are back")
    assert "stolen" not in other.url
    expect(page.locator("dialog")).to_contain_text("API key or token")
    expect(page.get_by_role("alert")).to_have_count(0)
