"""``/v1/admin:reload``: have this process read its configuration file again. See :mod:`gateway.reload`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from starlette.responses import Response

from gateway.api.about.schemas import Input, Output
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Route, Scope
from gateway.errors import ReloadRefused, RestartNeeded


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs."""

    setting: str
    change: str
    when: str


@dataclass(frozen=True, slots=True)
class BrokerThen:
    """A broker that is new or has other settings, as it is now."""

    name: str
    state: str
    reason: str
    code: str


@dataclass(frozen=True, slots=True)
class Reload:
    """What became of it."""

    status: Literal["applied", "unchanged", "checked"]
    changes: list[Change]
    brokers: list[BrokerThen]
    complete: bool


class Reloader(Protocol):
    """The object that does it."""

    async def reload(self, *, dry_run: bool = False) -> Reload:
        """Read the configuration again. Raises as :meth:`gateway.reload.Reloads.reload`."""
        ...


class ReloadQuery(Input):
    """How."""

    dry_run: bool = False
    """Only check the new file. The gateway logs in to brokers that are new or have other settings."""


class ReloadChange(Output):
    """A setting that differs."""

    setting: str
    """The setting, with dots. Of brokers, subscriptions, endpoints, bridges and taps: the name of the entry."""
    change: Literal["added", "changed", "removed"]
    """What the new file did with the setting."""
    when: str
    """When the change takes effect."""


class ReloadBroker(Output):
    """A broker that is new or has other settings."""

    name: str
    """Name of the broker."""
    state: str
    """``connecting``, ``up``, ``blocked``, ``down``, ``failed`` or ``closed``."""
    reason: str
    """Why it is not up; empty: it is."""
    code: str
    """Code of the problem that keeps it from being up; empty: it is up."""


class ReloadResult(Output):
    """What became of it."""

    status: Literal["applied", "unchanged", "checked"]
    """``applied``; ``unchanged``: nothing differs; ``checked``: the file is valid (``dry_run``)."""
    changes: list[ReloadChange]
    """The settings that differ."""
    brokers: list[ReloadBroker]
    """Brokers that are new or have other settings. With ``dry_run``: as they were when they were tried."""
    complete: bool
    """Whether all work that depends on the changes has started over."""


async def reload_configuration(call: Call) -> Response:
    """Read it again."""
    query = call.query(ReloadQuery)
    if call.reloader is None:
        raise ApiProblem("reload_refused", "this gateway was started without a configuration that could be read again")
    try:
        done = await call.reloader.reload(dry_run=query.dry_run)
    except RestartNeeded as error:
        culprits = [(_pointer(name), why) for name, why in error.settings]
        raise ApiProblem("restart_needed", str(error), culprits) from None
    except ReloadRefused as error:
        raise ApiProblem("reload_refused", str(error)) from None
    return answer(
        ReloadResult(
            status=done.status,
            changes=[
                ReloadChange(setting=each.setting, change=each.change, when=each.when)  # type: ignore[arg-type]
                for each in done.changes
            ],
            brokers=[
                ReloadBroker(name=each.name, state=each.state, reason=each.reason, code=each.code)
                for each in done.brokers
            ],
            complete=done.complete,
        )
    )


def _pointer(setting: str) -> str:
    return "/" + setting.replace(".", "/", 1)


ROUTES = (
    Route(
        "POST", "/v1/admin:reload", "reload_configuration", "Read the configuration file again", reload_configuration,
        Scope.ADMIN, {200: ("Applied, or nothing had changed.", ReloadResult)}, query=ReloadQuery,
        codes=("invalid_parameter", "reload_refused", "restart_needed", "ledger_unavailable", "overloaded"),
        description=(
            "Of this process alone; it is what SIGHUP does, too. The new file takes effect as a whole, or not at all: "
            "a file that is wrong, or changes what takes a restart, changes nothing. With `dry_run` nothing changes in "
            "any case."
        ),
        tag="administration",
    ),
)  # fmt: skip
"""The operations of this module."""
