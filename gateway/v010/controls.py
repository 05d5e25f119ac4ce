"""The controls of AMQP 0-10: connection (class 1) and session (class 2), section 9 of the specification.

A control travels on the control track, is not counted and not confirmed. The classes below read like the
specification; :data:`CONTROLS` finds them by class and code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, TypeVar, dataclass_transform

from gateway.errors import FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.session import Role
from gateway.v010.domains import (
    AmqpHostArray,
    AmqpHostUrl,
    CloseCode,
    CommandFragments,
    Commands,
    DetachCode,
    SessionName,
)
from gateway.v010.fields import (
    CLIENT,
    EITHER,
    SERVER,
    Bit,
    Fields,
    Map,
    SequenceNo,
    Str8,
    Str16Array,
    Uint16,
    Uint32,
    Uint64,
    Vbin32,
    declare,
)


class Control(Fields):
    """Anything on the control track."""

    __slots__ = ()
    to: ClassVar[frozenset[Role]] = EITHER
    """The ends that have to understand it."""
    answers: ClassVar[tuple[str, ...]] = ()
    """The controls of which one answers it, as the specification spells them."""

    def encode(self) -> bytes:
        """The whole segment. Raises :class:`~gateway.errors.EncodeError`."""
        return self.code.to_bytes(2, "big") + self.encode_fields()


CONTROLS: Final[dict[int, type[Control]]] = {}
"""(class << 8 | control) -> declared class."""

_C = TypeVar("_C", bound=Control)


@dataclass_transform(frozen_default=True)
def control(
    code: int, name: str, *, to: frozenset[Role] = EITHER, answers: tuple[str, ...] = ()
) -> Callable[[type[_C]], type[_C]]:
    """Declare a control: its class and code in one number, its name in the specification, and what :class:`Control`
    says of it."""

    def make(cls: type[_C]) -> type[_C]:
        made = declare(cls, name, code)
        made.to = to
        made.answers = answers
        CONTROLS[code] = made
        return made

    return make


def decode_control(segment: bytes, limits: Limits = DEFAULT_LIMITS) -> Control:
    """The control in a segment. Raises :class:`~gateway.errors.FrameSyntaxError`."""
    kind = CONTROLS.get(segment[0] << 8 | segment[1]) if len(segment) >= 4 else None
    if kind is None:
        raise FrameSyntaxError(f"no control begins with {segment[:4].hex() or 'nothing'}")
    return kind.decode_fields(segment, 2, len(segment), limits)


# ---------------------------------------------------------------------------------------------- connection

NORMAL: Final = 200
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
FRAMING_ERROR: Final = 501
"""The close codes of connection.close."""


@control(0x0101, "connection.start", to=CLIENT, answers=("connection.start-ok",))
class ConnectionStart(Control):
    """Server to client: who the server is and how it authenticates."""

    server_properties: Map | None = None
    mechanisms: Str16Array = ()
    locales: Str16Array = ()


@control(0x0102, "connection.start-ok", to=SERVER)
class ConnectionStartOk(Control):
    """Client to server: the mechanism chosen and its first response."""

    client_properties: Map | None = None
    mechanism: Str8 = ""
    response: Vbin32 = b""
    locale: Str8 = ""


@control(0x0103, "connection.secure", to=CLIENT, answers=("connection.secure-ok",))
class ConnectionSecure(Control):
    """Server to client: a SASL challenge."""

    challenge: Vbin32 = b""


@control(0x0104, "connection.secure-ok", to=SERVER)
class ConnectionSecureOk(Control):
    """Client to server: the response to a challenge."""

    response: Vbin32 = b""


@control(0x0105, "connection.tune", to=CLIENT, answers=("connection.tune-ok",))
class ConnectionTune(Control):
    """Server to client: what it can do. An absent field is no limit."""

    channel_max: Uint16 | None = None
    max_frame_size: Uint16 | None = None
    heartbeat_min: Uint16 | None = None
    heartbeat_max: Uint16 | None = None


@control(0x0106, "connection.tune-ok", to=SERVER)
class ConnectionTuneOk(Control):
    """Client to server: what is used."""

    channel_max: Uint16 = 0
    max_frame_size: Uint16 | None = None
    heartbeat: Uint16 | None = None


@control(0x0107, "connection.open", to=SERVER, answers=("connection.open-ok", "connection.redirect"))
class ConnectionOpen(Control):
    """Client to server: the virtual host."""

    virtual_host: Str8 = ""
    capabilities: Str16Array | None = None
    insist: Bit = False


@control(0x0108, "connection.open-ok", to=CLIENT)
class ConnectionOpenOk(Control):
    """Server to client: go ahead."""

    known_hosts: AmqpHostArray | None = None


@control(0x0109, "connection.redirect", to=CLIENT)
class ConnectionRedirect(Control):
    """Server to client: go elsewhere."""

    host: AmqpHostUrl = ""
    known_hosts: AmqpHostArray | None = None


@control(0x010A, "connection.heartbeat")
class ConnectionHeartbeat(Control):
    """Either way: still there."""


@control(0x010B, "connection.close", answers=("connection.close-ok",))
class ConnectionClose(Control):
    """Either way: the connection ends, and why."""

    reply_code: CloseCode = NORMAL
    reply_text: Str8 = ""


@control(0x010C, "connection.close-ok")
class ConnectionCloseOk(Control):
    """The answer to connection.close, and the last that is sent."""


# ------------------------------------------------------------------------------------------------- session


DETACH_CODES: Final = {
    0: "normal",
    1: "session-busy",
    2: "transport-busy",
    3: "not-attached",
    4: "unknown-ids",
}
"""The codes of session.detached."""


@control(0x0201, "session.attach", answers=("session.attached", "session.detached"))
class SessionAttach(Control):
    """Attach a session of this name to the channel of the frame."""

    name: SessionName = b""
    force: Bit = False


@control(0x0202, "session.attached")
class SessionAttached(Control):
    """It is attached."""

    name: SessionName = b""


@control(0x0203, "session.detach", answers=("session.detached",))
class SessionDetach(Control):
    """Detach it from its channel."""

    name: SessionName = b""


@control(0x0204, "session.detached")
class SessionDetached(Control):
    """It is detached, or was never attached."""

    name: SessionName = b""
    code_: DetachCode = 0


@control(0x0205, "session.request-timeout", answers=("session.timeout",))
class SessionRequestTimeout(Control):
    """How long the session is to outlive its attachment, in seconds; absent: for ever."""

    timeout: Uint32 | None = None


@control(0x0206, "session.timeout")
class SessionTimeout(Control):
    """How long it will."""

    timeout: Uint32 | None = None


@control(0x0207, "session.command-point")
class SessionCommandPoint(Control):
    """The id of the next command that is sent."""

    command_id: SequenceNo = 0
    command_offset: Uint64 = 0


@control(0x0208, "session.expected")
class SessionExpected(Control):
    """Which commands the receiver waits for."""

    commands: Commands = ()
    fragments: CommandFragments | None = None


@control(0x0209, "session.confirmed")
class SessionConfirmed(Control):
    """Which commands are stored: the sender need not replay them."""

    commands: Commands = ()
    fragments: CommandFragments | None = None


@control(0x020A, "session.completed")
class SessionCompleted(Control):
    """Which commands were carried out, as far as the sender does not know that its peer knows."""

    commands: Commands = ()
    timely_reply: Bit = False


@control(0x020B, "session.known-completed")
class SessionKnownCompleted(Control):
    """Which completions arrived and need not be repeated."""

    commands: Commands = ()


@control(0x020C, "session.flush")
class SessionFlush(Control):
    """Asks for session.expected, confirmed or completed at once."""

    expected: Bit = False
    confirmed: Bit = False
    completed: Bit = False


@control(0x020D, "session.gap")
class SessionGap(Control):
    """Which commands will never be sent."""

    commands: Commands = ()
