"""The SASL layer apart: mechanisms of a client against challenges, and what a server reads of a response.

CVE-2018-1298, CVE-2016-3094 and CVE-2016-4432 were here, and none needed a password.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from random import Random
from typing import Final

from gateway.amqp import operations as o
from gateway.amqp.sasl import MECHANISMS, SaslError, read_amqplain, read_plain, scram_keys, server_mechanism
from gateway.classic import methods as m
from gateway.classic.frames import method_frame
from gateway.classic.tables import TableCodec
from gateway.errors import FrameSyntaxError
from gateway.session import ClientConfig
from gateway.v010 import controls as k
from gateway.v010.frames import CONTROL, PROTOCOL_HEADER, write_segment
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.versions import client_session, server_session
from tests.fuzz.extremes import table, text
from tests.fuzz.oracle import Broken, Case
from tests.fuzz.states import LIMITS, NOW
from tests.pair import RANDOM, SERVER

STATES: Final = (*MECHANISMS, "plain response", "amqplain response", "scram responses")
NONCE: Final = base64.b64encode(RANDOM(18))
SERVER_FIRST: Final = b"r=" + NONCE + b"more,s=" + base64.b64encode(b"salt salt") + b",i=4096"
SERVER_FINAL: Final = b"v=" + base64.b64encode(b"\x00" * 32)
CLIENT_FIRST: Final = b"n,,n=guest,r=abc"
CLIENT_FINAL: Final = b"c=biws,r=abc" + NONCE + b",p=" + base64.b64encode(bytes(32))
KEYS: Final = scram_keys("secret", b"salt salt")
ROUNDS: Final = replace(
    SERVER, authenticate=lambda user, password: False, limits=LIMITS, scram=lambda user: KEYS, random_octets=RANDOM
)


def challenge(random: Random, state: str) -> bytes:
    """Something like what a server sends, or (in the states that are responses) a client."""
    if state == "plain response":
        return b"\x00".join(text(random) for _ in range(random.choice((1, 2, 3, 3, 3, 4))))
    if state == "amqplain response":
        return table(random)[4:] if random.random() < 0.7 else random.randbytes(random.randrange(40))
    said = (SERVER_FIRST, SERVER_FIRST, SERVER_FINAL, b"e=other-error", text(random))
    if state == "scram responses":
        said = (CLIENT_FIRST, CLIENT_FIRST, CLIENT_FINAL, b"", text(random))
    octets = bytearray(random.choice(said))
    for _ in range(random.choice((0, 1, 1, 2, 4)) if octets else 0):
        at = random.randrange(len(octets) + 1)
        octets[at : at + random.choice((0, 1, 1, 5))] = random.choice(
            (b"", b",", b"=", b"\xff", b"m=", b"i=0", b",i=99999999999999", b",s=", b"=" * 20, random.randbytes(3))
        )
    return bytes(octets)


def play(case: Case) -> str:
    """Play a case: each chunk is one challenge or response. Raises :class:`~tests.fuzz.oracle.Broken`."""
    if case.state == "plain response":
        return _read(read_plain(case.chunks[0]))
    if case.state == "amqplain response":
        try:
            entries = TableCodec(limits=LIMITS).read_entries(case.chunks[0])
        except FrameSyntaxError:
            return "no table"
        return _read(read_amqplain(entries))
    if case.state == "scram responses":
        return _to_a_server(case)
    mechanism = MECHANISMS[case.state]("user", "secret", RANDOM)
    mechanism.start()
    ended = "answered"
    for chunk in case.chunks:
        try:
            mechanism.challenge(chunk)
        except SaslError as error:
            if "secret" in str(error):
                raise Broken(f"the password is in {error}") from None
            ended = "refused"
            break
    if case.state.startswith("SCRAM"):
        try:
            mechanism.finish()
        except SaslError:
            pass
        else:
            raise Broken(f"{case.state} took a server that does not know the password")
    _in_a_session(case)
    return ended


def _read(login: tuple[str, str] | None) -> str:
    if login is None:
        return "no login"
    if not login[0] and not login[1]:
        raise Broken("an empty login")
    return "login"


def _in_a_session(case: Case) -> None:
    """The same challenges inside a session: it ends as not authenticated, or waits for the next."""
    config = ClientConfig(mechanisms=(case.state,), secure=True, random_octets=RANDOM, limits=LIMITS)
    session = client_session(case.version, config)
    if case.version is V0_10:
        start = PROTOCOL_HEADER + _control(k.ConnectionStart({}, (case.state,), ("en_US",)))
        frames = [_control(k.ConnectionSecure(chunk)) for chunk in case.chunks]
        tune = _control(k.ConnectionTune(0, 65535, 0, 0))
    else:
        major, minor = (8, 0) if case.version is V0_8 else (0, 9)
        start = method_frame(0, m.ConnectionStart(major, minor, {}, case.state.encode()).encode(TableCodec()))
        frames = [method_frame(0, m.ConnectionSecure(chunk).encode()) for chunk in case.chunks]
        tune = method_frame(0, m.ConnectionTune(0, 0, 0).encode())
    events = session.receive_data(start, NOW)
    for frame in (*frames, tune):
        events += session.receive_data(frame, NOW)
    closed = [event for event in events if isinstance(event, o.Closed)]
    if len(closed) > 1 or len(closed) != len(events):
        raise Broken(f"{events} before the connection was open")
    if case.state.startswith("SCRAM") and not closed:
        raise Broken("a session went on with a server that does not know the password")


def _to_a_server(case: Case) -> str:
    """Responses of a client that does not know the password: nobody is logged in, by the mechanism or a session."""
    mechanism = server_mechanism("SCRAM-SHA-256", ROUNDS)
    assert mechanism is not None
    ended = "answered"
    for chunk in case.chunks:
        try:
            if mechanism.respond(chunk) is None:
                ended = "over"
                break
        except SaslError:
            ended = "refused"
            break
    if mechanism.user is not None:
        raise Broken("somebody is logged in without the password")
    session = server_session(case.version, ROUNDS)
    first, *rest = case.chunks
    if case.version is V0_10:
        octets = PROTOCOL_HEADER + _control(k.ConnectionStartOk({}, "SCRAM-SHA-256", first, "en_US"))
        frames = [_control(k.ConnectionSecureOk(chunk)) for chunk in rest]
        frames += [_control(k.ConnectionTuneOk(1)), _control(k.ConnectionOpen("/"))]
    else:
        start_ok = m.ConnectionStartOk({}, "SCRAM-SHA-256", first)
        octets = case.version.header + method_frame(0, start_ok.encode(TableCodec()))
        frames = [method_frame(0, m.ConnectionSecureOk(chunk).encode()) for chunk in rest]
        frames += [method_frame(0, method.encode()) for method in (m.ConnectionTuneOk(0, 0, 0), m.ConnectionOpen("/"))]
    events = session.receive_data(octets, NOW)
    for frame in frames:
        events += session.receive_data(frame, NOW)
    if any(not isinstance(event, o.Closed) for event in events) or len(events) > 1:
        raise Broken(f"{events} of a client that does not know the password")
    return ended


def _control(control: k.Control) -> bytes:
    return b"".join(write_segment(control.encode(), CONTROL, CONTROL, 0, 65535))
