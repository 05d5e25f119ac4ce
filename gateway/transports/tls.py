"""TLS for links: certificates are verified, against the host's name, unless the configuration spells out that
they shall not be."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from gateway.config import EmbeddedTls, EndpointTls, FrontTls, HttpTls, TlsSettings
from gateway.errors import ConfigurationError


def client_context(settings: TlsSettings | EndpointTls) -> ssl.SSLContext:
    """The context for connections to one broker or endpoint: TLS 1.2 or later. A text counts before the file.

    Raises:
        ConfigurationError: a file or a text is missing or is no certificate or key. The text of a key is not in it.
    """
    for name, text in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)):
        if not text.isascii():
            raise ConfigurationError(f"tls.{name}: PEM is ASCII")
    context = _context("tls.ca_file", "" if settings.ca else settings.ca_file, settings.ca)
    if settings.cert or settings.cert_file:
        with _file_of(settings.cert, settings.cert_file) as cert, _file_of(settings.key, settings.key_file) as key:
            _load("tls.cert" if settings.cert else "tls.cert_file", context, cert, key, shown=settings.cert_file)
    elif settings.key or settings.key_file:
        raise ConfigurationError(f"tls.{'key' if settings.key else 'key_file'}: a key without a certificate")
    if isinstance(settings, TlsSettings) and settings.dangerous_disable_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _context(setting: str, ca_file: str, ca: str = "") -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None, cadata=ca or None)
    except (OSError, ssl.SSLError) as error:
        named = "tls.ca" if ca else f"{setting}: {ca_file}"
        raise ConfigurationError(f"{named}: {_why(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(setting: str, context: ssl.SSLContext, cert_file: str, key_file: str, shown: str | None = None) -> None:
    named = cert_file if shown is None else shown
    try:
        context.load_cert_chain(cert_file, key_file or None, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{setting}: {named}: {_why(error)}".replace(": : ", ": ")) from None


def _no_password() -> str:
    """OpenSSL would ask the terminal."""
    raise ValueError("the key has a password, which we do not know")


@contextmanager
def _file_of(text: str, file: str) -> Iterator[str]:
    """A file with this text, only as long as it is read and for nobody else (OpenSSL loads keys from files alone); or
    the file that is there already."""
    if not text:
        yield file
        return
    with _nameless() if hasattr(os, "memfd_create") else tempfile.NamedTemporaryFile(prefix="gateway-") as opened:
        opened.write(text.encode("ascii"))
        opened.flush()
        yield opened.name if isinstance(opened.name, str) else f"/proc/self/fd/{opened.name}"


def _nameless() -> IO[bytes]:
    """A file in memory."""
    return os.fdopen(os.memfd_create("gateway"), "w+b")


def common_name(certificate: Any) -> str:
    """The common name of the subject of a certificate that was verified, as ``SSLSocket.getpeercert`` has it; empty:
    there is no certificate, or it has not exactly one such name."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    names = [value for part in subject for name, value in part if name == "commonName"]
    return names[0] if len(names) == 1 else ""


class ServerTls:
    """The context for connections to us, with certificates of callers, and with files that may be renewed."""

    def __init__(self, settings: HttpTls | EmbeddedTls | FrontTls, table: str = "") -> None:
        """
        Args:
            settings: The files.
            table: The table of the configuration that has them, for error messages: ``fronts.legacy``.

        Raises:
            ConfigurationError: a file is missing or is no certificate or key.
        """
        if isinstance(settings, EmbeddedTls):
            self._table, self._name = "embedded", "embedded.tls.ca_file"
            self._ca, self._verify = settings.ca_file, ssl.CERT_OPTIONAL
        else:
            self._table = table or "http"
            self._name, self._ca = f"{self._table}.tls.client_ca_file", settings.client_ca_file
            self._verify = ssl.CERT_REQUIRED if settings.clients == "required" else ssl.CERT_OPTIONAL
        self._cert, self._key = settings.cert_file, settings.key_file
        self._seen = self._stamps()
        self.context = self._load()
        """For all connections: what is renewed counts for new ones."""
        self.latest = self.context
        """As the files are now."""
        if self._ca:
            # A context only ever gets more authorities, and a ticket stands for a certificate that is not looked at
            # again (RFC 8446 section 4.6.1): so each handshake is told of the latest context, and there are no tickets.
            self.context.sni_callback = self._newest
            self.context.num_tickets = 0
            self.context.options |= ssl.OP_NO_TICKET

    def renew(self) -> bool:
        """Read the files again, if one of them has changed; whether that was so. What does not fit is not taken, and
        looked at again when it changes.

        Raises:
            ConfigurationError: a file is missing or is no certificate or key; the old ones go on.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        self.latest = self._load()  # all of it, apart, so that a pair of which one half is new yet changes nothing
        self.context.load_cert_chain(self._cert, self._key or None, password=_no_password)
        return True

    def _newest(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self.latest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(f"{self._table}.tls.cert_file", context, self._cert, self._key)
        if self._ca:
            try:
                context.load_verify_locations(self._ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(f"{self._name}: {self._ca}: {_why(error)}") from None
            context.verify_mode = self._verify
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        return stamps([file for file in (self._cert, self._key, self._ca) if file])


def stamps(files: Sequence[str]) -> list[tuple[int, int, int]]:
    """By what files are known to be others than before; one that is not there has a stamp, too."""
    found = []
    for file in files:
        try:
            stat = os.stat(file)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return found


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
