"""JMS applications of different versions on the embedded broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jms.conftest import MODES, PAIRS, VERSIONS, Jms, Place, check, check_answer

pytestmark = pytest.mark.broker

At = Callable[[str, str], Place]
Names = Callable[[str], str]
ALIKE = tuple((version, version) for version in VERSIONS)
SOON = 500
"""How much later than the sender says a message may expire, in milliseconds: as long as it takes to be sent."""


@pytest.mark.parametrize(("sender", "receiver"), PAIRS + ALIKE)
def test_every_kind_of_message_is_what_it_was(
    sender: str, receiver: str, jms: Jms, place: At, unique_name: Names
) -> None:
    queue = unique_name("kinds")
    jms.declare(place(receiver, queue))
    sent = jms.send(place(sender, queue))
    check(sent, jms.receive(place(receiver, queue), len(sent)), SOON)


@pytest.mark.parametrize(("asking", "answering"), PAIRS + ALIKE)
def test_an_answer_comes_to_the_queue_that_the_question_names(
    asking: str, answering: str, jms: Jms, place: At, unique_name: Names
) -> None:
    for reply in (None, unique_name("answers")):
        queue = unique_name("questions")
        check_answer(jms.request(place(asking, queue), place(answering, queue), reply))


@pytest.mark.parametrize(("sender", "receiver"), PAIRS)
def test_every_acknowledge_mode_leaves_nothing_behind(
    sender: str, receiver: str, jms: Jms, place: At, unique_name: Names
) -> None:
    for mode in MODES:
        queue = unique_name(mode)
        assert jms.acknowledge(place(receiver, queue), place(sender, queue), mode) is None, mode


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_may_see_duplicates_closes_with_more_than_a_window_behind_it(
    version: str, jms: Jms, place: At, unique_name: Names
) -> None:
    queue = unique_name("duplicates")
    assert jms.acknowledge(place(version, queue), place(version, queue), "dups-ok", 700) is None
