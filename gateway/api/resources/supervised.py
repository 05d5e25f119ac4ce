"""What bridges and taps have in common over HTTP: list, read, put, delete and steer what one process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from gateway.api.about.schemas import PageQuery
from gateway.api.http.call import Call, answer, if_match, invalid_setting, no_content, page_headers
from gateway.api.http.problems import ApiProblem, wrong_parameter
from gateway.api.resources.patching import patched
from gateway.api.resources.peers import CallRequest, ask, at_the_owner, forward
from gateway.core.work.supervised import Supervisor
from gateway.errors import EncodeError, EtagMismatch, PeerUnavailable

LIST_WITHIN: Final = 3.0
"""How long another process may take to tell of one for a list, in seconds."""
NAME_MAX: Final = 128
"""Longest name, in characters."""

D = TypeVar("D", bound=msgspec.Struct)
Handler = Callable[[Call], Awaitable[Response]]


class Handlers(Generic[D]):
    """The handlers of one kind. What another process owns is answered by that process."""

    def __init__(
        self,
        kind: str,
        supervisor: Callable[[Call], Supervisor[Any, Any, Any]],
        body: type[Any],
        shown: type[D],
        describe: Callable[[Any], D],
        page: Callable[[list[D]], msgspec.Struct],
    ) -> None:
        """
        Args:
            kind: as the supervisor has it, and as the path names one.
            body: the settings.
            describe: a status as it is shown, in a struct ``shown``.
            page: the answer to a list.
        """
        self._kind = kind
        self._supervisor = supervisor
        self._body = body
        self._shown = shown
        self._describe = describe
        self._page = page
        owned = at_the_owner(kind)
        self.put: Handler = owned(self._put)
        """Create or replace."""
        self.patch: Handler = owned(self._patch)
        """Change some settings."""
        self.delete: Handler = owned(self._delete)
        """Delete."""
        self.pause: Handler = owned(self._pause)
        """Take nothing more."""
        self.resume: Handler = owned(self._resume)
        """Run."""

    async def list(self, call: Call) -> Response:
        """A page of them; of those of other processes as these say."""
        query = call.query(PageQuery)
        page, cursor = await self._supervisor(call).page(query.cursor or None, query.limit)
        found = await asyncio.gather(*(self._of_its_owner(call, status) for status in page))
        return answer(self._page(found), headers=page_headers(call, cursor, limit=query.limit))

    async def every(self, call: Call, most: int) -> tuple[Sequence[D], bool]:
        """The first of them, at most ``most``, and whether there are more."""
        page, cursor = await self._supervisor(call).page(None, most)
        return await asyncio.gather(*(self._of_its_owner(call, status) for status in page)), cursor is not None

    async def _of_its_owner(self, call: Call, found: Any) -> D:
        ownership = call.gateway.ownership
        if call.gateway.peers.shared and not self._supervisor(call).is_here(found.name):
            owner = await ownership.owner(self._kind, found.name)
            if owner is not None and ownership.elsewhere(owner):
                path = f"/v1/{self._kind}s/{quote(found.name, safe='')}".encode()
                request = CallRequest("GET", path, b"", {}, b"", call.principal.name, call.principal.admin, [])
                with suppress(PeerUnavailable, msgspec.DecodeError):  # what the ledger knows is better than nothing
                    told = await ask(call.gateway.peers, owner, request, LIST_WITHIN)
                    if told.status == 200:
                        return msgspec.json.decode(told.body, type=self._shown)
        return self._describe(found)

    async def get(self, call: Call) -> Response:
        """One of them, with its ETag; where its process does not answer, what the ledger knows of it."""
        ownership = call.gateway.ownership
        name = call.names[self._kind]
        if call.gateway.peers.shared:
            owner = await ownership.owner(self._kind, name)
            if owner is not None and ownership.elsewhere(owner):
                with suppress(PeerUnavailable):
                    return await forward(call, owner)
        return self.answer(await self._supervisor(call).get(name))

    async def _put(self, call: Call) -> Response:
        name = call.names[self._kind]
        if not 0 < len(name) <= NAME_MAX or not name.isprintable():
            raise wrong_parameter(self._kind, f"the name is not 1 to {NAME_MAX} printable characters")
        return await self._store(call, name, await call.json(self._body), if_match(call))

    async def _patch(self, call: Call) -> Response:
        name = call.names[self._kind]
        found = await self._supervisor(call).get(name)
        return await self._store(
            call, name, *await patched(call, f"the {self._kind} {name!r}", found.settings, found.etag)
        )

    async def _store(self, call: Call, name: str, settings: Any, match: str | None) -> Response:
        budgets = call.gateway.ledger_budgets
        try:
            async with budgets.creating(call.client, self._kind, name):
                found, created = await self._supervisor(call).put(name, settings, match)
                if created:
                    await budgets.created(call.client, self._kind, name)
        except EtagMismatch as error:
            if match is None:
                raise ApiProblem("precondition_required", f"{error}; send If-Match to replace them") from None
            raise
        except EncodeError as error:
            raise invalid_setting(error) from None
        return self.answer(found, 201 if created else 200)

    async def _delete(self, call: Call) -> Response:
        name = call.names[self._kind]
        await self._supervisor(call).delete(name, if_match(call))
        await call.gateway.ledger_budgets.deleted(self._kind, name)
        return no_content()

    async def _pause(self, call: Call) -> Response:
        return self.answer(await self._supervisor(call).pause(call.names[self._kind]))

    async def _resume(self, call: Call) -> Response:
        return self.answer(await self._supervisor(call).resume(call.names[self._kind]))

    def answer(self, found: Any, status: int = 200) -> Response:
        """What there is to say of one."""
        return answer(self._describe(found), status, {"etag": f'"{found.etag}"'})
