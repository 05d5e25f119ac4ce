"""The constants of the draft, beside what the code goes by."""

from __future__ import annotations

from gateway.classic.frames import FRAME_END, REPLY_CODES
from gateway.v010_draft import constants
from gateway.v010_draft.attached import METHODS, REQUEST, RESPONSE
from gateway.v010_draft.connection import FRAME_TYPES
from gateway.v010_draft.tables import DECODERS


def test_frames_replies_and_types_are_those_that_the_sessions_go_by() -> None:
    frames = {constant.name: constant.value for constant in constants.FRAMES}
    assert (frames["frame-request"], frames["frame-response"], frames["frame-end"]) == (REQUEST, RESPONSE, FRAME_END)
    named = {frames[f"frame-{name}"] for name in ("method", "heartbeat", "request", "response")}
    assert named == FRAME_TYPES
    replies = {constant.value: constant.name.replace("-", "_").upper() for constant in constants.REPLIES}
    assert {code for code, name in replies.items() if REPLY_CODES.get(code) != name} == {542}
    assert set(constants.TABLE_TYPES.values()) == set(DECODERS)


def test_properties_are_those_of_the_classes_with_content() -> None:
    with_content = {method.title.partition(".")[0] for method in METHODS.values() if method.content}
    assert with_content == constants.PROPERTIES.keys()
