"""What the classic dialects differ in from the definitions they come from, each difference by name and with its reason.

:data:`SPOKEN` says which dialect of ours speaks a definition, :func:`differences` finds every difference there is, and
:data:`REASONS` holds those that are meant. A difference that is not there, and a reason without its difference, are
both faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.classic import constants, properties
from gateway.classic.dialect import Dialect
from gateway.classic.methods import Method
from gateway.v08 import dialect as v08
from gateway.v08.unserved import UNSERVED
from gateway.v09 import dialect as v09
from gateway.v09.unserved import UNSERVED as UNSERVED_09
from gateway.v091 import dialect as v091
from gateway.wire.types import BitType, FieldType, Integer, LongString, ShortString, TableType
from tests.definitions import definitions
from tests.definitions.definitions import Definition


@dataclass(frozen=True)
class Spoken:
    """What of ours a definition is compared with."""

    dialect: Dialect
    constants: tuple[constants.Constant, ...]
    properties: Mapping[int, tuple[tuple[str, FieldType], ...]]
    """By class."""
    methods: int
    """How many the definition has, and classes."""
    classes: int


_BASIC: Final = {60: tuple(properties.TYPES.items())}
_ALL: Final = {**_BASIC, **UNSERVED.properties}
_ALL_09: Final = {**_BASIC, **UNSERVED_09.properties}

OF_0_9: Final = (
    *constants.FRAMES,
    *constants.FRAMES_OF_0_8,
    *constants.REPLIES,
    *constants.REPLIES_OF_0_8,
    *constants.REPLIES_OF_RABBITMQ,
    constants.Constant("no-consumers", 313, constants.Error.SOFT),
    constants.Constant("precondition-failed", 406, constants.Error.SOFT),
)
"""Those of 0-8, and three that 0-9-1 kept."""

SPOKEN: Final[Mapping[str, Spoken]] = {
    "amqp0-8.xml": Spoken(v08.PUBLISHED, constants.OF_0_8, _ALL, 89, 12),
    "amqp0-8.qpid.stripped.xml": Spoken(v08.QPID, constants.OF_0_8, _ALL, 92, 12),
    "amqp0-9.stripped.xml": Spoken(v09.PUBLISHED, OF_0_9, _ALL_09, 101, 12),
    "amqp0-9-qpid.stripped.xml": Spoken(v09.QPID, OF_0_9, _ALL_09, 105, 12),
    "amqp0-9-1.extended.xml": Spoken(v091.RABBITMQ, constants.OF_0_9_1, _BASIC, 64, 7),
    "amqp0-9-1.fixed.xml": Spoken(v091.RABBITMQ, constants.OF_0_9_1, _BASIC, 60, 7),
    "amqp0-9-1.qpid.stripped.xml": Spoken(v091.QPID, constants.OF_0_9_1, _BASIC, 55, 6),
}
"""Definition -> ours."""


def name_of(kind: FieldType) -> str:
    """What the definitions call a type of ours."""
    if isinstance(kind, Integer):
        return {"B": "octet", "H": "short", "I": "long", "Q": "longlong"}[kind.code]
    names = {BitType: "bit", ShortString: "shortstr", LongString: "longstr", TableType: "table"}
    return names[type(kind)]


SAME: Final = {"timestamp": "longlong", "content": "longstr"}
"""Types of the definitions that are another one on the wire. A timestamp counts seconds, in 64 bits. The content of
0-9's message.transfer has an octet before it, which says what it is; that method is not served."""


def spelled(name: str) -> str:
    """A field of ours as the definitions write it. An underscore at its end keeps it apart from something of Python's
    or of ours."""
    return name.rstrip("_").replace("_", "-")


def differences(said: Definition, ours: Spoken) -> Iterator[str]:
    """Every difference, as a line."""
    yield from _constants(said, ours)
    yield from _classes(said, ours)
    theirs = {(_class_of(said, method), method.index): method for method in said.methods}
    mine = {(method.class_id, method.method_id): method for method in ours.dialect.methods.values()}
    for key in sorted(theirs.keys() | mine.keys()):
        if key not in mine:
            yield f"{theirs[key].name}: theirs alone"
        elif key not in theirs:
            yield f"{mine[key].title} {key[0]}.{key[1]}: ours alone"
        else:
            yield from _method(said, theirs[key], mine[key], ours.dialect)


def _class_of(said: Definition, method: definitions.Method) -> int:
    name = method.name.partition(".")[0]
    return next(above.index for above in said.classes if above.name == name)


def _constants(said: Definition, ours: Spoken) -> Iterator[str]:
    theirs = {constant.name: (constant.value, constant.error) for constant in said.constants}
    mine = {name: (value, error.value if error else "") for name, value, error in ours.constants}
    yield from _unequal("constant ", theirs, mine)


