"""TLS for links: certificates are verified, against the host's name, unless the configuration spells out that
they shall not be."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from gateway.config import EndpointTls, TlsSettings
from gateway.errors import ConfigurationError


def client_context(settings: TlsSettings | EndpointTls) -> ssl.SSLContext:
    """The context for connections to one broker or endpoint: TLS 1.2 or later.

    Raises:
        ConfigurationError: a file or a text is missing or is no certificate or key. The text of a key is not in it.
    """
    if isinstance(settings, EndpointTls):
        return _endpoint_context(settings)
    context = _context("tls.ca_file", settings.ca_file)
    if settings.cert_file:
        _load("tls.cert_file", context, settings.cert_file, settings.key_file)
    elif settings.key_file:
        raise ConfigurationError("tls.key_file: a key without tls.cert_file")
    if settings.dangerous_disable_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _endpoint_context(settings: EndpointTls) -> ssl.SSLContext:
    """Of texts and files; a text counts before the file."""
    for name, text in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)):
        if not text.isascii():
            raise ConfigurationError(f"tls.{name}: PEM is ASCII")
    context = _context("tls.ca_file", "" if settings.ca else settings.ca_file, settings.ca)
    if settings.cert or settings.cert_file:
        with _file_of(settings.cert, settings.cert_file) as cert, _file_of(settings.key, settings.key_file) as key:
            _load("tls.cert" if settings.cert else "tls.cert_file", context, cert, key, shown=settings.cert_file)
    elif settings.key or settings.key_file:
        raise ConfigurationError("tls.key: a key without a certificate")
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


def server_context(cert_file: str, key_file: str = "") -> ssl.SSLContext:
    """The context for connections to us: TLS 1.2 or later, no certificate asked of clients.

    Raises:
        ConfigurationError: a file is missing or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_file, key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"tls.cert_file: {cert_file}: {_why(error)}") from None
    return context


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
