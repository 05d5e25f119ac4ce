"""Names, addresses, ports and certificates: what can be told of a far end before its protocol begins.

Each step says in words what went wrong, and what people usually find then.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509

from gateway.commands.doctor.findings import Report
from gateway.runtime.clock import clock

EXPIRES_SOON: Final = timedelta(days=21)
"""A certificate that has less left than this is worth a word."""
ADDRESSES: Final = 8
"""Most addresses of a host that are tried."""
_REFUSED: Final[dict[int, tuple[str, str]]] = {
    errno.ECONNREFUSED: (
        "nobody listens there",
        "Is it running? Compare host and port with what it listens on; a container has a loopback of its own.",
    ),
    errno.EHOSTUNREACH: ("there is no way to that host", "Look at routes and firewalls between here and there."),
    errno.ENETUNREACH: ("there is no way to that network", "Look at routes and firewalls between here and there."),
    errno.ETIMEDOUT: ("nothing answers", "A firewall or a network policy drops what we send, or the host is down."),
}
"""Number of the error -> what it means, what to do."""
LATE: Final = _REFUSED[errno.ETIMEDOUT]


class Unreachable(Exception):
    """A step did not come to its end: ``what``, and what to ``do``."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what)
        self.what, self.do = what, do


@dataclass(frozen=True, slots=True)
class ShownCertificate:
    """A certificate that was shown, or is in a file."""

    certificate: x509.Certificate

    @property
    def names(self) -> tuple[str, ...]:
        """Hosts that it is for."""
        try:
            found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return ()
        return (
            *found.get_values_for_type(x509.DNSName),
            *(str(each) for each in found.get_values_for_type(x509.IPAddress)),
        )

    @property
    def issuer(self) -> str:
        """Who signed it."""
        return self.certificate.issuer.rfc4514_string() or "nobody by name"

    @property
    def by_itself(self) -> bool:
        """It is signed by nobody else."""
        return self.certificate.issuer == self.certificate.subject

    @property
    def until(self) -> str:
        """Its last day."""
        return f"{self.certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"


async def addresses(host: str, within: float) -> Sequence[str]:
    """All addresses of a host. Raises Unreachable."""
    host = host.strip("[]")
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass  # a name
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(within):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise Unreachable(
            f"the resolver says nothing of {host} within {within:g} s",
            "Look at the name servers of this machine (/etc/resolv.conf).",
        ) from None
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Unreachable(
            f"the host {host} has no address: {why}",
            "Correct the host's name, or see to it that this machine can resolve it: getent hosts " + host,
        ) from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def connect(found: Sequence[str], port: int, within: float) -> tuple[str, socket.socket]:
    """The first address that takes a connection, and the connection. Raises Unreachable."""
    loop = asyncio.get_running_loop()
    until = clock.monotonic() + within
    tried = found[:ADDRESSES]
    last = Unreachable("there is no address to try", "Look at the host's name.")
    for number, address in enumerate(tried):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout((until - clock.monotonic()) / (len(tried) - number)):
                await loop.sock_connect(sock, (address, port))
        except TimeoutError:
            sock.close()
            last = Unreachable(f"{address} port {port}: {LATE[0]} within {within:g} s", LATE[1])
        except OSError as error:
            sock.close()
            what, do = _REFUSED.get(error.errno or 0, (os.strerror(error.errno or 0), "See what the system says."))
            last = Unreachable(f"{address} port {port}: {what}", do)
        else:
            return address, sock
    raise last


async def shown_by(sock: socket.socket, context: ssl.SSLContext, name: str, within: float) -> ShownCertificate | None:
    """The certificate that the far end of a connection shows, valid or not; None: it speaks no TLS, or hung
    up. Closes the connection. ``context`` is only read."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.minimum_version = context.minimum_version
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(within):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, sock=sock, ssl=unverified, server_hostname=name
            )
    except (OSError, TimeoutError):
        sock.close()
        return None
    try:
        octets = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return ShownCertificate(x509.load_der_x509_certificate(octets)) if octets else None
    except ValueError:
        return None
    finally:
        transport.abort()


def read_certificates(text: bytes) -> list[ShownCertificate]:
    """Those of a PEM text; none: it has none that can be read."""
    try:
        return [ShownCertificate(each) for each in x509.load_pem_x509_certificates(text)]
    except ValueError:
        return []


def judge_dates(report: Report, check: str, where: str, shown: ShownCertificate, whose: str) -> bool:
    """Say it where a certificate has expired, is for later, or expires soon; whether it counts today."""
    now = clock.utc()
    certificate = shown.certificate
    if now > certificate.not_valid_after_utc:
        report.fail(
            check, where, f"{whose} expired at {shown.until}",
            why="Nobody who verifies it connects any more.", do="Renew it.",
        )  # fmt: skip
        return False
    if now < certificate.not_valid_before_utc:
        report.fail(
            check, where, f"{whose} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on",
            why="It is for later, or the clock of this machine is behind.", do="Compare the clock; else wait.",
        )  # fmt: skip
        return False
    if certificate.not_valid_after_utc - now < EXPIRES_SOON:
        report.warn(
            check, where, f"{whose} expires soon: at {shown.until}",
            why=f"Less than {EXPIRES_SOON.days} days are left.", do="See to it that it is renewed.",
        )  # fmt: skip
    return True


def judge_file(report: Report, check: str, where: str, path: str, whose: str) -> None:
    """The dates of the certificates in a file; whether it fits its key is for others to say."""
    try:
        found = read_certificates(Path(path).read_bytes())
    except OSError as error:
        report.fail(check, where, f"{path}: {error.strerror}", do="Correct the path, or the rights of the file.")
        return
    if not found:
        report.fail(
            check, where, f"{path}: there is no certificate in it",
            why="It must be PEM: -----BEGIN CERTIFICATE-----", do="Name the right file.",
        )  # fmt: skip
    elif judge_dates(report, check, where, found[0], whose):
        report.ok(check, where, f"{whose} is valid until {found[0].until}")