def _classes(said: Definition, ours: Spoken) -> Iterator[str]:
    mine = {method.title.partition(".")[0]: method.class_id for method in ours.dialect.methods.values()}
    yield from _unequal("class ", {above.name: above.index for above in said.classes}, mine)
    for above in said.classes:
        fields = [(field.name, said.type_of(field)) for field in above.properties]
        layout = [(spelled(name), name_of(kind)) for name, kind in ours.properties.get(above.index, ())]
        yield from _fields(f"class {above.name}", fields, layout)


def _unequal(what: str, theirs: Mapping[str, object], mine: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(theirs.keys() | mine.keys()):
        if name not in mine:
            yield f"{what}{name}: theirs alone"
        elif name not in theirs:
            yield f"{what}{name}: ours alone"
        elif theirs[name] != mine[name]:
            yield f"{what}{name}: {theirs[name]} is {mine[name]}"


def _method(said: Definition, theirs: definitions.Method, mine: type[Method], dialect: Dialect) -> Iterator[str]:
    name = theirs.name
    if name != mine.title:
        yield f"{name}: is {mine.title}"
    if theirs.content != mine.content:
        yield f"{name}: content {theirs.content} is {mine.content}"
    spoken = set(dialect.methods.values())
    above = name.partition(".")[0]
    expected = [f"{above}.{reply}" for reply in theirs.replies]
    replies = [reply.title for reply in mine.replies if reply in spoken]
    if expected != replies:
        yield f"{name}: replies {expected} are {replies}"
    synchronous = bool(replies) or any(mine in asked.replies for asked in spoken)
    if theirs.synchronous != synchronous:
        yield f"{name}: synchronous {theirs.synchronous} is {synchronous}"
    fields = [(field.name, said.type_of(field)) for field in theirs.fields]
    yield from _fields(name, fields, [(spelled(field), name_of(kind)) for field, kind in mine.layout])


def _fields(where: str, theirs: list[tuple[str, str]], mine: list[tuple[str, str]]) -> Iterator[str]:
    """Names, types and order of fields."""
    if len(theirs) != len(mine):
        yield f"{where}: {len(theirs)} fields are {len(mine)}"
        return
    for (name, type_), (own, own_type) in zip(theirs, mine, strict=True):
        if name != own:
            yield f"{where}: field {name} is {own}"
        if SAME.get(type_, type_) != own_type:
            yield f"{where}: field {name} of type {type_} is of type {own_type}"


# -------------------------------------------------------------------------------------------------- reasons


def _ours(*methods: str) -> tuple[str, ...]:
    return tuple(f"{method}: ours alone" for method in methods)


def _renamed(theirs: str, ours: str, *where: str) -> tuple[str, ...]:
    return tuple(f"{method}: field {theirs} is {ours}" for method in where)


_CONFIRM: Final = ("class confirm: ours alone", *_ours("confirm.select 85.10", "confirm.select-ok 85.11"))
_BOUND: Final = _ours("exchange.bound 40.22", "exchange.bound-ok 40.23")
_BINDINGS: Final = _ours(
    "exchange.bind 40.30", "exchange.bind-ok 40.31", "exchange.unbind 40.40", "exchange.unbind-ok 40.51"
)
_LATER: Final = _ours(
    "connection.blocked 10.60", "connection.unblocked 10.61", "connection.update-secret 10.70",
    "connection.update-secret-ok 10.71",
)  # fmt: skip

_FLOW_OK: Final = {
    "an answer that comes when it comes: the definitions do not mark it as synchronous": (
        "channel.flow-ok: synchronous False is True",
    ),
}
_STAGE: Final = {
    "the definition names it as the answer to file.open-ok, and does not mark it as one": (
        "file.stage: synchronous False is True",
    ),
}
_RECOVER_OK: Final = {
    "the definitions have recover-ok and say in words alone what it answers": (
        "basic.recover: replies [] are ['basic.recover-ok']",
        "basic.recover: synchronous False is True",
    ),
}
_RECOVER_08: Final = {
    "one class for 60.100, by the name that 0-9-1 gave it": ("basic.recover: is basic.recover-async",),
}
_ADDED_08: Final = {
    "RabbitMQ and Broker-J know it in 0-8 too, and other brokers are only asked where they offer it": (
        *_CONFIRM,
        *_ours(
            "queue.unbind 50.50", "queue.unbind-ok 50.51", "basic.recover 60.110", "basic.recover-ok 60.111",
            "basic.nack 60.120",
        ),
    ),
}  # fmt: skip
_RESERVED: Final = {
    "0-9-1 reserves what 0-8 has a name for; one class serves both, by 0-8's name": (
        *_renamed("reserved", "cluster-id", "class basic"),
        *_renamed("reserved-1", "capabilities", "connection.open"),
        *_renamed("reserved-2", "insist", "connection.open"),
        *_renamed("reserved-1", "known-hosts", "connection.open-ok"),
        *_renamed("reserved-1", "out-of-band", "channel.open"),
        *_renamed("reserved-1", "channel-id", "channel.open-ok"),
        *_renamed(
            "reserved-1", "ticket", "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind",
            "queue.declare", "queue.bind", "queue.purge", "queue.delete", "queue.unbind", "basic.consume",
            "basic.publish", "basic.get",
        ),
        *_renamed("reserved-1", "cluster-id", "basic.get-empty"),
    ),
}  # fmt: skip
_NO_WAIT: Final = (
    "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind", "queue.declare", "queue.bind",
    "queue.purge", "queue.delete", "basic.consume", "basic.cancel",
)  # fmt: skip
_SPELLED: Final = "one class serves both versions, and 0-8 writes nowait"
_QPID: Final = {"Qpid's, which RabbitMQ's dialect reads as well": _BOUND}

_ANSWERS_09: Final = {
    "answers that come when they come: the definitions do not mark such methods as synchronous": tuple(
        f"{method}: synchronous False is True"
        for method in (
            "channel.resume", "channel.ping", "channel.pong", "channel.ok", "message.transfer", "message.consume",
            "message.cancel", "message.get", "message.recover", "message.open", "message.close", "message.append",
            "message.checkpoint", "message.resume", "message.qos", "message.ok", "message.empty", "message.reject",
            "message.offset",
        )
    ),
}  # fmt: skip
_ADDED_09: Final = {
    "RabbitMQ and Broker-J know it in 0-9 too, and other brokers are only asked where they offer it": (
        *_CONFIRM,
        *_ours("basic.recover 60.110", "basic.recover-ok 60.111", "basic.nack 60.120"),
    ),
}
REASONS: Final[Mapping[str, Mapping[str, Iterable[str]]]] = {
    "amqp0-8.xml": {
        **_FLOW_OK,
        **_STAGE,
        **_RECOVER_08,
        **_ADDED_08,
        "Qpid's, which brokers of another kind are not asked for": _BOUND,
    },
    "amqp0-8.qpid.stripped.xml": {
        **_FLOW_OK,
        **_STAGE,
        **_RECOVER_08,
        **_ADDED_08,
        "the definition has the answer and does not name it as one": (
            "exchange.bound: replies [] are ['exchange.bound-ok']",
        ),
        "the definition names the answer, and does not mark the method as synchronous": (
            "basic.recover: synchronous False is True",
        ),
    },
    "amqp0-9.stripped.xml": {
        **_FLOW_OK,
        **_STAGE,
        **_RECOVER_08,
        **_ANSWERS_09,
        **_ADDED_09,
        "Qpid's, which brokers of another kind are not asked for": _BOUND,
        "one class serves this version and those that call it arguments": _renamed(
            "filter", "arguments", "basic.consume"
        ),
    },
    "amqp0-9-qpid.stripped.xml": {
        **_FLOW_OK,
        **_STAGE,
        **_RECOVER_08,
        **_ANSWERS_09,
        **_ADDED_09,
        "the definition names the answer, and does not mark the method as synchronous": (
            "basic.recover-sync: synchronous False is True",
        ),
    },
    "amqp0-9-1.extended.xml": {
        **_FLOW_OK,
        **_RECOVER_OK,
        **_RESERVED,
        **_QPID,
        _SPELLED: _renamed("no-wait", "nowait", *_NO_WAIT, "confirm.select"),
    },
    "amqp0-9-1.fixed.xml": {
        **_FLOW_OK,
        **_RECOVER_OK,
        **_RESERVED,
        **_QPID,
        _SPELLED: _renamed("no-wait", "nowait", *_NO_WAIT),
        "RabbitMQ's extensions, of which this definition has only the older ones": (
            *_LATER,
            "constant no-route: ours alone",
        ),
    },
    "amqp0-9-1.qpid.stripped.xml": {
        **_FLOW_OK,
        "one class for each of the two recovers, by the names that 0-9-1 gave them": (
            "basic.recover: is basic.recover-async",
            "basic.recover-sync: is basic.recover",
            "basic.recover-sync-ok: is basic.recover-ok",
        ),
        "the definition has recover-sync-ok and does not name it as an answer": (
            "basic.recover-sync: replies [] are ['basic.recover-ok']",
            "basic.recover-sync: synchronous False is True",
        ),
        "0-9-1 reserves the property that 0-8 has a name for": _renamed("reserved", "cluster-id", "class basic"),
        "RabbitMQ's extensions that Broker-J speaks too": (
            *_CONFIRM,
            *_ours("basic.nack 60.120"),
            "constant no-route: ours alone",
        ),
        "RabbitMQ's extensions, for clients of our own server that say they are Qpid's": (*_BINDINGS, *_LATER),
    },
}
"""Definition -> reason -> the differences that it explains."""
