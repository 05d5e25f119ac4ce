"""JMS message selectors."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

from gateway.amqp.message import Properties
from gateway.amqp.selectors import DEPTH_MAX, LENGTH_MAX, Selector, SelectorError
from gateway.amqp.values import Typed
from tests.pace import pace

MESSAGE = Properties(
    headers={
        "n": 5,
        "f": 2.5,
        "s": "it's",
        "yes": True,
        "no": False,
        "wide": Typed("int64", 7),
        "exact": Decimal("1.5"),
        "list": [1],
        "JMSXGroupID": "g",
        "with space": 1,
    },
    delivery_mode=2,
    priority=7,
    message_id="ID:1",
    timestamp=1_700_000_000,
    correlation_id=b"c-1",
    type="order",
    user_id="guest",
)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("n = 5", True),
        ("n <> 5", False),
        ("n = 5.0", True),
        ("n > 4 AND n < 6", True),
        ("n >= 5 and n <= 5", True),
        ("n > 5 OR f < 3", True),
        ("NOT n = 5", False),
        ("not (n = 6)", True),
        ("n = 6 OR n = 5 AND f = 2.5", True),
        ("(n = 6 OR n = 5) AND f = 9", False),
        ("s = 'it''s'", True),
        ("s <> 'other'", True),
        ("s > 'a'", False),
        ("yes", True),
        ("no", False),
        ("yes = TRUE", True),
        ("no <> true", True),
        ("TRUE", True),
        ("FALSE OR yes", True),
        ("n", False),
        ("absent", False),
        ("absent IS NULL", True),
        ("absent IS NOT NULL", False),
        ("n IS NOT NULL", True),
        ("absent = 5", False),
        ("NOT absent = 5", False),
        ("absent = 5 OR n = 5", True),
        ("absent = 5 AND n = 5", False),
        ("list IS NULL", True),
        ("n BETWEEN 4 AND 6", True),
        ("n NOT BETWEEN 4 AND 6", False),
        ("absent BETWEEN 4 AND 6", False),
        ("s IN ('a', 'it''s')", True),
        ("s NOT IN ('a', 'b')", True),
        ("absent NOT IN ('a')", False),
        ("s LIKE 'it%'", True),
        ("s LIKE '%''_'", True),
        ("s LIKE '_t'", False),
        ("s NOT LIKE 'x%'", True),
        ("s LIKE 'it!''s' ESCAPE '!'", True),
        ("s LIKE '%i%t%s%'", True),
        ("s LIKE '%s%i%'", False),
        ("s LIKE '%s'", True),
        ("s LIKE 'x%s'", False),
        ("absent LIKE '%'", False),
        ("n LIKE '5'", False),
        ("n + 2 * 3 = 11", True),
        ("(n + 2) * 3 = 21", True),
        ("n - 1 - 1 = 3", True),
        ("n / 2 = 2", True),
        ("-n / 2 = -2", True),
        ("-n = -5", True),
        ("+n = 5", True),
        ("f / 2 = 1.25", True),
        ("n / 0 = 1", False),
        ("s + 1 = 2", False),
        ("-s = 1", False),
        ("exact * 2 = 3", True),
        ("wide = 7L", True),
        ("n = 0x5", True),
        ("f = 25e-1", True),
        ("f = .25E1d", True),
        ("yes = 1", False),
        ("n = '5'", False),
        ('"with space" = 1', True),
        ("JMSPriority = 7", True),
        ("JMSDeliveryMode = 'PERSISTENT'", True),
        ("JMSMessageID = 'ID:1'", True),
        ("JMSTimestamp = 1700000000000", True),
        ("JMSCorrelationID = 'c-1'", True),
        ("JMSType = 'order'", True),
        ("JMSXUserID = 'guest'", True),
        ("JMSXGroupID = 'g'", True),
        ("NOT yes OR NOT no", True),
        ("NOT n", False),
    ],
)
def test_evaluation(text: str, result: bool) -> None:
    assert Selector(text).matches(MESSAGE) is result


def test_absent_properties() -> None:
    empty = Properties()
    assert Selector("JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT'").matches(empty)
    assert Selector("JMSTimestamp IS NULL AND JMSCorrelationID IS NULL AND n IS NULL").matches(empty)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n =",
        "= 5",
        "n = 5 5",
        "(n = 5",
        "n = 5)",
        "n BETWEEN 1",
        "n BETWEEN 1 OR 2",
        "s LIKE 5",
        "s LIKE 'a' ESCAPE 'ab'",
        "s LIKE 'a!' ESCAPE '!'",
        "s IN ()",
        "s IN ('a'",
        "s IN (1)",
        "n IS 5",
        "n NOT 5",
        "s = 'open",
        "n = #",
        "AND",
        "n = 5 AND",
    ],
)
def test_no_selector(text: str) -> None:
    with pytest.raises(SelectorError, match="selector"):
        Selector(text)


def test_limits() -> None:
    with pytest.raises(SelectorError, match="longer"):
        Selector("n = " + "5" * LENGTH_MAX)
    for deep in ("(" * (DEPTH_MAX + 1) + "n", "NOT " * (DEPTH_MAX + 1) + "n", "-" * (DEPTH_MAX + 1) + "n"):
        with pytest.raises(SelectorError, match="nested"):
            Selector(deep)
    assert Selector("(" * 50 + "yes" + ")" * 50).matches(MESSAGE)


def test_long_runs_cost_no_depth() -> None:
    assert Selector(" AND ".join(["yes"] * 500)).matches(MESSAGE)
    assert Selector(" OR ".join(["no"] * 499 + ["yes"])).matches(MESSAGE)
    assert Selector("+".join(["n"] * 1_000) + " = 5000").matches(MESSAGE)


def test_hostile_patterns_stay_cheap() -> None:
    selector = Selector("s LIKE '" + "%a" * 500 + "%b'")
    started = time.process_time()
    assert not selector.matches(Properties(headers={"s": "a" * 5_000}))
    assert time.process_time() - started < pace()


def test_overflow_is_unknown() -> None:
    assert not Selector("1e308 * 1e308 * n < 5").matches(MESSAGE)
    assert not Selector("9" * 400 + " * 1.5 > 5").matches(MESSAGE)


def test_equality() -> None:
    assert Selector("n = 5") == Selector("n = 5")
    assert Selector("n = 5") != Selector("n = 6")
    assert hash(Selector("n = 5")) == hash(Selector("n = 5"))
