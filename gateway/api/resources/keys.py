"""``/v1/keys``: keys of callers that the ledger has. A key itself is only in the answer in which it was made."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from gateway.access.keys import CLIENT_MAX, ENVIRONMENT_MAX, OVERLAP, StoredKeys
from gateway.access.scopes import SCOPE_MAX, SCOPES_MAX
from gateway.api.about.schemas import Input, Output, PageQuery
from gateway.api.http.call import Call, answer, invalid_setting, page_headers
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.errors import EncodeError, Unsupported
from gateway.ledger.access.api_keys import ApiKey
from gateway.runtime.clock import clock

Life = Annotated[int, Meta(ge=0, le=100 * 366 * 86_400)]


Environment = Annotated[str, Meta(extra_json_schema={"pattern": f"^[a-z0-9]{{1,{ENVIRONMENT_MAX}}}$"})]
_SCOPE: Final = (
    r"^(admin(:\*)?|history|(publish|consume|subscribe):[^/]+/.+|route:[^/]+/[^/]+/[^/]+|(broker|endpoint):.+)$"
)  # fmt: skip
"""Roughly; :func:`gateway.access.scopes.parse_scope` knows."""


class KeyBody(Input):
    """A key to be made."""

    client: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": CLIENT_MAX, "pattern": "^[ -~]+$"})]
    """Who is to use it; several keys of one client are one caller. Not `jwt:…`, as clients with tokens are called."""
    scopes: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"pattern": _SCOPE, "maxLength": SCOPE_MAX})]],
        Meta(extra_json_schema={"minItems": 1, "maxItems": SCOPES_MAX}),
    ]
    """What the key allows."""
    environment: Environment = "live"
    """A word of small letters and digits that stands in the key, such as ``live`` or ``test``."""
    expires_seconds: Life = 365 * 86_400
    """How long the key is valid; 0: forever."""


class KeyRotateBody(Input):
    """A key in place of another."""

    environment: Environment = "live"
    """A word of small letters and digits that stands in the key, such as ``live`` or ``test``."""
    expires_seconds: Life = 365 * 86_400
    """How long the new key is valid; 0: forever."""
    overlap_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = OVERLAP
    """How long the old key stays valid."""


class Key(Output, kw_only=True):
    """A key of a caller."""

    id: str
    """Id of the key. It is not the key itself."""
    client: str
    """The client that uses the key."""
    scopes: list[str]
    """What the key allows."""
    hint: str
    """The first characters of the key."""
    live: bool
    """Whether the key is valid now."""
    state: Literal["live", "expired", "revoked", "refused"]
    """``refused``: the key would be valid, but is not taken for the reason in ``refusal``."""
    refusal: str = ""
    """Why it is refused: its row in the ledger was changed from outside, or the configuration has the same client."""
    created_at: str
    """When it was made, RFC 3339."""
    created_by: str
    """The client that made it."""
    expires_at: str | None
    """When it expires, RFC 3339; null: never."""
    revoked_at: str | None
    """When it was revoked, RFC 3339; null: it was not."""
    last_used_at: str | None
    """When it was used last, to the minute; null: never, as far as is known."""
    key: str | UnsetType = UNSET
    """The key itself. It is only in the answer in which the key was made."""


class KeyList(Output):
    """A page."""

    keys: list[Key]
    """The keys of this page."""


def _all(call: Call) -> StoredKeys:
    if call.access is None:
        raise Unsupported("this gateway keeps no keys")
    return call.access.keys


async def list_keys(call: Call) -> Response:
    """A page of them."""
    query = call.query(PageQuery)
    page, cursor = await _all(call).page(query.cursor or None, query.limit)
    found = KeyList(keys=[_describe(call, key) for key in page])
    return answer(found, headers=page_headers(call, cursor, limit=query.limit))


async def create_key(call: Call) -> Response:
    """One more."""
    body = await call.json(KeyBody)
    try:
        key, secret = await _all(call).create(
            body.client, body.scopes, brokers=call.gateway.brokers.keys(), by=call.principal.name,
            environment=body.environment, seconds=body.expires_seconds,
        )  # fmt: skip
    except EncodeError as error:
        raise invalid_setting(error) from None
    return _made(call, key, secret)


async def get_key(call: Call) -> Response:
    """One of them."""
    return answer(_describe(call, await _all(call).get(call.names["key"])))


async def rotate_key(call: Call) -> Response:
    """One in place of another."""
    body = await call.json(KeyRotateBody)
    key, secret = await _all(call).rotate(
        call.names["key"], by=call.principal.name, environment=body.environment, seconds=body.expires_seconds,
        overlap=body.overlap_seconds,
    )  # fmt: skip
    return _made(call, key, secret)


async def revoke_key(call: Call) -> Response:
    """It opens nothing any more."""
    return answer(_describe(call, await _all(call).revoke(call.names["key"], by=call.principal.name)))


def _made(call: Call, key: ApiKey, secret: str) -> Response:
    return answer(_describe(call, key, secret), 201, {"cache-control": "no-store"})


def _describe(call: Call, key: ApiKey, secret: str | UnsetType = UNSET) -> Key:
    is_live = key.live(int(clock.now() * 1_000_000))
    refusal = _all(call).refusal_of(key) if is_live else ""
    return Key(
        id=key.id,
        client=key.client,
        scopes=list(key.scopes),
        hint=key.hint,
        live=is_live and not refusal,
        state="refused" if refusal else "live" if is_live else "revoked" if key.revoked_at else "expired",
        refusal=refusal,
        created_at=moment(key.created_at / 1e6),
        created_by=key.created_by,
        expires_at=_moment(key.expires_at),
        revoked_at=_moment(key.revoked_at),
        last_used_at=_moment(key.last_used_at),
        key=secret,
    )


def _moment(at: int) -> str | None:
    return moment(at / 1e6) if at else None


_PATH: Final = "/v1/keys/{key}"
_BODY: Final = ("malformed_json", "invalid_request", "invalid_value", "unsupported_media_type", "state")
_LEDGER: Final = ("ledger_unavailable",)

ROUTES = (
    Route(
        "GET", "/v1/keys", "list_keys", "List API keys", list_keys, Scope.ADMIN,
        {200: ("A page.", KeyList)}, query=PageQuery, codes=("invalid_parameter", *_LEDGER), tag="keys",
    ),
    Route(
        "POST", "/v1/keys", "create_key", "Create an API key", create_key, Scope.ADMIN,
        {201: ("The key, which is shown only once.", Key)}, body=KeyBody, codes=(*_BODY, *_LEDGER),
        description="409 `state` where the client has two live keys.", tag="keys",
    ),
    Route(
        "GET", _PATH, "get_key", "Read an API key", get_key, Scope.ADMIN, {200: ("What is known of it.", Key)},
        codes=("no_such_resource", *_LEDGER), tag="keys",
    ),
    Route(
        "POST", f"{_PATH}:rotate", "rotate_key", "Replace an API key", rotate_key, Scope.ADMIN,
        {201: ("The new key, which is shown only once.", Key)}, body=KeyRotateBody, body_required=False,
        codes=("no_such_resource", *_BODY, *_LEDGER), description="Both keys are valid for `overlap_seconds`.",
        tag="keys",
    ),
    Route(
        "POST", f"{_PATH}:revoke", "revoke_key", "Revoke an API key", revoke_key, Scope.ADMIN,
        {200: ("As it is now.", Key)}, codes=("no_such_resource", *_LEDGER),
        description="This process refuses the key at once, other processes on the ledger within 5 seconds.", tag="keys",
    ),
)  # fmt: skip
