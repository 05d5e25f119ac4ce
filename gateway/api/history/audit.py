"""``/v1/audit``: the audit log, the newest rows first, for people who look; ``gateway audit`` checks it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import Response

from gateway.api.about.schemas import Input, Output
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.ledger.access.audit import AuditRow

SCANNED_MAX: Final = 10_000
"""Most rows that are looked at for one page."""
PART: Final = 1_000
"""How many of them are read at a time."""
FIELDS: Final = ("actor", "credential", "object", "address", "request", "before", "after")
"""Text members of an entry, which the answer has as they are."""


class AuditQuery(Input):
    """Paging and filters."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Most items on a page.")] = 100
    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$", description="From the link `rel=next`.")] = ""
    actor: Annotated[str, Meta(description="Only what this client did.")] = ""
    action: Annotated[str, Meta(description="Only this action, an operation such as `put_bridge`.")] = ""
    object: Annotated[str, Meta(description="Only where the path contains this text.")] = ""


class AuditEntry(Output, omit_defaults=False):
    """A row of the audit log."""

    sequence: int
    """Number of the row; each row has the next one."""
    at: str
    """When it happened, RFC 3339, UTC."""
    action: str
    """The operation of the API, or the event."""
    actor: str
    """The client; empty: it is not known."""
    credential: str
    """The credential that the client used, such as the id of its key; empty: it is not known."""
    object: str
    """The path of the request."""
    address: str
    """The address that the request came from."""
    request: str
    """`X-Request-Id` of the request."""
    result: str
    """Status of the answer, or the code of the refusal."""
    before: str
    """The ETag that the caller had read."""
    after: str
    """The ETag after the change."""
    detail: dict[str, Any]
    """What else the row holds."""


class AuditEntries(Output, omit_defaults=False):
    """A page of the audit log, the newest rows first."""

    entries: list[AuditEntry]
    """The rows of this page."""


async def list_audit(call: Call) -> Response:
    """Answer with a page."""
    query = call.query(AuditQuery)
    before = int(query.cursor) if query.cursor else None
    audit = call.gateway.ledger.audit
    found: list[AuditEntry] = []
    scanned, cursor = 0, None
    while scanned < SCANNED_MAX:
        rows = await audit.newest(before, PART)
        for row in rows:
            scanned, before = scanned + 1, row.sequence
            entry = _entry(row)
            if _is_wanted(entry, query):
                found.append(entry)
                if len(found) == query.limit:
                    break
        if len(rows) < PART or len(found) == query.limit:
            break
    if before is not None and before > 1 and (len(found) == query.limit or scanned >= SCANNED_MAX):
        cursor = str(before)
    given = {name: getattr(query, name) for name in ("actor", "action", "object")}
    return answer(AuditEntries(entries=found), headers=page_headers(call, cursor, limit=query.limit, **given))


def _is_wanted(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        (not query.actor or entry.actor == query.actor)
        and (not query.action or entry.action == query.action)
        and query.object in entry.object
    )


def _entry(row: AuditRow) -> AuditEntry:
    try:
        told = row.document()
    except ValueError:  # `gateway audit verify` says what is wrong with it
        told = {"action": "", "unreadable": True}
    texts = {name: printable(str(told.pop(name, ""))) for name in FIELDS}
    return AuditEntry(
        sequence=row.sequence,
        at=moment(row.at / 1e6),
        action=printable(str(told.pop("action", ""))),
        result=printable(str(told.pop("result", ""))),
        detail=told,
        **texts,
    )


ROUTES: Final = (
    Route(
        "GET", "/v1/audit", "list_audit", "Read the audit log", list_audit, Scope.ADMIN,
        {200: ("A page, the newest rows first.", AuditEntries)}, query=AuditQuery,
        codes=("invalid_parameter", "ledger_unavailable"),
        description=(
            "Who changed what, and who was refused. With a filter a page may have fewer rows than `limit`, or none, "
            "and a next page all the same: at most 10,000 rows are looked at for each. The chain is checked by "
            "`gateway audit verify`."
        ),
        tag="administration",
    ),
)  # fmt: skip
