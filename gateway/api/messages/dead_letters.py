"""``/v1/dead-letters``: how many dead letters the ledger keeps, by code and subscription, with the code in words."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

from msgspec import Meta
from starlette.responses import Response

from gateway.api.about.schemas import Input, Output
from gateway.api.http.call import Call, answer
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.deliveries import parsed_code, pushed_to
from gateway.core.publishing.outbox import moment
from gateway.fidelity.deaths import CODES
from gateway.ledger import DeadGroup

GROUPS_MAX: Final = 200
"""Most groups of one answer."""


class DeadLettersQuery(Input):
    """Filters."""

    subscription: Annotated[str, Meta(description="Only of this subscription.")] = ""
    endpoint: Annotated[str, Meta(description="Only of subscriptions that are pushed to this endpoint.")] = ""
    code: Annotated[str, Meta(description="Only with this code.")] = ""


class DeadLetterGroup(Output, omit_defaults=False):
    """Dead letters of one subscription with one code."""

    code: str
    """Why they are dead, as a stable code."""
    meaning: str
    """What the code means, in words."""
    subscription: str
    """Name of the subscription."""
    endpoint: str | None
    """Name of the endpoint that the subscription is pushed to; ``null``: it is pulled, or is gone."""
    count: int
    """How many there are."""
    more: bool
    """There are more than were counted."""
    first_at: str
    """When the first of them arrived, RFC 3339."""
    last_at: str
    """When the last of them arrived, RFC 3339."""
    deliveries: str
    """Path of their list."""


class DeadLetterGroups(Output, omit_defaults=False):
    """Dead letters by code and subscription."""

    groups: list[DeadLetterGroup]
    """The largest first."""
    more: bool
    """There are more groups: name a code or a subscription."""


async def list_dead_letters(call: Call) -> Response:
    """Count them."""
    query = call.query(DeadLettersQuery)
    subscriptions = await pushed_to(call, query.endpoint)
    if query.subscription:
        named = (query.subscription,)
        subscriptions = named if subscriptions is None else tuple(set(named) & set(subscriptions))
    found, more = await call.gateway.ledger.deliveries.dead_groups(
        GROUPS_MAX, code=parsed_code(query.code), subscriptions=subscriptions
    )
    endpoints = {each.name: each.settings.push for each in await call.gateway.subscriptions.all()} if found else {}
    found.sort(key=lambda group: (-group.count, group.code, group.subscription))
    groups = [_group(each, endpoints.get(each.subscription)) for each in found]
    return answer(DeadLetterGroups(groups=groups, more=more))


def _group(group: DeadGroup, endpoint: str | None) -> DeadLetterGroup:
    asked = urlencode({"state": "dead", "code": group.code, "subscription": group.subscription}, errors="replace")
    return DeadLetterGroup(
        code=group.code,
        meaning=CODES[group.code],
        subscription=group.subscription,
        endpoint=endpoint or None,
        count=group.count,
        more=group.more,
        first_at=moment(group.first_at),
        last_at=moment(group.last_at),
        deliveries=f"/v1/deliveries?{asked}",
    )


ROUTES: Final = (
    Route(
        "GET", "/v1/dead-letters", "list_dead_letters", "Count dead letters by code", list_dead_letters, Scope.ADMIN,
        {200: (f"At most {GROUPS_MAX} groups, the largest first.", DeadLetterGroups)}, query=DeadLettersQuery,
        codes=("invalid_parameter", "ledger_unavailable"),
        description="Dead letters that the ledger keeps, by code and subscription.", tag="deliveries",
    ),
)  # fmt: skip
