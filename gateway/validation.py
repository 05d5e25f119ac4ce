"""What is wrong with a document that does not fit its struct: where it stands, and what would be right.

msgspec reports the first value that does not fit as a sentence with a path. :func:`explain` makes a :class:`Misfit` of
it, for bodies, query parameters, command lines and configuration files alike. A place is written as in TOML:
``source.queue``, ``messages[2].payload``, ``headers."a.b"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from gateway.runtime.clock import clock

SHOWN_MAX: Final = 60
"""Most characters of a value or name that a sentence repeats."""
BODY: Final = "the body"
"""What a whole document is called where nothing else is known of it."""

Path = tuple[str | int, ...]

Moment = Annotated[
    datetime,
    Meta(
        tz=True, description="RFC 3339, with an offset; or how long ago: `90s`, `10m`, `2h`, `1d`.",
        extra_json_schema={"x-ago": True}, extra={"ago": True},
    ),
]  # fmt: skip
"""A time that a caller gives; :func:`resolve_ages` reads the second form."""
AGO: Final = r"(\d{1,5}(?:\.\d{1,3})?)([smhd])"
_AGO = re.compile(AGO)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_AT = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>.*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_MISSING = re.compile(r"Object missing required field `(.+)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]+)`(?:, got `(?P<got>[^`]+)`|(?P<limit> .+))?\Z", re.DOTALL)
_KINDS: Final[Mapping[str, str]] = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
    "datetime": "a time of RFC 3339 with an offset",
    "moment": "a time of RFC 3339 with an offset, or how long ago (90s, 10m, 2h, 1d)",
}
"""What msgspec calls a type -> what a reader calls it."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One value that does not fit."""

    path: Path
    """Keys and indexes that lead to it."""
    detail: str
    """What is wrong with it."""
    expected: tuple[str, ...] = ()
    """The words that may stand there; of an unknown name: the names that there are."""

    @property
    def pointer(self) -> str:
        """Where, as a JSON pointer (RFC 6901)."""
        return pointer_of(self.path)

    @property
    def place(self) -> str:
        """Where, as it is written in TOML; empty: the whole document."""
        return place_of(self.path)

    def __str__(self) -> str:
        return f"{self.place or BODY}: {self.detail}"


