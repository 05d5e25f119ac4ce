"""Requests that a web page has a browser send: which hosts they may name, and which sites they may come from.

A browser sends its credentials unasked to every host that a page names: a client certificate, or nothing at all to a
gateway that asks for no key. So where a browser could be the caller, the gateway refuses requests of other sites, with
any method. Browsers say where a request comes from in ``Origin`` (RFC 6454) and ``Sec-Fetch-Site`` (W3C Fetch
Metadata); other clients send neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.api.http.problems import ApiProblem
from gateway.config import HttpSettings

OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""Values of ``Sec-Fetch-Site`` of the gateway's own pages and of a user who types the address."""
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names of this machine, as ``Host`` has them."""


class Sites:
    """The hosts and origins that ``[http]`` allows, and further hosts."""

    def __init__(self, http: HttpSettings, *hosts: str) -> None:
        self._hosts = frozenset(host.lower() for host in (*http.allowed_hosts, *hosts))
        self._origins = frozenset(origin.lower() for origin in http.allowed_origins)

    def check_host(self, host: bytes) -> None:
        """Refuse a request that names another host, as pages do by DNS rebinding.

        Raises:
            ApiProblem: misdirected_request.
        """
        name = host.decode("latin-1").lower()
        if name not in self._hosts and name.rpartition(":")[0] not in self._hosts:
            raise ApiProblem("misdirected_request", f"Host {name!r} is not one of http.allowed_hosts")

    def check_site(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request that a page of another site has sent. The gateway's own site is the one that ``Host``
        names, port included: other ports of this machine may serve anybody's pages.

        Args:
            headers: those of the request, names in lower case.

        Raises:
            ApiProblem: origin_refused.
        """
        origin = headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1").lower()
            host = headers.get(b"host", b"").decode("latin-1").lower()
            is_own = bool(host) and text in (f"http://{host}", f"https://{host}")
            if text not in self._origins and not is_own:
                raise ApiProblem(
                    "origin_refused", f"Origin {text!r} is neither this gateway nor one of http.allowed_origins"
                )
            return
        site = headers.get(b"sec-fetch-site")
        if site is not None and site.lower() not in OWN_SITES:
            detail = (
                f"Sec-Fetch-Site {site.decode('latin-1')!r}: a page of another site had a browser send this request"
            )
            raise ApiProblem("origin_refused", detail)
