"""``PATCH`` of settings: a JSON merge patch (RFC 7396) of what a ``GET`` shows under ``settings``.

The patched settings go the way of a ``PUT``: the same checks, and ``If-Match`` where anything changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from gateway.api.http.call import JSON, Call, if_match, wrong_body
from gateway.api.http.routing import Media
from gateway.config.base import Settings
from gateway.errors import EtagMismatch
from gateway.validation import explain, structs_in

MERGE_PATCH: Final = "application/merge-patch+json"
MEDIA: Final = (
    Media(
        MERGE_PATCH, "RFC 7396: members replace those of the settings, `null` takes one back to its default.",
        {"type": "object"},
    ),
)  # fmt: skip
PATCHING: Final = (
    "A JSON merge patch (RFC 7396) of what a `GET` shows under `settings`. Other settings need `If-Match`, as a `PUT` "
    "does."
)
"""What each route says of it."""
S = TypeVar("S", bound=Settings)


class Patch(msgspec.Struct):
    """Some of the settings; `null` takes one back to its default."""


async def patched(call: Call, what: str, settings: S, etag: str) -> tuple[S, str | None]:
    """The settings with the patch of the body, and the etag that a ``PUT`` of them has to find.

    Args:
        what: names the resource in errors.
        settings: as they are shown.
        etag: of these settings.

    Raises:
        ApiProblem: the patch is no JSON object, or what it makes does not fit.
        EtagMismatch: ``If-Match`` names other settings.
    """
    patch = await call.json(dict[str, Any], (JSON, MERGE_PATCH))
    match = if_match(call)
    if match not in (None, "*", etag):
        raise EtagMismatch(f"{what} is not the one that If-Match asks for")
    kind = type(settings)
    document = merge(msgspec.to_builtins(settings), patch, kind)
    try:
        found = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise wrong_body(explain(error, document, kind)) from None
    return found, None if match is None else etag


def merge(document: Any, patch: Any, kind: Any) -> Any:
    """The document with a merge patch, where ``kind`` is its struct. A field that is given by one of its names is taken
    out under the other."""
    if not isinstance(patch, dict):
        return patch
    found = dict(document) if isinstance(document, dict) else {}
    fields = {field.encode_name: field.type for struct in structs_in(kind) for field in msgspec.structs.fields(struct)}
    for name, value in patch.items():
        for twin in _twins(kind, name):
            if twin not in patch:
                found.pop(twin, None)
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merge(found.get(name), value, fields.get(name))
    return found


def _twins(kind: Any, name: str) -> Iterator[str]:
    for struct in structs_in(kind):
        if issubclass(struct, Settings):
            for pair in (*struct.RENAMED.items(), *struct.OTHER_NAMES.items()):
                if name in pair:
                    yield pair[pair[0] == name]