class WrongField(ValueError):
    """Raised in ``__post_init__`` of a struct: one of its fields does not fit."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


def pointer_of(path: Iterable[str | int]) -> str:
    """The JSON pointer of this path (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def path_of(pointer: str) -> Path:
    """The path of a JSON pointer; numbers are taken for indexes."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return tuple(int(step) if step.isascii() and step.isdecimal() else step for step in steps)


def place_of(path: Iterable[str | int]) -> str:
    """The path as TOML writes it, with indexes in brackets."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if _BARE.match(step) else '"' + step.replace("\\", "\\\\").replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


def culprits(problem: Mapping[str, Any]) -> list[str]:
    """What ``errors`` of a problem of the API adds to its ``detail``: ``PLACE: DETAIL`` each."""
    found = []
    for each in problem.get("errors", ()):
        place = place_of(path_of(each.get("pointer", ""))) or each.get("parameter") or each.get("header") or BODY
        text = f"{place}: {each.get('detail', '')}"
        if text not in problem.get("detail", ""):
            found.append(text)
    return found


def unknown(name: str, known: Sequence[str], what: str) -> tuple[str, tuple[str, ...]]:
    """The sentence for a name that there is not, and the names that there are. ``what``: field, setting, …"""
    if not known:
        return f"there is no such {what}; none is taken here", ()
    close = closest(name, known)
    meant = f"did you mean {close}? There are" if close else "there are"
    return f"there is no such {what}; {meant} {', '.join(known)}", tuple(known)


def closest(name: str, known: Sequence[str]) -> str:
    """The name that is probably meant; empty: none is close."""
    plain = {re.sub(r"[^a-z0-9]", "", each.lower()): each for each in known}
    same = plain.get(re.sub(r"[^a-z0-9]", "", name.lower()))
    if same is not None:
        return same
    close = get_close_matches(name[:SHOWN_MAX], known, 1, 0.6)
    longer = (each for each in known if each.startswith(f"{name}_"))
    return close[0] if close else next(longer, "")


def one_of(value: object, words: Sequence[str]) -> str:
    """The sentence for a value that is not one of these words."""
    return f"{shown(value)} is not one of {', '.join(word for word in words if word)}"


def shown(value: object) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


@cache
def fields_of(kind: Any) -> tuple[str, ...]:
    """The names of a struct's fields, as they are sent."""
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def words_of(kind: Any) -> tuple[str, ...]:
    """The words that a type allows; empty: it is no enumeration."""
    found: list[str] = []
    for each in _plain(kind):
        if get_origin(each) is Literal:
            found += [str(word) for word in get_args(each)]
        elif isinstance(each, type) and issubclass(each, Enum):
            found += [str(member.value) for member in each]
    return tuple(found)


def words_in(kind: Any) -> tuple[str, ...]:
    """The words that a type, or an item of it, allows."""
    items = (item for each in _plain(kind) if get_origin(each) in (tuple, list) for item in get_args(each)[:1])
    return words_of(kind) or tuple(word for item in items for word in words_of(item))


def explain(
    error: msgspec.ValidationError, document: Any, kind: Any, *, strict: bool = True, what: str = "field"
) -> Misfit:
    """What is wrong with ``document``, which is not of ``kind``.

    Args:
        error: what msgspec said of it.
        document: as plain objects.
        strict: as it was converted; if not, its values are texts, and the sentence shows them.
        what: what a name in it is called: ``field``, ``setting``, ``query parameter``.
    """
    text = str(error)
    match = _AT.search(text)
    detail = text[: match.start()] if match is not None else text
    path, value, kinds = _follow(match["path"] if match is not None else "", document, [kind], strict)
    if match is not None and match["key"]:
        key = _wrong_key(value, kinds, strict)
        return Misfit((*path, key) if key is not None else path, f"this name is not allowed: {_sentence(detail)}")
    cause = error.__cause__
    if isinstance(cause, WrongField):
        return Misfit((*path, *cause.field.split(".")), cause.detail)
    if (missing := _MISSING.match(detail)) is not None:
        return Misfit((*path, missing[1]), "it is required, and missing")
    if (surplus := _UNKNOWN.match(detail)) is not None:
        known = _fields(kinds)
        sentence, expected = unknown(surplus[1], known, what)
        return Misfit((*path, _cut(surplus[1])), sentence, expected)
    if detail.startswith(("Invalid enum value", "Invalid value")) and (words := _words(kinds)):
        return Misfit(path, one_of(value, words), words)
    if detail.startswith(("Invalid RFC3339", "Expected `datetime`")):
        return Misfit(path, f"expected {_KINDS['moment' if _is_moment(kinds) else 'datetime']}, got {shown(value)}")
    if not strict and isinstance(value, str):
        return Misfit(path, f"{_sentence(detail.partition(', got ')[0])}, got {shown(value)}")
    return Misfit(path, _sentence(detail) + _size(detail, value))


def ago(text: str, now: datetime | None = None) -> datetime | None:
    """The time so long ago: ``90s``, ``5m``, ``2h``, ``1.5d``; None for any other text."""
    found = _AGO.fullmatch(text)
    if found is None:
        return None
    return (now or clock.utc()) - timedelta(**{_UNITS[found[2]]: float(found[1])})


@cache
def moments_in(kind: Any) -> Mapping[str, Any]:
    """Fields of a struct that are a :data:`Moment`, as None, or that hold a struct with such fields."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ():
        if _is_moment([field.type]):
            found[field.encode_name] = None
        else:
            inner = [each for each in _structs([field.type]) if moments_in(each)]
            if inner:
                found[field.encode_name] = inner[0]
    return found


def resolve_ages(document: Any, kind: Any) -> Any:
    """The document with times of RFC 3339 in place of what says how long ago."""
    if not isinstance(document, dict):
        return document
    found = dict(document)
    for name, inner in moments_in(kind).items():
        value = found.get(name)
        if inner is not None and name in found:
            found[name] = resolve_ages(value, inner)
        elif isinstance(value, str) and (at := ago(value)) is not None:
            found[name] = at.isoformat()
    return found


def _is_moment(kinds: Iterable[Any]) -> bool:
    for kind in kinds:
        if get_origin(kind) is Annotated:
            inner, *more = get_args(kind)
            if any(isinstance(each, Meta) and each.extra == {"ago": True} for each in more) or _is_moment([inner]):
                return True
        elif get_origin(kind) in (Union, UnionType) and _is_moment(get_args(kind)):
            return True
    return False


def _cut(name: str) -> str:
    return name if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]}…"


def _sentence(detail: str) -> str:
    """What msgspec says, in words that are not Python's."""
    match = _EXPECTED.match(detail)
    if match is None:
        return detail[:1].lower() + detail[1:]
    kinds = " or ".join(_KINDS.get(each, each) for each in match["kinds"].split(" | "))
    got = f", got {_KINDS.get(match['got'], match['got'])}" if match["got"] else ""
    return f"expected {kinds}{match['limit'] or ''}{got}"


def _size(detail: str, value: Any) -> str:
    """What a value is that is over a limit."""
    if ", got " in detail or not detail.startswith("Expected"):
        return ""
    if " of length " in detail and isinstance(value, str | list | dict):
        return f", got {len(value)}"
    return f", got {shown(value)}" if isinstance(value, int | float) else ""


def _plain(kind: Any) -> Iterator[Any]:
    """The types that a type may be, without annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _plain(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _plain(each)
    else:
        yield kind


def _words(kinds: Iterable[Any]) -> tuple[str, ...]:
    return tuple(word for kind in kinds for word in words_of(kind))


def _fields(kinds: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for kind in _structs(kinds) for name in fields_of(kind)))


def structs_in(kind: Any) -> Iterator[Any]:
    """The structs that a type may be."""
    return _structs([kind])


def _structs(kinds: Iterable[Any]) -> Iterator[Any]:
    for kind in kinds:
        for each in _plain(kind):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield each


def _follow(steps: str, document: Any, kinds: list[Any], strict: bool) -> tuple[Path, Any, list[Any]]:
    """What stands at msgspec's path, and the types that may; an ``[...]`` becomes the key of the culprit."""
    path: list[str | int] = []
    value = document
    for name, index in _STEP.findall(steps):
        inner = [part for kind in kinds for part in _inner(kind, name)]
        if index == "...":
            key = _culprit(value, inner, strict)
            if key is None:
                break
            path.append(key)
            value = value[key]
        elif index:
            path.append(int(index))
            fits = isinstance(value, list | tuple) and int(index) < len(value)
            value = value[int(index)] if fits else None
        else:
            path.append(name)
            value = value.get(name) if isinstance(value, dict) else None
        kinds = inner
    return tuple(path), value, kinds


def _inner(kind: Any, name: str) -> Iterator[Any]:
    """The types of what stands in a value of this type: in the field ``name``, else in any item."""
    for each in _plain(kind):
        if name:
            for struct in _structs([each]):
                yield from (field.type for field in msgspec.structs.fields(struct) if field.encode_name == name)
                if name == struct.__struct_config__.tag_field:
                    yield Literal[struct.__struct_config__.tag]
        elif (arguments := get_args(each)) and get_origin(each) is not Literal:
            yield from (arguments[1:2] if issubclass(get_origin(each), Mapping) else arguments[:1])


def _fits(value: Any, kinds: Sequence[Any], strict: bool) -> bool:
    try:
        msgspec.convert(value, Union[tuple(kinds)], strict=strict)  # noqa: UP007
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def _culprit(value: Any, kinds: Sequence[Any], strict: bool) -> str | int | None:
    """The first key or index whose value does not fit."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((key for key, each in items if kinds and not _fits(each, kinds, strict)), None)


def _wrong_key(value: Any, kinds: Sequence[Any], strict: bool) -> str | None:
    keys = [get_args(each)[0] for kind in kinds for each in _plain(kind) if get_origin(each) is dict]
    if isinstance(value, dict) and keys:
        return next((key for key in value if not _fits(key, keys, strict)), None)
    return None
