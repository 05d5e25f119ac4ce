"""JMS message selectors (JMS 1.1 section 3.8.1): the ``WHERE`` clause of Qpid's JMS client.

A selector is compiled once, by a recursive descent over its tokens, into closures that take a message's
properties and answer True, False or None (SQL's *unknown*). A message is selected by True alone. Identifiers are
headers, but for the ``JMS…`` ones, which are mapped onto AMQP properties as Qpid's client maps them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from gateway.amqp.like import Like, Meter
from gateway.amqp.message import Properties, ReplyTo
from gateway.amqp.steps import Steps
from gateway.amqp.values import Typed

LENGTH_MAX = 4_096
"""Longest selector, in characters."""
DEPTH_MAX = 64
"""Deepest nesting of brackets, NOT and signs."""


class SelectorError(ValueError):
    """The text is no selector."""


Evaluate = Callable[[Properties], Any]


class Selector:
    """A compiled selector. Raises :class:`SelectorError` if ``text`` is malformed."""

    __slots__ = ("_cost", "_evaluate", "_meter", "text")

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise SelectorError(f"a selector of {len(text)} characters is longer than {LENGTH_MAX}")
        self.text = text
        self._meter = Meter()
        parser = _Parser(text, self._meter)
        self._evaluate = parser.parse()
        self._cost = 3 * parser.length
        """Steps of an evaluation, beside those of its LIKEs."""

    def matches(self, properties: Properties, steps: Steps | None = None) -> bool:
        """Whether a message with these properties is selected. ``steps``: what finding out may cost; raises
        :class:`~gateway.amqp.steps.TooManySteps`."""
        if steps is None:
            return self._evaluate(properties) is True
        steps.spend(self._cost)
        self._meter.steps = steps
        try:
            return self._evaluate(properties) is True
        finally:
            self._meter.steps = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


# ---------------------------------------------------------------------------------------------- identifiers


def _text(value: str | bytes | ReplyTo | None) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _delivery_mode(properties: Properties) -> str:
    return "PERSISTENT" if properties.delivery_mode == 2 else "NON_PERSISTENT"


def _milliseconds(properties: Properties) -> int | None:
    return None if properties.timestamp is None else properties.timestamp * 1_000


_JMS: Mapping[str, Evaluate] = {
    "JMSDeliveryMode": _delivery_mode,
    "JMSPriority": lambda properties: 4 if properties.priority is None else properties.priority,
    "JMSMessageID": lambda properties: properties.message_id,
    "JMSTimestamp": _milliseconds,
    "JMSCorrelationID": lambda properties: _text(properties.correlation_id),
    "JMSType": lambda properties: properties.type,
    "JMSXUserID": lambda properties: _text(properties.user_id),
}


def _header(name: str) -> Evaluate:
    def evaluate(properties: Properties) -> Any:
        headers = properties.headers
        value = headers.get(name) if headers else None
        if type(value) is Typed:
            value = value.value
        return value if isinstance(value, (bool, int, float, str, Decimal)) else None

    return evaluate


# --------------------------------------------------------------------------------------------------- tokens

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^']|'')*')
    | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)[dDfF]?
    | (?P<integer>0[xX][0-9a-fA-F]+|[0-9]+)[lL]?
    | (?P<name>[^\W\d][\w$]*(?:\.[\w$]+)*|\$[\w$]*)
    | (?P<quoted>"[^"]+")
    | (?P<sign><>|<=|>=|[-+*/=<>(),])
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE"})


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise SelectorError(f"selector: cannot read {text[position : position + 20]!r}")
        kind = str(match.lastgroup)
        value = match.group(kind)
        if kind == "name" and value.upper() in _KEYWORDS:
            kind, value = "keyword", value.upper()
        tokens.append((kind, value))
        position = match.end()
    tokens.append(("end", ""))
    return tokens


# --------------------------------------------------------------------------------------------------- values


def _numeric(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _same_kind(left: Any, right: Any) -> bool:
    return (_numeric(left) and _numeric(right)) or (type(left) is type(right))


def _compare(compare: Callable[[Any, Any], bool], ordered: bool) -> Callable[[Any, Any], bool | None]:
    def evaluate(left: Any, right: Any) -> bool | None:
        if left is None or right is None:
            return None
        if not _same_kind(left, right):
            return False
        if ordered and not _numeric(left):
            return False
        return compare(left, right)

    return evaluate


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool | None]] = {
    "=": _compare(lambda left, right: left == right, False),
    "<>": _compare(lambda left, right: left != right, False),
    "<": _compare(lambda left, right: left < right, True),
    "<=": _compare(lambda left, right: left <= right, True),
    ">": _compare(lambda left, right: left > right, True),
    ">=": _compare(lambda left, right: left >= right, True),
}


def _arithmetic(operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def evaluate(left: Any, right: Any) -> Any:
        if not _numeric(left) or not _numeric(right):
            return None
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            left, right = float(left), float(right)
        try:
            return operator(left, right)
        except (ZeroDivisionError, OverflowError):
            return None

    return evaluate


def _divide(left: Any, right: Any) -> Any:
    """Java's division: whole numbers are cut towards zero."""
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": _arithmetic(lambda left, right: left + right),
    "-": _arithmetic(lambda left, right: left - right),
    "*": _arithmetic(lambda left, right: left * right),
    "/": _arithmetic(_divide),
}


