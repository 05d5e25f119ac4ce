"""Open a stream to a broker: TCP, and TLS on top where the URL says ``amqps``."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.config import BrokerUrl, TlsSettings
from gateway.errors import BrokerUnavailable, CertificateRefused, GatewayError
from gateway.runtime.clock import clock
from gateway.transports.stream import Stream, StreamUser
from gateway.transports.tls import client_context

Resolve = Callable[[BrokerUrl], Awaitable[Sequence[str]]]
"""A broker's URL to the addresses that may be connected to, best first. Raises GatewayError: there is none."""


async def dial(
    user: StreamUser, url: BrokerUrl, tls: TlsSettings, within: float, resolve: Resolve | None = None
) -> Stream:
    """Connect ``within`` this many seconds, TLS handshake included. ``resolve`` None: as the system does.

    Raises:
        GatewayError: ``resolve`` raised it.
        BrokerUnavailable: nobody listens there, or not in time.
        CertificateRefused: TLS verification failed, in either direction.
        ConfigurationError: a TLS file is missing or wrong.
    """
    where = f"{url.host}:{url.port}"
    context = client_context(tls) if url.secure else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(within):
            name = (tls.server_name or url.host) if context is not None else None
            hosts = [url.host] if resolve is None else await resolve(url)
            for number, host in enumerate(hosts, 1):
                try:
                    transport, stream = await loop.create_connection(
                        lambda: Stream(user), host, url.port, ssl=context, server_hostname=name
                    )
                    break
                except OSError:
                    if number == len(hosts):
                        raise
    except TimeoutError:
        raise BrokerUnavailable(f"{where}: no connection within {within:g} s") from None
    except ssl.SSLError as error:
        raise _tls_error(where, error) from None
    except socket.gaierror as error:
        raise BrokerUnavailable(f"{url.host}: {error.strerror}") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise BrokerUnavailable(f"{where}: {why or 'the broker hung up during the handshake of TLS'}") from None
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return stream


async def tls_problem(
    url: BrokerUrl, tls: TlsSettings, within: float, resolve: Resolve | None = None
) -> BrokerUnavailable | None:
    """Why a broker hangs up on us once TLS is agreed, None if TLS has no part in it.

    In TLS 1.3 a client is done before the server has looked at its certificate, and whether there is one (RFC 8446
    section 4.4.2.4). By the time the server refuses, our first words are on their way to a closed socket, and the
    reset that they cause may overtake the alert. So this connects once more, says nothing, and listens ``within`` this
    many seconds.
    """
    listener = _Listener()
    deadline = clock.monotonic() + within
    stream: Stream | None = None
    try:
        stream = await dial(listener, url, tls, within, resolve)
        async with asyncio.timeout_at(deadline):
            error = await listener.heard
    except CertificateRefused as refused:
        return refused
    except (GatewayError, TimeoutError):
        return None
    finally:
        if stream is not None:
            stream.abort()
    return _tls_error(f"{url.host}:{url.port}", error) if isinstance(error, ssl.SSLError) else None


class _Listener:
    """A :class:`StreamUser` that says nothing and waits for the end."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._end(None)

    def stream_lost(self, error: Exception | None) -> None:
        self._end(error)

    def data_to_send(self) -> list[bytes]:
        return []

    def writable_again(self) -> None:
        """Nothing was written."""

    def _end(self, error: Exception | None) -> None:
        if not self.heard.done():
            self.heard.set_result(error)


def _tls_error(where: str, error: ssl.SSLError) -> BrokerUnavailable:
    """What an error of TLS means to those who wanted a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateRefused(f"{where}: the certificate does not verify: {error.verify_message}")
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLEOFError):
        return BrokerUnavailable(f"{where}: the broker hung up in the middle of TLS: {reason}")
    meaning = next((text for words, text in _MEANINGS if words in reason), "")
    return CertificateRefused(f"{where}: TLS failed: {reason}{meaning}")


_MEANINGS: Final = (
    ("CERTIFICATE_REQUIRED", ": the broker wants a client certificate, see tls.cert_file"),
    ("HANDSHAKE_FAILURE", ": no common ground, or the broker wants a client certificate, see tls.cert_file"),
    ("ALERT_UNKNOWN_CA", ": the broker does not know the authority of our tls.cert_file"),
    ("ALERT_CERTIFICATE_EXPIRED", ": our tls.cert_file has expired"),
    ("ALERT_BAD_CERTIFICATE", ": the broker does not take our tls.cert_file"),
    ("WRONG_VERSION_NUMBER", ": that port does not speak TLS, amqp:// may be meant"),
)
"""Part of the reason that OpenSSL gives -> what it means here."""
