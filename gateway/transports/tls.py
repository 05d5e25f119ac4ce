"""TLS for links: certificates are verified, against the host's name, unless the configuration spells out that
they shall not be."""

from __future__ import annotations

import ssl

from gateway.config import TlsSettings
from gateway.errors import ConfigurationError


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context for connections to one broker: TLS 1.2 or later.

    Raises:
        ConfigurationError: a file is missing or is no certificate or key.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"tls.ca_file: {settings.ca_file}: {_why(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.cert_file:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"tls.cert_file: {settings.cert_file}: {_why(error)}") from None
    elif settings.key_file:
        raise ConfigurationError("tls.key_file: a key without tls.cert_file")
    if settings.dangerous_disable_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


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


def _why(error: OSError) -> str:
    return error.strerror or str(error)
