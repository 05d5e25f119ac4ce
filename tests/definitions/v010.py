"""What our 0-10 differs in from its definitions, each difference by name and with its reason.

:func:`differences` finds every difference there is, and :data:`REASONS` holds those that are meant. A difference that
has no reason, and a reason without its difference, are both faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from gateway.session import Role
from gateway.v010 import fields as f
from gateway.v010.codec import DECODERS, FIXED_WIDTHS
from gateway.v010.commands import COMMANDS, Command
from gateway.v010.controls import CONTROLS, Control
from gateway.v010.domains import CONSTANTS, DOMAINS
from gateway.v010.encoders import ENCODERS
from gateway.v010.structs import STRUCTS, UNCODED
from tests.definitions.v010_reader import ERRATA, FINAL, Definition, Field, Segment, Struct, Type


@dataclass(frozen=True)
class Spoken:
    """What of ours a definition is compared with."""

    structs: Mapping[str, type[f.Fields]]
    segments: int = 84
    """How many controls and commands the definition has."""


_CODED: Final = {kind.spelled: kind for kind in STRUCTS.values()}
SPOKEN: Final[Mapping[str, Spoken]] = {FINAL: Spoken({**_CODED, **UNCODED}), ERRATA: Spoken({**UNCODED, **_CODED})}
"""Definition -> ours. Where the two disagree whether a struct has a code, each has the class that it means."""

NEUTRAL: Final = {
    "boolean": "bool",
    "datetime": "timestamp",
    "str16": "string",
    "vbin32": "bytes",
    "map": "table",
    "list": "array",
    "array": "typed-array",
    "dec32": "decimal",
}
"""Type of the specification -> what :mod:`gateway.amqp.values` calls it, where that is another name."""
UNCODED_TYPES: Final = {"sequence-no": f.SequenceNo, "byte-ranges": f.ByteRanges, "sequence-set": f.SequenceSet}
"""Types that are in fields alone."""
SAMPLES: Final[Mapping[str, Any]] = {
    "sequence-no": 1,
    "byte-ranges": ((0, 9), (20, 29)),
    "sequence-set": ((0, 9), (20, 29)),
}

_OMITTED: Final = "peers leave it out; what is absent is not what is empty"
_EMPTY: Final = "absent means the same as empty, or as 0"
REASONS: Final[Mapping[str, str]] = {
    "message.delivery-properties.priority: required is optional": _OMITTED,
    "message.delivery-properties.delivery-mode: required is optional": _OMITTED,
    "queue.queue-query-result.queue: required is optional": "a queue that is not there has no name",
    "queue.queue-query-result.message-count: required is optional": "a queue that is not there has no messages",
    "queue.queue-query-result.subscriber-count: required is optional": "a queue that is not there has no subscribers",
    "exchange.declare.type: required is optional": "a passive declaration leaves it out",
    "exchange.bound.queue: required is optional": _OMITTED,
    "connection.close.reply-text: optional is required": _EMPTY,
    "session.confirmed.commands: optional is required": _EMPTY,
    "session.completed.commands: optional is required": _EMPTY,
    "session.known-completed.commands: optional is required": _EMPTY,
    "session.gap.commands: optional is required": _EMPTY,
    "message.transfer.destination: optional is required": _EMPTY,
    "message.resume.destination: optional is required": _EMPTY,
    "message.subscribe.destination: optional is required": _EMPTY,
    "message.set-flow-mode.destination: optional is required": _EMPTY,
    "message.flow.destination: optional is required": _EMPTY,
    "message.flow.value: optional is required": _EMPTY,
    "message.flush.destination: optional is required": _EMPTY,
    "message.stop.destination: optional is required": _EMPTY,
    "message.fragment-properties.first: default 1": "a bit that is absent is 0, whatever its default",
    "message.fragment-properties.last: default 1": "a bit that is absent is 0, whatever its default",
    f"{FINAL} connection.heartbeat: to  is client server": "the published definition forgets who understands it",
}
"""Difference -> why it is meant."""


def spelled(name: str) -> str:
    """A field of ours as the definitions write it. An underscore at its end keeps it apart from something of Python's
    or of ours."""
    return name.rstrip("_").replace("_", "-")


def differences(file: str, said: Definition) -> Iterator[str]:
    """Every difference, as a line."""
    yield from _unequal("constant ", said.constants, CONSTANTS)
    for name, kind in said.types.items():
        yield from _type(name, kind)
    codes = {kind.code for kind in said.types.values()}
    yield from (f"type 0x{code:02x}: ours alone" for code in sorted(DECODERS.keys() - codes))
    theirs = {name: (domain.type, dict(domain.choices)) for name, domain in said.domains.items()}
    yield from _unequal("domain ", theirs, {name: (kind.type, kind.choices) for name, kind in DOMAINS.items()})
    structs = SPOKEN[file].structs
    yield from _unequal("struct ", dict.fromkeys(said.structs), dict.fromkeys(structs))
    for name in said.structs.keys() & structs.keys():
        yield from _struct(said, name, said.structs[name], structs[name])
    segments: dict[str, type[Control | Command]] = {kind.spelled: kind for kind in CONTROLS.values()}
    segments |= {kind.spelled: kind for kind in COMMANDS.values()}
    yield from _unequal("", dict.fromkeys(said.segments), dict.fromkeys(segments))
    for name in said.segments.keys() & segments.keys():
        yield from _segment(file, said, name, said.segments[name], segments[name])


def _unequal(what: str, theirs: Mapping[str, object], mine: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(theirs.keys() | mine.keys()):
        if name not in mine:
            yield f"{what}{name}: theirs alone"
        elif name not in theirs:
            yield f"{what}{name}: ours alone"
        elif theirs[name] != mine[name]:
            yield f"{what}{name}: {theirs[name]} is {mine[name]}"


def _type(name: str, kind: Type) -> Iterator[str]:
    """Its code, and how many octets it has or its length has, both as it is written."""
    if kind.code is None:
        octets = get_args(UNCODED_TYPES[name])[1].write(SAMPLES[name])
    else:
        neutral = NEUTRAL.get(name, name)
        if kind.code not in DECODERS or neutral not in ENCODERS:
            yield f"type {name}: theirs alone"
            return
        if FIXED_WIDTHS.get(kind.code) != (kind.width if kind.fixed else None):
            yield f"type {name}: read with {FIXED_WIDTHS.get(kind.code)} octets"
        code, *rest = sample(neutral)
        octets = bytes(rest)
        if code != kind.code:
            yield f"type {name}: code 0x{kind.code:02x} is 0x{code:02x}"
    width = len(octets) if kind.fixed else len(octets) - int.from_bytes(octets[: kind.width], "big")
    if width != kind.width:
        yield f"type {name}: {kind.width} octets are {width}"


def sample(neutral: str) -> bytes:
    """Type code and octets of some value of a type."""
    from tests.v010.test_codec import value_of

    value = value_of(neutral)
    return ENCODERS[neutral](getattr(value, "value", value) if neutral != "decimal" else value, 8)


def _struct(said: Definition, name: str, theirs: Struct, mine: type[f.Fields]) -> Iterator[str]:
    if (theirs.code or 0) != mine.code:
        yield f"struct {name}: code {theirs.code} is {mine.code}"
    if (theirs.size, theirs.pack) != (mine.size, mine.pack):
        yield f"struct {name}: size {theirs.size} and pack {theirs.pack} are {mine.size} and {mine.pack}"
    yield from _fields(said, name, theirs.fields, mine)


_ROLES: Final = {
    "server": {Role.SERVER},
    "client": {Role.CLIENT},
    "sender": {Role.SERVER, Role.CLIENT},
    "receiver": {Role.SERVER, Role.CLIENT},
}


def _segment(file: str, said: Definition, name: str, theirs: Segment, mine: type[Control | Command]) -> Iterator[str]:
    kind = "command" if issubclass(mine, Command) else "control"
    if (theirs.kind, theirs.code) != (kind, mine.code):
        yield f"{name}: {theirs.kind} 0x{theirs.code:04x} is {kind} 0x{mine.code:04x}"
    to: set[Role] = set().union(*(_ROLES[role] for role in theirs.to))
    if to != mine.to:
        yield f"{file} {name}: to {' '.join(theirs.to)} is {' '.join(sorted(role.value for role in mine.to))}"
    if theirs.answers != mine.answers:
        yield f"{name}: answers {theirs.answers} are {mine.answers}"
    result = getattr(mine, "result", None)
    if theirs.result != (result.spelled if result else ""):
        yield f"{name}: result {theirs.result} is {result}"
    header = getattr(mine, "header", None)
    structs = None if header is None else tuple(STRUCTS[code].spelled for code in header)
    if (theirs.header, theirs.header_required) != (structs, getattr(mine, "header_required", False)):
        yield f"{name}: header {theirs.header} is {structs}"
    yield from _fields(said, name, theirs.fields, mine)


def _fields(said: Definition, where: str, theirs: tuple[Field, ...], mine: type[f.Fields]) -> Iterator[str]:
    """Names, types, domains, order and presence of fields, and the bit of each."""
    own = [spelled(name) for name, *_ in mine.layout]
    if [field.name for field in theirs] != own:
        yield f"{where}: fields {[field.name for field in theirs]} are {own}"
        return
    for index, (field, (name, mask, kind, absent)) in enumerate(zip(theirs, mine.layout, strict=True)):
        place = f"{where}.{field.name}"
        own_type = mine.domains.get(name) or (kind.name if kind else "bit")
        if own_type != (field.type if field.type not in said.structs else field.type.partition(".")[2]):
            yield f"{place}: type {field.type} is {own_type}"
        base = said.domains[field.type].type if field.type in said.domains else own_type
        if kind is not None and kind.name not in (base, own_type):
            yield f"{place}: {base} is a {kind.name}"
        if mine.pack and mask.to_bytes(mine.pack, "big") != (1 << index).to_bytes(mine.pack, "little"):
            yield f"{place}: presence bit {mask:x}"
        if field.default:
            yield f"{place}: default {field.default}"
        if kind is not None and field.required != (absent is not None):
            words = ("optional", "required")
            yield f"{place}: {words[field.required]} is {words[absent is not None]}"
