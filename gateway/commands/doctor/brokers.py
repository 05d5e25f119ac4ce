"""Brokers: from the name to an open connection, step by step; what follows a step that failed is left out.

What the login may do there is looked at by :mod:`gateway.commands.doctor.permissions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from gateway.access.scopes import PUBLISHERS, parse_scope
from gateway.amqp.operations import CloseReason
from gateway.commands.doctor.findings import Report
from gateway.commands.doctor.network import ShownCertificate, Unreachable, addresses, connect, judge_dates, shown_by
from gateway.commands.doctor.permissions import Around, Uses
from gateway.config import BrokerSettings, BrokerUrl, Config, TlsSettings
from gateway.errors import (
    CertificateRefused,
    ConfigurationError,
    GatewayError,
)
from gateway.exits import REFUSED
from gateway.front.channels.rules import RULES, rules_for
from gateway.front.channels.target import target_of
from gateway.link import Link
from gateway.management import ManagementProblem, read_queues
from gateway.session import Version
from gateway.transports import client_context
from gateway.upstreams.client_limits import client_limits
from gateway.upstreams.keeper import Dialer, is_loopback
from gateway.upstreams.redirects import RedirectRefused
from gateway.versions import AUTO_ORDER, VERSIONS, version_named

AT_ONCE: Final = 8
"""Most brokers that are looked at at once."""
VHOST: Final = ("vhost", "virtual host", "virtualhost")
"""How brokers call it in what they answer."""


def uses_of(config: Config) -> Mapping[str, Uses]:
    """Broker -> what the configuration names there."""
    found = {name: Uses() for name in config.brokers}

    def want(broker: str, kind: str, name: str, who: str) -> None:
        if broker in found:
            getattr(found[broker], kind).setdefault(name, []).append(who)

    for name, each in config.subscriptions.items():
        who = f"subscriptions.{name}"
        want(each.broker, "sources" if each.exchange else "queues", each.exchange or each.queue, who)
        if each.dead_letter_exchange or each.dead_letter_routing_key:
            want(each.dead_letter_broker or each.broker, "exchanges", each.dead_letter_exchange, who)
    for name, tap in config.taps.items():
        who = f"taps.{name}"
        want(tap.broker, "sources" if tap.exchange else "queues", tap.exchange or tap.queue, who)
        if tap.dead_letter_exchange:
            want(tap.dead_letter_broker or tap.broker, "exchanges", tap.dead_letter_exchange, who)
    for name, bridge in config.bridges.items():
        who, source = f"bridges.{name}", bridge.source
        want(source.broker, "sources" if source.exchange else "queues", source.exchange or source.queue, who)
        want(bridge.target.broker, "exchanges", bridge.target.exchange, who)
        if bridge.dead_letter.exchange:
            want(bridge.dead_letter.broker or source.broker, "exchanges", bridge.dead_letter.exchange, who)
    for key in config.api_keys:
        for text in key.scopes:
            with suppress(ConfigurationError):  # said elsewhere
                grant = parse_scope(text)
                if grant.kind in PUBLISHERS and grant.object != "*":
                    want(grant.broker, "exchanges", grant.object, f"api_keys.{key.name}")
    return found


async def examine(report: Report, config: Config, within: float) -> None:
    """All of them, some at a time."""
    uses, turn = uses_of(config), asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Report:
        found = report.part()
        async with turn:
            fronts = {
                each: front.rules
                for each, front in config.fronts.items()
                if name == front.broker or name in front.virtual_hosts.values()
            }
            await _Broker(found, name, config.brokers[name], uses[name], fronts, within).examine()
        return found

    for found in await asyncio.gather(*(one(name) for name in config.brokers)):
        report.take(found)


class _Broker:
    """One of them."""

    def __init__(
        self,
        report: Report,
        name: str,
        settings: BrokerSettings,
        uses: Uses,
        fronts: Mapping[str, Mapping[str, str]],
        within: float,
    ) -> None:
        """``fronts``: name -> switches of its rewriting rules."""
        self.report = report
        self.fronts = fronts
        self.name = name
        self.settings = replace(settings, connect_timeout=min(within, settings.connect_timeout))
        self.uses = uses
        self.within = within
        self.setting = f"brokers.{name}"
        self.where = self.setting
        self.shown: ShownCertificate | None = None
        """The certificate that it shows."""

    async def examine(self) -> None:
        """Step by step."""
        try:
            dialer = Dialer(self.name, self.settings)
            dialer.password()
        except ConfigurationError as error:
            text = str(error)
            do = "Correct the path, or the rights of the file." if "password_file" in text else "Correct it."
            self.report.fail("broker.settings", self.setting, text, do=do)
            return
        url = dialer.url
        self.where = f"{self.setting} ({url.host}:{url.port})"
        self._settings(url)
        await self._management()
        if not await self._reach(url):
            return
        link = await self._open(dialer)
        if link is None:
            return
        try:
            await Around(self.report, self.name, self.where, self.uses, self.within).look(link, url)
        finally:
            await link.close(1.0)

    # ------------------------------------------------------------------------------------- before the protocol

    async def _management(self) -> None:
        """The list of all queues, as the service reads it: one page of it."""
        if not self.settings.management:
            return
        where = f"{self.setting}.management"
        try:
            found = await read_queues(self.name, self.settings, rows_max=1, within=self.within)
        except ManagementProblem as problem:
            self.report.fail(
                "broker.management", where, problem.reason,
                why="GET /v1/queues and the console list the queues that the gateway knows, and not all of them.",
                do=f"Correct it, or take {where} out.", status=REFUSED if problem.refused else None,
            )  # fmt: skip
            return
        self.report.ok(
            "broker.management", where, "it lists queues" if found.rows else "it answers, and shows this login no queue"
        )

    def _settings(self, url: BrokerUrl) -> None:
        settings, report = self.settings, self.report
        if url.secure and settings.tls.dangerous_disable_verification:
            report.warn(
                "broker.certificate", self.where, "any certificate is accepted (dangerous_disable_verification)",
                why="Everyone on the network path can read the password.", do="Set tls.ca_file instead.",
            )  # fmt: skip
        if not url.secure and not is_loopback(url.host):
            if settings.allow_plain_without_tls:
                report.warn(
                    "broker.settings", self.where, "password and messages travel in clear",
                    why="allow_plain_without_tls is set, and the URL is amqp://.", do="Use amqps://.",
                )  # fmt: skip
            else:
                report.warn(
                    "broker.settings", self.where, "messages travel in clear",
                    why="The URL is amqp://. PLAIN and AMQPLAIN are not used there.", do="Use amqps://.",
                )  # fmt: skip
        if not url.secure and settings.tls != type(settings.tls)():
            report.warn(
                "broker.settings", self.where, "tls is set, and the URL is amqp://", why="It is not used.",
                do="Write amqps:// (its port is 5671 as a rule).",
            )  # fmt: skip

    async def _reach(self, url: BrokerUrl) -> bool:
        """Name, address, port, and the certificate that is shown there; whether it is worth going on."""
        report = self.report
        try:
            found = await addresses(url.host, self.within)
        except Unreachable as error:
            report.fail("broker.dns", self.where, error.what, do=error.do)
            return False
        report.ok("broker.dns", self.where, ", ".join(found[:4]))
        try:
            address, sock = await connect(found, url.port, self.within)
        except Unreachable as error:
            report.fail("broker.tcp", self.where, error.what, do=error.do)
            return False
        report.ok("broker.tcp", self.where, f"{address} port {url.port} takes connections")
        if not url.secure:
            sock.close()
            return True
        tls = self.settings.tls
        try:
            context = client_context(tls)
        except ConfigurationError as error:
            sock.close()
            report.fail("broker.certificate", self.where, str(error), do="Correct the path, or the file.")
            return False
        self.shown = await shown_by(sock, context, tls.server_name or url.host, self.within)
        return True

    # -------------------------------------------------------------------------------------------- the protocol

    def _fronts(self, link: Link) -> None:
        """What fronts rewrite for their clients."""
        target = target_of(link.session.version, link.capabilities)
        for name, switches in self.fronts.items():
            rules = sorted({rule.name for rules in rules_for(target, switches).values() for rule in rules})
            off = sorted(rule.name for rule in RULES if rule.is_for(target) and switches.get(rule.name) == "off")
            text = f"it rewrites for {self.name}: {', '.join(rules) or 'nothing'}"
            self.report.ok(
                "broker.fronts", f"fronts.{name}", text + (f"; switched off: {', '.join(off)}" if off else "")
            )

    async def _open(self, dialer: Dialer) -> Link | None:
        """An open connection; None: said why there is none."""
        auto = dialer.auto
        order = AUTO_ORDER if auto else (version_named(dialer.url.version),)
        tried: list[tuple[Version, Link, GatewayError]] = []
        for version in order:
            link, error = await dialer.attempt(version)
            if error is None:
                self._certificate_ok()
                product = f"{link.capabilities.product} {link.capabilities.product_version}".strip()
                found = " (found by version=auto)" if auto else ""
                self.report.ok("broker.protocol", self.where, f"it speaks {version.value}{found}: {product}")
                user = dialer.url.user or "its certificate"
                self.report.ok("broker.login", self.where, f"{user} may use {dialer.url.virtual_host!r}")
                for row in client_limits(link.capabilities.product, link.capabilities.product_version):
                    self.report.ok("broker.clients", self.where, f"old clients: {row.what}; {row.instead}")
                self._fronts(link)
                return link
            await link.close(0.0)
            tried.append((version, link, error))
            if link.ended is None or _spoken(link):
                break  # not a matter of the version
        version, link, error = tried[-1]
        if isinstance(error, CertificateRefused):
            self._certificate(dialer.url, error)
        elif link.ended is None and not isinstance(error, RedirectRefused):
            self._no_stream(dialer.url, error)
        elif isinstance(error, RedirectRefused):
            self._certificate_ok()
            self.report.fail(
                "broker.login", self.where, str(error), do="Add that host to redirect_hosts, if you trust it."
            )
        elif _spoken(link):
            self._certificate_ok()
            self.report.ok("broker.protocol", self.where, f"it speaks {version.value}: {link.capabilities.product}")
            self._login(dialer, link, error)
        else:
            self._certificate_ok()
            await self._protocol(dialer, tried)
        return None

    def _no_stream(self, url: BrokerUrl, error: GatewayError) -> None:
        do = "See what it logs."
        if url.secure:
            do = "It may not speak TLS on that port (5671 as a rule), or want a client certificate: tls.cert_file."
        self.report.fail("broker.certificate" if url.secure else "broker.tcp", self.where, str(error), do=do)

    def _certificate_ok(self) -> None:
        if self.shown is not None and judge_dates(
            self.report, "broker.certificate", self.where, self.shown, "its certificate"
        ):
            self.report.ok("broker.certificate", self.where, f"its certificate is valid until {self.shown.until}")

    def _certificate(self, url: BrokerUrl, error: GatewayError) -> None:
        """Why TLS failed."""
        report, where, shown, said = self.report, self.where, self.shown, str(error)
        tls = self.settings.tls
        name = tls.server_name or url.host
        if shown is not None and not judge_dates(report, "broker.certificate", where, shown, "its certificate"):
            return
        if shown is not None and ("ostname mismatch" in said or "IP address mismatch" in said):
            names = ", ".join(shown.names) or "no host at all"
            report.fail(
                "broker.certificate", where, f"its certificate is for {names}, not for {name}", why=said,
                do="Use one of these names in the URL, or set tls.server_name to it.",
            )  # fmt: skip
        elif shown is not None and "does not verify" in said:
            by = "by itself" if shown.by_itself else f"by {shown.issuer}"
            known = f"the authorities in {tls.ca_file}" if tls.ca_file else "the system's authorities"
            report.fail(
                "broker.certificate", where, f"its certificate is signed {by}, which is none of {known}", why=said,
                do="Set tls.ca_file to the authority that signed it (PEM).",
            )  # fmt: skip
        else:
            do = "Look at tls.cert_file and tls.key_file, and at what the broker logs."
            if "does not speak TLS" in said:
                do = "Use amqp://, or the port that speaks TLS (5671 as a rule)."
            report.fail("broker.certificate", where, said, do=do)

    def _login(self, dialer: Dialer, link: Link, error: GatewayError) -> None:
        """It speaks our version, and did not open."""
        ended, url, said = link.ended, dialer.url, str(error)
        assert ended is not None
        offered = ", ".join(link.capabilities.mechanisms) or "none"
        low = said.lower()
        if "none of the mechanisms" in low:
            do = "Allow one of them: brokers.NAME.mechanisms."
            if not url.secure and not self.settings.allow_plain_without_tls and not is_loopback(url.host):
                do = "Use amqps://: PLAIN and AMQPLAIN are used without TLS only with allow_plain_without_tls."
            self.report.fail("broker.login", self.where, said, why=f"It offers {offered}.", do=do)
        elif any(word in low for word in VHOST):
            self.report.fail(
                "broker.vhost", self.where, f"{url.user} cannot use the virtual host {url.virtual_host!r}: {said}",
                do="Correct the path of the URL (a '/' in the name is %2F), or give the user rights there: "
                "rabbitmqctl set_permissions -p VHOST USER.",
            )  # fmt: skip
        elif ended.reason is CloseReason.AUTHENTICATION:
            source = "`password`" if self.settings.password else "the URL"
            if self.settings.password_file:
                source = f"password_file {self.settings.password_file}"
            local = "localhost" in low or "loopback" in low
            self.report.fail(
                "broker.login", self.where, f"it refuses the login {url.user}: {said}",
                why=f"The password is that of {source}. It offers {offered}.",
                do="RabbitMQ lets guest in from its own machine alone: make another user." if local
                else "Correct user and password, percent-encoded in a URL.",
            )  # fmt: skip
        else:
            self.report.fail(
                "broker.login", self.where, f"it hung up on the login {url.user}: {said.rpartition(': ')[2]}",
                status=5,
                why="Some refuse a login so, without a word; all do while they start or stop.",
                do="Correct user and password; see what it logs: it may be starting, or out of connections.",
            )  # fmt: skip

    async def _shows_certificate(self, url: BrokerUrl) -> bool:
        """Whether TLS is spoken there."""
        try:
            _, sock = await connect(await addresses(url.host, self.within), url.port, self.within)
        except Unreachable:
            return False
        return await shown_by(sock, client_context(TlsSettings()), url.host, self.within) is not None

    async def _protocol(self, dialer: Dialer, tried: Sequence[tuple[Version, Link, GatewayError]]) -> None:
        """It does not speak what we asked for: what does it speak?"""
        said = str(tried[-1][2])
        spoken = [link.ended.supported for _, link, _ in tried if link.ended is not None and link.ended.supported]
        if not dialer.auto:
            for version in AUTO_ORDER:
                if version.value != dialer.url.version and version.value not in spoken:
                    link, error = await dialer.attempt(version)
                    await link.close(0.0)
                    if error is None or _spoken(link):
                        spoken.append(version.value)
        spoken = [version.value for version in VERSIONS if version.value in spoken]
        if spoken:
            self.report.fail(
                "broker.protocol", self.where,
                f"this port speaks AMQP {', '.join(spoken)}; the configuration says {dialer.url.version}", why=said,
                do=f"Write ?version={spoken[-1]} in {self.setting}.url, or version=auto.",
            )  # fmt: skip
            return
        url, ended = dialer.url, tried[-1][1].ended
        if url.secure and ended is not None and ended.reason is CloseReason.EOF:
            own = "It does not take our certificate" if self.settings.tls.cert_file else "It wants one of us"
            self.report.fail(
                "broker.certificate", self.where, f"it hangs up as soon as TLS is agreed: {said}",
                why=f"{own}, as a rule.", do="Look at tls.cert_file and tls.key_file, and at what the broker logs.",
            )  # fmt: skip
            return
        do = "Compare host and port. AMQP is on 5672 as a rule; 15672 is RabbitMQ's management, which is HTTP."
        if "it is TLS" in said or (not url.secure and await self._shows_certificate(url)):
            do = "Write amqps:// instead of amqp://: TLS is spoken there."
        elif "HTTP" in said:
            do = "That is a web server: RabbitMQ's management (15672) perhaps; AMQP is on 5672 as a rule."
        asked = "AMQP" if dialer.auto else f"AMQP {dialer.url.version}"
        self.report.fail("broker.protocol", self.where, f"nobody speaks {asked} there: {said}", do=do)


def _spoken(link: Link) -> bool:
    """Whether the far end spoke our version: it has introduced itself."""
    return bool(link.capabilities.product or link.capabilities.mechanisms)
