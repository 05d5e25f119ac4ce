"""``/v1/budgets``: how much of everything that clients share is held, and by whom."""

from __future__ import annotations

from typing import Final, Literal

from starlette.responses import Response

from gateway.api.about.schemas import Output
from gateway.api.http.call import Call, answer
from gateway.api.http.routing import Route, Scope
from gateway.budgets import ClientKind, Holdings

LARGEST: Final = 10
"""How many clients are shown of each resource."""


class BudgetClient(Output):
    """A client that holds some of a resource."""

    client: str
    """Name of the client; its address where it has sent no credential."""
    kind: ClientKind
    """What holds it: the client of a credential, an address, a trusted proxy, an endpoint, or another process."""
    held: int
    """How much of the resource the client holds."""
    share: int
    """How much it may hold, unless it is alone."""


class BudgetRefusals(Output, omit_defaults=False):
    """How often the budget refused something since the process started."""

    share: int
    """Refusals because the client was at its share."""
    total: int
    """Refusals because everything was in use that is not reserved."""
    dropped: int
    """Connections without a credential that were closed to make room."""


class Budget(Output, omit_defaults=False):
    """A resource that clients share."""

    resource: str
    """Name of the resource."""
    counts: str
    """The unit that is counted."""
    held: int
    """How much all clients hold."""
    total: int
    """How much there is in all."""
    share: int
    """How much one client may hold, unless ``budgets.clients`` has another part for it."""
    reserve: int
    """The part of the total that only clients with ``admin`` may use."""
    scope: Literal["process", "ledger"]
    """Where it is counted: by each process, or for all that use the ledger."""
    setting: str
    """The setting that gives the total."""
    refusals: BudgetRefusals
    """How often the budget refused something."""
    largest: list[BudgetClient]
    """The ten clients that hold most."""


class BudgetList(Output, omit_defaults=False):
    """All of them."""

    budgets: list[Budget]
    """The budgets."""


async def list_budgets(call: Call) -> Response:
    """All of them, as this process counts them."""
    return answer(BudgetList(budgets=[_budget(each) for each in call.gateway.budgets.all()]))


def _budget(holdings: Holdings) -> Budget:
    row = holdings.resource
    return Budget(
        resource=row.name,
        counts=row.what,
        held=holdings.held,
        total=holdings.total,
        share=holdings.share,
        reserve=holdings.reserve,
        scope=row.scope,
        setting=row.setting,
        refusals=BudgetRefusals(**holdings.refusals),
        largest=[
            BudgetClient(client=client.name, kind=client.kind, held=held, share=holdings.share_of(client))
            for client, held in holdings.largest(LARGEST)
        ],
    )


ROUTES = (
    Route(
        "GET", "/v1/budgets", "list_budgets", "Show budgets and who holds most", list_budgets, Scope.ADMIN,
        {200: ("The budgets.", BudgetList)},
        description=(
            "Of the process that was asked: what it counts in its memory, and what it knows of the ledger. A client at "
            "its share gets 429 `budget_exceeded`."
        ),
        tag="administration",
    ),
)  # fmt: skip
"""The operations of this module."""
