"""``/v1/caller``: who calls, and what the credential allows; for programs that offer only what they may do."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from gateway import __version__
from gateway.access.scopes import DEVELOPER
from gateway.api.about.schemas import Output
from gateway.api.http.call import Call, answer
from gateway.api.http.routing import Route, Scope


class Caller(Output, omit_defaults=False):
    """Who calls."""

    name: str
    """The client, as logs, ledger and audit log name it."""
    admin: bool
    """Whether it may do everything."""
    scopes: list[str]
    """What it may do, as `/v1/keys` writes scopes."""
    credential: str
    """Kind of the credential: `key`, `jwt` or `certificate`; empty: this gateway asks for none."""
    version: str
    """Version of the gateway."""
    body_max: int
    """Most bytes of a request that publishes: `http.body_max`."""


async def get_caller(call: Call) -> Response:
    """Answer with the caller."""
    principal = call.principal
    scopes = ["admin"] if principal.admin else [str(grant) for grant in principal.grants]
    body = Caller(
        name=principal.name,
        admin=principal.admin,
        scopes=scopes,
        credential="" if principal is DEVELOPER else principal.credential.partition(":")[0],
        version=__version__,
        body_max=call.http.body_max,
    )
    return answer(body, headers={"cache-control": "no-store"})


ROUTES: Final = (
    Route(
        "GET", "/v1/caller", "get_caller", "Read the caller's name and scopes", get_caller, Scope.CALLER,
        {200: ("The client and its scopes.", Caller)}, tag="keys",
    ),
)  # fmt: skip
