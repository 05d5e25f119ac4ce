"""Who may call: the loopback rule, keys, certificates of callers, and the issuer of tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from gateway.access.configured import doubts
from gateway.access.scopes import principal_of
from gateway.access.tokens import FAMILIES, KEYS_MAX, KID_MAX, SET_MAX, WITHIN, JwkSet, refusal_of
from gateway.api.http.auth import ConfiguredKeys
from gateway.app import check_configuration
from gateway.broker.logins import open_to_strangers
from gateway.commands.doctor.files import owner_only
from gateway.commands.doctor.findings import Report
from gateway.commands.doctor.outbound import rules_of
from gateway.config import Config, EmbeddedSettings, FrontSettings, asks_for_credentials
from gateway.errors import ConfigurationError, GatewayError
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport
from gateway.upstreams.keeper import is_loopback
from gateway.webhooks.settings.checks import check_endpoint

KEY_SHORT = 20
"""A key of fewer characters can be guessed."""


def examine(report: Report, config: Config, *, development: bool) -> None:
    """What the start would refuse, and what it would let pass without a word."""
    try:
        check_configuration(config)
    except ConfigurationError as error:
        text = str(error)
        check = "access.callers" if text.startswith("http.host") else "config.rule"
        report.fail(
            check, text.partition(" ")[0], text,
            do="Give the callers keys ([[api_keys]], or access.required = \"always\"), or listen on 127.0.0.1."
            if check == "access.callers" else "Correct the setting that it names.",
        )  # fmt: skip
    else:
        _callers(report, config, development=development)
    _keys(report, config)
    _endpoints(report, config)
    if config.embedded.enabled:
        _embedded(report, config.embedded)
    if config.role != "worker":
        for name, front in config.fronts.items():
            _front(report, name, front)


def _embedded(report: Report, settings: EmbeddedSettings) -> None:
    where = f"embedded.host {settings.host}"
    open_by = open_to_strangers(settings)
    for reason in open_by:
        report.warn(
            "access.embedded", where, f"anybody who reaches the port can log in: {reason}",
            why="The embedded broker listens for other machines.",
            do="Set another password, or name the user in embedded.loopback_users.",
        )  # fmt: skip
    if not open_by:
        report.ok("access.embedded", where, "clients of the embedded broker need a password, or come from this machine")


def _front(report: Report, name: str, front: FrontSettings) -> None:
    where = f"fronts.{name}"
    known = len(report.findings)
    if not front.tls.cert_file and not is_loopback(front.host):
        report.warn(
            "access.fronts", where, "passwords and messages of its clients travel in clear",
            why=f"It listens on {front.host}, and fronts.{name}.tls.cert_file is not set.",
            do="Set it, if the clients can speak TLS. If they cannot, keep the port inside a network that you trust.",
        )  # fmt: skip
    everything = [user.name for user in front.users if "admin" in user.scopes]
    if everything and not is_loopback(front.host):
        report.warn(
            "access.fronts", where, f"users that may do everything: {', '.join(everything)}",
            why="The scope admin is the default.", do="Give each user the scopes that it needs.",
        )  # fmt: skip
    if len(report.findings) == known:
        logins = "users of the broker" if front.login == "pass" else ", ".join(user.name for user in front.users)
        report.ok("access.fronts", where, f"may log in: {logins}")


def _callers(report: Report, config: Config, *, development: bool) -> None:
    if config.role == "worker":
        report.ok("access.callers", "role", "a worker serves no API")
        return
    where, http = f"http.host {config.http.host}", config.http
    asked, loopback = asks_for_credentials(config), is_loopback(http.host)
    if not asked and not development:
        report.warn(
            "access.callers", where, "everybody on this machine may call the API, and do everything",
            why="The configuration names no key, issuer or certificate, so that it listens on loopback only.",
            do='Set access.required = "always", and make keys: gateway keys create --help. After that, '
            'http.host = "0.0.0.0" lets other machines call it.',
        )  # fmt: skip
    if loopback and asked and not development:
        report.warn(
            "access.callers", where, "the API can be reached from this machine alone",
            why="In a container, that is the container.", do='Set http.host = "0.0.0.0" where others are to call it.',
        )  # fmt: skip
    elif asked and not loopback and not http.tls.cert_file:
        report.warn(
            "access.callers", where, "keys and messages travel in clear",
            why="The API is reached from other machines, and http.tls.cert_file is not set.",
            do="Set http.tls, unless something in front of it ends TLS (an ingress, say).",
        )  # fmt: skip
    elif not report.findings or report.findings[-1].check != "access.callers":
        report.ok("access.callers", where, "callers need a credential" if asked else "loopback, for development")


def _keys(report: Report, config: Config) -> None:
    try:
        ConfiguredKeys(config.api_keys)
    except ConfigurationError as error:
        report.fail("access.keys", "api_keys", str(error), do="gateway keys create makes keys that need no file.")
    for key in config.api_keys:
        where = f"api_keys.{key.name}"
        if key.key:
            report.warn(
                "access.keys", where, "the key itself is in the file",
                why="Everyone who reads the file can use it.", do="Write its SHA-256 (sha256 = …), or name a key_file.",
            )  # fmt: skip
            if len(key.key) < KEY_SHORT:
                report.warn(
                    "access.keys", where, f"the key has fewer than {KEY_SHORT} characters",
                    why="It can be guessed.", do="Use one that gateway keys create made, or 32 random octets.",
                )  # fmt: skip
        if key.key_file and Path(key.key_file).is_file():
            owner_only(report, f"{where}.key_file", Path(key.key_file))
    names: set[str] = set()
    for each in config.access.certificates:
        where = f"access.certificates {each.name}"
        try:
            principal_of(each.client, each.scopes)
        except ConfigurationError as error:
            report.fail("access.keys", where, str(error), do="Correct the scope.")
        if each.name in names:
            report.fail("access.keys", where, "the name is there twice", do="Take one of them out.")
        names.add(each.name)
    for setting, scope, why in doubts(config):
        report.warn(
            "access.keys", setting, f"the scope {scope}: {why}",
            do="Correct the scope, or take it out.",
        )  # fmt: skip
    if names and not config.http.tls.client_ca_file:
        report.fail(
            "access.keys", "access.certificates", "http.tls.client_ca_file does not say who may sign them",
            do="Set it to the authority of the callers' certificates.",
        )  # fmt: skip


def _endpoints(report: Report, config: Config) -> None:
    for name, endpoint in config.endpoints.items():
        try:
            check_endpoint(endpoint, from_file=True)
        except GatewayError as error:
            report.fail("config.rule", f"endpoints.{name}", str(error), do="Correct the setting that it names.")


async def examine_issuer(report: Report, config: Config, within: float) -> None:
    """The issuer's keys, as the service would read them."""
    if not config.access.tokens.issuer:
        return
    try:
        rules = rules_of(config)
    except ConfigurationError:
        return  # said with the rules
    limits = dataclasses.replace(DEFAULT_OUTBOUND_LIMITS, body_kept=SET_MAX, connections=1, connections_per_site=1)
    transport = GuardedTransport(rules, limits)
    try:
        await _issuer(report, config, transport, min(within, WITHIN))
    finally:
        await transport.aclose()


