"""``/console``: the pages for operators, as static files of the package; they ask the public API and nothing else.

The files are in ``gateway/console``. Its folder ``vendor`` has files of other projects, unchanged; ``vendored.toml``
lists them. The content security policy allows this origin only, and neither inline script nor inline
style. The browser shows messages as text: ``require-trusted-types-for`` forbids anything else.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from starlette.responses import Response

from gateway.api.http.call import Call
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Route, Scope

FOLDER: Final = Path(__file__).parents[2] / "console"
"""Where the files are."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Of the page and its files."""
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
"""Suffix of a file that is served -> its media type. Files of other kinds are not served."""
PAGE: Final = "index.html"


class ConsoleFile(NamedTuple):
    """A file as it is served."""

    content: bytes
    compressed: bytes
    """The same, with gzip."""
    etag: str
    media_type: str


@cache
def files() -> Mapping[str, ConsoleFile]:
    """Return all files by name, which are read once."""
    found = {}
    for path in sorted([*FOLDER.glob("*.*"), *FOLDER.glob("vendor/*.*")]):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            etag = f'"{sha256(content).hexdigest()[:32]}"'
            compressed = gzip.compress(content, 9, mtime=0)
            found[path.name] = ConsoleFile(content, compressed, etag, MEDIA_TYPES[path.suffix])
    return found


async def console(call: Call) -> Response:
    """Answer with the page."""
    return _answer(call, PAGE)


async def asset(call: Call) -> Response:
    """Answer with a file of the page."""
    return _answer(call, call.names["asset"])


def _answer(call: Call, name: str) -> Response:
    """Return a file. Browsers keep it, and ask each time whether there is another one. Raises ApiProblem."""
    file = files().get(name)
    if file is None:
        raise ApiProblem("route_not_found", f"the console has no file {name!r}")
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if file.etag in (call.header(b"if-none-match") or "").replace("W/", "").split(", "):
        return Response(status_code=304, headers=headers)
    codings = [each.strip() for each in (call.header(b"accept-encoding") or "").lower().split(",")]
    if "gzip" in codings:
        return Response(file.compressed, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)


_FILE: Final = {200: ("The file.", None), 304: ("The caller has it already.", None)}

ROUTES = (
    Route(
        "GET", "/console", "console", "The console for operators", console, Scope.NONE, _FILE, tag="documents",
    ),
    Route(
        "GET", "/console/", "console_folder", "The console for operators", console, Scope.NONE, _FILE, tag="documents",
    ),
    Route(
        "GET", "/console/{asset}", "console_asset", "A file of the console", asset, Scope.NONE, _FILE,
        codes=("route_not_found",), tag="documents",
    ),
)  # fmt: skip
