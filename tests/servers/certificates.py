"""Certificates for a server's TLS port, made anew for each server by an authority of its own.

One port shows several certificates, told apart by the name that the client asks for (RFC 6066, server name
indication), so that one server is enough for everything that can be wrong with one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

NAMES = ("localhost", "broker.example")
"""Whom the ordinary certificate is for. It is shown to everybody who asks for no name of the other two; it is
not for ``127.0.0.1``."""
EXPIRED = "expired.example"
"""Who asks for this name is shown a certificate that has expired."""
MUTUAL = "mutual.example"
"""Who asks for this name must show a certificate."""
CLIENT = "client"
"""The common name of the client's certificate: the login that it stands for."""


class Certificates:
    """PEM files in a folder. Each is a certificate ``NAME.pem`` with its key ``NAME.key``: ``server``, ``expired``,
    ``mutual``, ``client``, and ``foreign``, a client's from an authority that nobody trusts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ca_file(self) -> str:
        """The authority of all but the foreign ones."""
        return str(self.folder / "ca.pem")

    @property
    def other_ca_file(self) -> str:
        """An authority that has signed nothing of the server's."""
        return str(self.folder / "other-ca.pem")

    def cert_file(self, name: str) -> str:
        """A certificate."""
        return str(self.folder / f"{name}.pem")

    def key_file(self, name: str) -> str:
        """The key of a certificate."""
        return str(self.folder / f"{name}.key")

    def key_store(self, name: str) -> str:
        """Certificate and key in one file (PKCS #12), which :meth:`write_key_store` writes."""
        return str(self.folder / f"{name}.p12")

    def write_key_store(self, name: str, secret: str) -> None:
        """Write the certificate and its key for servers that take no PEM, encrypted with ``secret``."""
        certificate = load_pem_x509_certificate(Path(self.cert_file(name)).read_bytes())
        key = load_pem_private_key(Path(self.key_file(name)).read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        store = serialize_key_and_certificates(
            name.encode(), key, certificate, None, BestAvailableEncryption(secret.encode())
        )
        Path(self.key_store(name)).write_bytes(store)

    def make(self) -> None:
        """Write all files."""
        self.folder.mkdir()
        authority, other = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        other.cert_pem.write_to_path(self.other_ca_file)
        yesterday = datetime.now(UTC) - timedelta(days=1)
        for name, certificate in {
            "server": authority.issue_cert(*NAMES),
            "expired": authority.issue_cert(EXPIRED, not_before=yesterday - timedelta(days=9), not_after=yesterday),
            "mutual": authority.issue_cert(MUTUAL),
            "client": authority.issue_cert("client.example", common_name=CLIENT),
            "foreign": other.issue_cert("client.example"),
        }.items():
            certificate.cert_chain_pems[0].write_to_path(self.cert_file(name))
            certificate.private_key_pem.write_to_path(self.key_file(name))
