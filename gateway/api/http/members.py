"""Members of JSON objects that are there twice, which readers understand differently (RFC 8259, section 4).

The decoder takes the last of them and says nothing. So the octets are scanned once more, without building anything: one
call for each object. Only where a member is repeated it is looked where.
"""

from __future__ import annotations

from collections.abc import Callable
from json import JSONDecoder
from typing import Any, Final

from msgspec import Raw

from gateway.api.http.problems import ApiProblem
from gateway.validation import Path, place_of, pointer_of


class _Repeated(Exception):  # no error: it ends the scan
    """A member is there twice."""


def _check(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) < len(pairs):
        raise _Repeated


class _Members(list[tuple[str, Any]]):
    """The members of an object, all of them."""


def _text(text: str) -> str:
    return text


_checker: Final[Any] = JSONDecoder(object_pairs_hook=_check, parse_int=_text, parse_float=_text, strict=False)
_reader: Final[Any] = JSONDecoder(object_pairs_hook=_Members, parse_int=_text, parse_float=_text, strict=False)
_scan, _read = _checker.scan_once, _reader.scan_once
_SPACE: Final = " \t\n\r"


def repeated(
    octets: bytes | memoryview | Raw,
    *,
    members: int = 1,
    depth: int | None = None,
    passes_over: Callable[[Path], bool] | None = None,
) -> Path | None:
    """Return where JSON has a member twice: the names and indexes that lead there. None: nowhere, or it is no JSON,
    which the decoder tells better.

    Args:
        members: how many different members it is known to have. JSON without more colons has no others.
        depth: look no deeper than so many objects and arrays; None: at all of them.
        passes_over: whether the value at a path is not looked at.
    """
    if bytes(octets).count(b":") <= members:
        return None
    text = str(octets, "utf-8", "surrogateescape")
    start = len(text) - len(text.lstrip(_SPACE)) if text[:1] in _SPACE else 0
    try:
        _scan(text, start)
    except _Repeated:
        return _find(_read(text, start)[0], depth, passes_over)
    except (StopIteration, ValueError, RecursionError):
        pass
    return None


def repeated_member(path: Path) -> ApiProblem:
    """What is answered for a member that is there twice."""
    *_, name = path
    detail = f"the member {name!r:.80} is in one object twice; give it once"
    return ApiProblem("invalid_request", f"{place_of(path)}: {detail}", errors=[(pointer_of(path), detail)])


def _find(value: Any, depth: int | None, passes_over: Callable[[Path], bool] | None) -> Path | None:
    """Where the first repeated member is, of those that are least deep."""
    level: list[tuple[Path, Any]] = [((), value)]
    while level and (depth is None or depth > 0):
        below: list[tuple[Path, Any]] = []
        for path, each in level:
            if isinstance(each, _Members):
                seen: set[str] = set()
                for name, member in each:
                    if name in seen:
                        return (*path, name)
                    seen.add(name)
                    if isinstance(member, list):
                        below.append(((*path, name), member))
            else:
                below += [((*path, index), member) for index, member in enumerate(each) if isinstance(member, list)]
        level = [(path, each) for path, each in below if passes_over is None or not passes_over(path)]
        depth = depth if depth is None else depth - 1
    return None
