"""Where the gateway calls others: the guard's rules, and the endpoints of the file.

An endpoint is connected to as a webhook would be, through the guard and up to the end of the TLS handshake. No request
is sent.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network
from typing import Final

from gateway.commands.doctor.findings import Report
from gateway.commands.doctor.listeners import ports
from gateway.config import Config, EndpointSettings, EndpointTls
from gateway.errors import AddressDenied, ConfigurationError, EncodeError, GatewayError, ResolveFailed, TlsFailed
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, OutboundRules
from gateway.outbound.connection import HttpConnection
from gateway.outbound.dialer import GuardedDialer, dial
from gateway.outbound.hosts import split_url
from gateway.outbound.resolver import SystemResolver
from gateway.runtime.clock import clock

AT_ONCE: Final = 8
"""Most endpoints that are connected to at once."""
TRAPS: Final = {
    "169.254.169.254": "cloud metadata: credentials of the machine",
    "127.0.0.1": "this machine: every service on loopback",
}
"""Addresses that nobody means to let others call, and what is there."""


def rules_of(config: Config) -> OutboundRules:
    """As the service has them. Raises ConfigurationError."""
    rules = OutboundRules(config.outbound.allow, ports=config.outbound.ports, plain=config.outbound.plain)
    for port in ports(config):
        if port.port:
            rules.listens("127.0.0.1" if port.host == "localhost" else port.host.strip("[]"), port.port)
    return rules


async def examine(report: Report, config: Config, within: float, *, development: bool) -> None:
    """Rules, then endpoints."""
    try:
        rules = rules_of(config)
    except ConfigurationError as error:
        report.fail(
            "outbound.rules", "outbound.allow", str(error), status=2,
            do='Networks are written as "10.1.0.0/16", hosts as "hooks.example" or "*.hooks.example".',
        )  # fmt: skip
        return
    if not development:
        _rules(report, config)
    turn = asyncio.Semaphore(AT_ONCE)
    resolve = SystemResolver()
    dialer = GuardedDialer(rules, DEFAULT_OUTBOUND_LIMITS, resolve, dial)

    async def one(name: str, settings: EndpointSettings) -> Report:
        found = report.part()
        async with turn:
            await _endpoint(found, f"endpoints.{name}.url", settings.url, settings.tls, rules, dialer, within)
            if settings.auth.token_url:
                where = f"endpoints.{name}.auth.token_url"
                await _endpoint(found, where, settings.auth.token_url, EndpointTls(), rules, dialer, within)
        return found

    try:
        for found in await asyncio.gather(*(one(*each) for each in config.endpoints.items())):
            report.take(found)
    finally:
        resolve.close()


def _rules(report: Report, config: Config) -> None:
    settings, fine = config.outbound, True
    for entry in settings.allow:
        try:
            network = ip_network(entry)
        except ValueError:
            continue  # a host
        for trap, what in TRAPS.items():
            address = ip_address(trap)
            if address.version == network.version and address in network:
                fine = False
                report.warn(
                    "outbound.rules", f"outbound.allow {entry}", f"endpoints may lead to {trap}",
                    why=f"That is {what}. Every client that may put an endpoint can have it called.",
                    do="List smaller networks, or hosts.",
                )  # fmt: skip
    if settings.plain:
        fine = False
        report.warn(
            "outbound.rules", "outbound.plain", "endpoints anywhere may be called without TLS",
            why="Messages and secrets travel in clear.", do="List the hosts that need it in outbound.allow instead.",
        )  # fmt: skip
    if fine:
        report.ok("outbound.rules", "outbound", f"public addresses, and {len(settings.allow)} that are listed")


async def _endpoint(
    report: Report, where: str, url: str, tls: EndpointTls, rules: OutboundRules, dialer: GuardedDialer, within: float
) -> None:
    def nothing(_: HttpConnection) -> None:
        """It carries no request."""

    try:
        site, _ = split_url(url)
        where = f"{where} ({site})"
        rules.check_site(site)
        connection = HttpConnection(None, str(site), DEFAULT_OUTBOUND_LIMITS, nothing, nothing)
        await dialer.open(site, tls, connection, clock.monotonic() + within)
        connection.abort()
    except EncodeError as error:
        report.fail("outbound.endpoint", where, str(error), do="Correct the URL.", status=2)
    except ConfigurationError:
        return  # a file: said already
    except AddressDenied as error:
        report.fail(
            "outbound.endpoint", where, f"the guard denies it: {error.broken}", status=4,
            why="Endpoints must be public unless the operator lists them.",
            do=f'Add "{site.host}" to outbound.allow, if it is one of yours.' if error.remedy else "Correct the URL.",
        )  # fmt: skip
    except ResolveFailed as error:
        report.fail("outbound.endpoint", where, str(error), do="Correct the host, or look at the name servers.")
    except TlsFailed as error:
        report.fail(
            "outbound.endpoint", where, str(error), why="Nothing is sent to who cannot prove its name.",
            do="Have its certificate renewed or corrected, or set tls.ca_file to a private authority.",
        )  # fmt: skip
    except GatewayError as error:
        report.warn(
            "outbound.endpoint", where, str(error), why="Its messages wait for the next attempt.",
            do="See whether it runs, and whether a firewall is in the way.",
        )  # fmt: skip
    else:
        report.ok("outbound.endpoint", where, "the guard allows it, and it takes connections")