def _not(value: Any) -> bool | None:
    return (not value) if isinstance(value, bool) else None


# --------------------------------------------------------------------------------------------------- parser


class _Parser:
    """OR < AND < NOT < comparison < sum < product < sign < primary."""

    __slots__ = ("_depth", "_meter", "_position", "_tokens", "length")

    def __init__(self, text: str, meter: Meter) -> None:
        self._meter = meter
        self._tokens = _tokens(text)
        self.length = len(self._tokens)
        """In tokens."""
        self._position = 0
        self._depth = 0

    def parse(self) -> Evaluate:
        result = self._or()
        if self._tokens[self._position][0] != "end":
            raise self._unexpected()
        return result

    def _unexpected(self) -> SelectorError:
        kind, value = self._tokens[self._position]
        return SelectorError(f"selector: unexpected {'end' if kind == 'end' else repr(value)}")

    def _take(self, kind: str, *values: str) -> str | None:
        """The next token's text if it is of that kind and one of these, and go on; else None."""
        found, value = self._tokens[self._position]
        if found != kind or (values and value not in values):
            return None
        self._position += 1
        return value

    def _expect(self, kind: str, *values: str) -> str:
        value = self._take(kind, *values)
        if value is None:
            raise self._unexpected()
        return value

    def _deeper(self, parse: Callable[[], Evaluate]) -> Evaluate:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SelectorError(f"selector: nested deeper than {DEPTH_MAX}")
        result = parse()
        self._depth -= 1
        return result

    def _or(self) -> Evaluate:
        terms = [self._and()]
        while self._take("keyword", "OR"):
            terms.append(self._and())
        return terms[0] if len(terms) == 1 else _any(terms)

    def _and(self) -> Evaluate:
        terms = [self._negation()]
        while self._take("keyword", "AND"):
            terms.append(self._negation())
        return terms[0] if len(terms) == 1 else _all(terms)

    def _negation(self) -> Evaluate:
        if self._take("keyword", "NOT"):
            inner = self._deeper(self._negation)
            return lambda properties: _not(inner(properties))
        return self._comparison()

    def _comparison(self) -> Evaluate:
        left = self._sum()
        sign = self._take("sign", *_COMPARISONS)
        if sign is not None:
            compare, right = _COMPARISONS[sign], self._sum()
            return lambda properties: compare(left(properties), right(properties))
        if self._take("keyword", "IS"):
            negated = self._take("keyword", "NOT") is not None
            self._expect("keyword", "NULL")
            return lambda properties: (left(properties) is None) is not negated
        negated = self._take("keyword", "NOT") is not None
        word = (
            self._expect("keyword", "BETWEEN", "LIKE", "IN")
            if negated
            else self._take("keyword", "BETWEEN", "LIKE", "IN")
        )
        if word is None:
            return left
        test = {"BETWEEN": self._between, "LIKE": self._like, "IN": self._in}[word](left)
        return (lambda properties: _not(test(properties))) if negated else test

    def _between(self, value: Evaluate) -> Evaluate:
        low = self._sum()
        self._expect("keyword", "AND")
        high = self._sum()
        at_least, at_most = _COMPARISONS[">="], _COMPARISONS["<="]
        return _all(
            [
                lambda properties: at_least(value(properties), low(properties)),
                lambda properties: at_most(value(properties), high(properties)),
            ]
        )

    def _like(self, value: Evaluate) -> Evaluate:
        pattern = _unquoted(self._expect("string"))
        escape = None
        if self._take("keyword", "ESCAPE"):
            escape = _unquoted(self._expect("string"))
            if len(escape) != 1:
                raise SelectorError("selector: ESCAPE takes one character")
        try:
            matches = Like(pattern, escape, self._meter).matches
        except ValueError as error:
            raise SelectorError(f"selector: {error}") from None

        def evaluate(properties: Properties) -> bool | None:
            text = value(properties)
            if text is None:
                return None
            return isinstance(text, str) and matches(text)

        return evaluate

    def _in(self, value: Evaluate) -> Evaluate:
        self._expect("sign", "(")
        choices = {_unquoted(self._expect("string"))}
        while self._take("sign", ","):
            choices.add(_unquoted(self._expect("string")))
        self._expect("sign", ")")

        def evaluate(properties: Properties) -> bool | None:
            text = value(properties)
            return None if text is None else isinstance(text, str) and text in choices

        return evaluate

    def _sum(self) -> Evaluate:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Evaluate:
        return self._chain(self._signed, "*", "/")

    def _chain(self, operand: Callable[[], Evaluate], *signs: str) -> Evaluate:
        """A run of equal rank, from left to right, evaluated in a loop: its length costs no depth."""
        first = operand()
        rest: list[tuple[Callable[[Any, Any], Any], Evaluate]] = []
        while (sign := self._take("sign", *signs)) is not None:
            rest.append((_ARITHMETIC[sign], operand()))
        if not rest:
            return first

        def evaluate(properties: Properties) -> Any:
            value = first(properties)
            for operate, right in rest:
                value = operate(value, right(properties))
            return value

        return evaluate

    def _signed(self) -> Evaluate:
        sign = self._take("sign", "-", "+")
        if sign is None:
            return self._primary()
        inner = self._deeper(self._signed)

        def evaluate(properties: Properties) -> Any:
            value = inner(properties)
            if not _numeric(value):
                return None
            return -value if sign == "-" else value

        return evaluate

    def _primary(self) -> Evaluate:
        if self._take("sign", "("):
            inner = self._deeper(self._or)
            self._expect("sign", ")")
            return inner
        kind, value = self._tokens[self._position]
        if kind == "name" or kind == "quoted":
            self._position += 1
            name = value.strip('"')
            return _JMS.get(name) or _header(name)
        constant = _constant(kind, value)
        if constant is None:
            raise self._unexpected()
        self._position += 1
        return lambda properties: constant


def _constant(kind: str, value: str) -> Any:
    match kind:
        case "string":
            return _unquoted(value)
        case "integer":
            return int(value, 16) if value[:2] in ("0x", "0X") else int(value)
        case "float":
            return float(value)
        case "keyword" if value in ("TRUE", "FALSE"):
            return value == "TRUE"
        case _:
            return None


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _all(terms: list[Evaluate]) -> Evaluate:
    def evaluate(properties: Properties) -> bool | None:
        unknown = False
        for term in terms:
            value = term(properties)
            if value is False:
                return False
            unknown = unknown or value is not True
        return None if unknown else True

    return evaluate


def _any(terms: list[Evaluate]) -> Evaluate:
    def evaluate(properties: Properties) -> bool | None:
        unknown = False
        for term in terms:
            value = term(properties)
            if value is True:
                return True
            unknown = unknown or value is not False
        return None if unknown else False

    return evaluate