async def _issuer(report: Report, config: Config, transport: GuardedTransport, within: float) -> None:
    tokens = config.access.tokens
    where = "access.tokens.jwks_url"
    for name in ("audience", "jwks_url", "algorithms"):
        if not getattr(tokens, name):
            report.fail(
                "access.tokens", f"access.tokens.{name}", "it is not set, and issuer is", do="Set it.", status=2
            )
            return
    try:
        answer = await transport.send("GET", tokens.jwks_url, [(b"accept", b"application/json")], within=within)
        found = msgspec.json.decode(answer.body, type=JwkSet).keys[:KEYS_MAX] if answer.status == 200 else None
    except GatewayError as error:
        report.fail(
            "access.tokens", where, str(error), why="Tokens are refused until the set was read once.",
            do="Correct the URL, or allow the host in outbound.allow.",
        )  # fmt: skip
        return
    except (msgspec.DecodeError, ValueError, RecursionError):
        report.fail(
            "access.tokens", where, "the answer is no set of keys (RFC 7517)",
            do="Look for jwks_uri in the issuer's /.well-known/openid-configuration.",
        )  # fmt: skip
        return
    if found is None or answer.truncated:
        what = f"it is over {SET_MAX} octets" if answer.truncated else f"it answered with status {answer.status}"
        report.fail("access.tokens", where, what, do="Look for jwks_uri in /.well-known/openid-configuration.")
        return
    usable = [key for key in found if key.get("kid") and key.get("kty") in FAMILIES and not refusal_of(key)]
    if not usable:
        report.fail(
            "access.tokens", where, f"none of its {len(found)} keys can be used",
            why="A key needs a name (kid), and to be RSA of 2,048 bits or more, EC or Ed25519, for signatures.",
            do="Ask the issuer.", status=1,
        )  # fmt: skip
        return
    refused = [(key, why) for key in found if key.get("use", "sig") == "sig" and (why := refusal_of(key))]
    for key, why in refused:
        report.warn(
            "access.tokens", where, f"the key {str(key.get('kid'))[:KID_MAX]!r} is not used: {why}",
            why="Tokens that are signed with it are refused.", do="Ask the issuer for another key.",
        )  # fmt: skip
    if not refused:
        report.ok("access.tokens", where, f"{len(usable)} keys that can be used")
