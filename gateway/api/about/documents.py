"""``/``, ``/openapi.json`` and ``/docs``: documents that need no key and load nothing from elsewhere.

The page shows the OpenAPI document with Swagger UI, whose files come out of the installed package ``offapi`` and are
served by us. The content security policy allows this origin only, and no inline script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.responses import Response

from gateway import __version__
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import PROBLEMS, ApiProblem
from gateway.api.http.routing import Route, Scope

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI sets styles on elements, hence inline style; scripts come from files only."""
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

_START: Final = """\
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#docs",
    deepLinking: true,
    validatorUrl: null,
    presets: [SwaggerUIBundle.presets.apis, SwaggerUIStandalonePreset],
    layout: "BaseLayout",
  });
});
"""

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AMQP gateway: HTTP API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger.css">
</head>
<body>
<div id="docs"></div>
<noscript>This page needs JavaScript; the document itself is at <a href="/openapi.json">/openapi.json</a>.</noscript>
<script src="/docs/swagger.js"></script>
<script src="/docs/preset.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""


def _packaged(name: str) -> Callable[[], bytes]:
    return lambda: (_offapi() / name).read_bytes()


def _offapi() -> Path:
    """Return the package's folder, without importing it: that reads all its files, and keeps 35 MiB."""
    spec = find_spec("offapi")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


ASSETS: Final[Mapping[str, tuple[str, Callable[[], bytes]]]] = {
    "swagger.js": ("text/javascript", _packaged("swagger_bundle.js")),
    "preset.js": ("text/javascript", _packaged("swagger_preset.js")),
    "swagger.css": ("text/css", _packaged("swagger_style.css")),
    "start.js": ("text/javascript", _START.encode),
}
"""Files of the page: media type, and where the octets come from."""


@cache
def _asset(name: str) -> bytes:
    return ASSETS[name][1]()


def _prefers_html(accept: str) -> bool:
    """Whether a caller is a browser: it names HTML, and does not name JSON before that."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    json = kinds.index("application/json") if "application/json" in kinds else len(kinds)
    return "text/html" in kinds and kinds.index("text/html") < json


async def root(call: Call) -> Response:
    """Where to go from here. A browser goes to the page."""
    if _prefers_html(call.header(b"accept") or ""):
        return Response(status_code=303, headers={"location": "/docs", "vary": "accept", **SECURITY_HEADERS})
    return answer(
        {
            "name": "amqp-gateway",
            "version": __version__,
            "console": "/console",
            "docs": "/docs",
            "openapi": "/openapi.json",
            "api": "/v1/brokers",
        },
        headers={"vary": "accept"},
    )


async def docs(call: Call) -> Response:
    """The page."""
    return Response(_PAGE, media_type="text/html", headers=SECURITY_HEADERS)


async def asset(call: Call) -> Response:
    """A file of the page, or the page of problems."""
    name = call.names["asset"]
    if name == "errors":
        return Response(_errors(), media_type="text/html", headers=SECURITY_HEADERS)
    if name not in ASSETS:
        raise ApiProblem("route_not_found", f"no file {name!r}")
    headers = {**SECURITY_HEADERS, "cache-control": "public, max-age=86400"}
    return Response(_asset(name), media_type=ASSETS[name][0], headers=headers)


def _marked(text: str) -> str:
    """Text for a page, with what stands in backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


@cache
def _errors() -> str:
    """The page that the ``type`` of a problem names."""
    rows = "\n".join(
        f'<tr id="{code}"><td><code>{code}</code></td><td>{kind.status}</td><td>{_marked(kind.title)}</td>'
        f"<td>{_marked(kind.advice)}</td></tr>"
        for code, kind in PROBLEMS.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>AMQP gateway: problems</title>\n'
        '<link rel="icon" href="data:,">\n'
        "<style>body{font:16px/1.5 sans-serif;margin:2rem}td,th{text-align:left;padding:.3rem .8rem;"
        "border-bottom:1px solid #ccc;vertical-align:top}td:first-child{white-space:nowrap}"
        "tr:target{background:#ffc}</style>\n</head>\n<body>\n<h1>Problems</h1>\n"
        "<table>\n<tr><th>code</th><th>status</th><th>title</th><th>what to do</th></tr>\n"
        f"{rows}\n</table>\n</body>\n</html>\n"
    )


ROUTES = (
    Route(
        "GET", "/", "root", "Where to go from here", root, Scope.NONE,
        {200: ("Links.", None), 303: ("A browser (`Accept: text/html`) goes to `/docs`.", None)}, tag="documents",
    ),
    Route(
        "GET", "/docs", "docs", "This page", docs, Scope.NONE, {200: ("HTML.", None)}, tag="documents",
    ),
    Route(
        "GET", "/docs/", "docs_folder", "This page", docs, Scope.NONE, {200: ("HTML.", None)}, tag="documents",
    ),
    Route(
        "GET", "/docs/{asset}", "docs_asset", "A file of this page; `errors` is the list of problem codes", asset,
        Scope.NONE, {200: ("The file.", None)}, codes=("route_not_found",), tag="documents",
    ),
)  # fmt: skip
