"""Which case is number N of a run, and what plays it.

Case N of seed S is made from ``Random("S/N")`` alone, so it can be made again anywhere. Most cases go to a bare
session, the cheapest target; the others put the embedded broker, the SASL layer and a whole upstream around one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from gateway.session import Role
from gateway.versions import VERSIONS
from tests.fuzz import broker, draft, oracle, sasl, states, upstream
from tests.fuzz.generators import GENERATORS
from tests.fuzz.oracle import Case, Verdict, timed

ROLES: Final = tuple(Role)
NAMES: Final = tuple(GENERATORS)
SHARES: Final = (("upstream", 0.002), ("sasl", 0.038), ("broker", 0.06), ("draft", 0.06), ("session", 0.84))
"""How often each target is chosen."""
WEIGHED: Final = 400
"""The memory of every so manieth case is measured."""


def made(seed: str, number: int) -> tuple[str, Case]:
    """The generator and the case of a number."""
    random = Random(f"{seed}/{number}")
    chance, target = random.random(), ""
    for target, share in SHARES:  # noqa: B007  # the one at which chance is used up
        chance -= share
        if chance < 0:
            break
    version, generator = random.choice(VERSIONS), random.choice(NAMES)
    if target == "sasl":
        state = random.choice(sasl.STATES)
        octets = tuple(sasl.challenge(random, state) for _ in range(random.choice((1, 2, 3))))
        return "sasl", Case(target, version, Role.CLIENT, state, octets)
    if target == "draft":
        role = random.choice(ROLES)
        return "draft", draft.case_of(role, tuple(chunks(random, draft.octets(random, role))))
    role = {"broker": Role.SERVER, "upstream": Role.CLIENT}.get(target) or random.choice(ROLES)
    state = {
        "broker": lambda: random.choice(tuple(broker.STATES)),
        "upstream": lambda: "consuming",
        "session": lambda: random.choice(tuple(states.STATES)),
    }[target]()
    octets = GENERATORS[generator](random, version, role, state)
    return generator, Case(target, version, role, state, tuple(chunks(random, octets)))


def chunks(random: Random, octets: bytes) -> list[bytes]:
    """Whole, in two pieces, or octet by octet."""
    how = random.random()
    if how < 0.6:
        return [octets]
    if how < 0.9 or len(octets) > 400:
        at = random.randrange(len(octets) + 1)
        return [octets[:at], octets[at:]]
    return [octets[at : at + 1] for at in range(len(octets))]


def play(case: Case, weigh: bool = False) -> Verdict:
    """Play a case against its target. Raises :class:`~tests.fuzz.oracle.Broken`."""
    if case.target == "session":
        return oracle.weighed(case) if weigh else oracle.run(case)
    return timed(case, lambda: PLAYERS[case.target](case))


PLAYERS: Final[Mapping[str, Callable[[Case], str]]] = {
    "broker": broker.play,
    "draft": draft.play,
    "sasl": sasl.play,
    "upstream": upstream.play,
}
