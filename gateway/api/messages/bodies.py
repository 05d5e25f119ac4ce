"""Bodies of messages in answers: the beginning of one as JSON, or all of it as a file.

A body is anybody's bytes. As a file it is never rendered: it has no media type of its own, browsers may not guess one,
save it in place of showing it, and run nothing of it even if they are made to show it.
"""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from typing import Annotated, Final, Literal

from msgspec import Meta
from starlette.responses import Response

BODY_MAX: Final = 1 << 20
"""Most bytes of a body that an answer in JSON shows of it, if a request names a limit."""
BodyMax = Annotated[int, Meta(ge=0, le=BODY_MAX)]
_utf8: Final = getincrementaldecoder("utf-8")


def payload_of(part: bytes, *, is_cut: bool) -> tuple[str, Literal["string", "base64"], int]:
    """Return the beginning of a body as the payload of a message, its encoding, and how many bytes of the body it has.

    Args:
        part: the beginning.
        is_cut: whether the body goes on behind it. Then what is left of a character at the end is left out.
    """
    decoder = _utf8()
    try:
        text = decoder.decode(part, not is_cut)
    except UnicodeDecodeError:
        return b64encode(part).decode(), "base64", len(part)
    return text, "string", len(part) - len(decoder.getstate()[0])


def file_answer(body: bytes, name: str) -> Response:
    """Answer with a body as a file of this name, which is ASCII without quotes."""
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
        "cache-control": "no-store",
    }
    return Response(body, headers=headers, media_type="application/octet-stream")
