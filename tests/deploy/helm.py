"""helm as it is run by hand, and what it made."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "amqp-gateway"
TOOLS = Path(os.environ.get("GATEWAY_TOOLS") or Path.home() / ".cache" / "gateway-tools")
HELM = TOOLS / "bin" / "helm"
VERSIONS: Final = tuple(f"1.{minor}" for minor in range(25, 38))
"""Of Kubernetes."""
APIS: Final = ("monitoring.coreos.com/v1", "keda.sh/v1alpha1", "gateway.networking.k8s.io/v1")
"""What others bring to a cluster."""
FOREIGN: Final = frozenset(("ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"))
"""Kinds of theirs, for which Kubernetes has no schema."""
LEDGER: Final[dict[str, Any]] = {"ledger": {"existingSecret": "db"}, "seal": {"existingSecret": "seal"}}
"""The least that must be said."""

Object = dict[str, Any]


class HelmRefused(Exception):
    """What helm said."""


def helm(*arguments: str, values: Mapping[str, Any]) -> str:
    """What it prints.

    Raises:
        HelmRefused: it failed.
    """
    if not HELM.exists():
        raise RuntimeError(f"there is no {HELM}: run tests/deploy/install.sh")
    done = subprocess.run(
        [str(HELM), *arguments, "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HELM_CACHE_HOME": str(TOOLS / "helm"), "HELM_CONFIG_HOME": str(TOOLS / "helm")},
    )
    if done.returncode != 0:
        raise HelmRefused(done.stdout + done.stderr)
    return done.stdout


def template(
    values: Mapping[str, Any],
    *,
    version: str = "1.34.0",
    apis: Sequence[str] = APIS,
    release: str = "orders",
    upgrade: bool = False,
) -> list[Object]:
    """What the chart makes of values, in the order in which helm would apply it."""
    arguments = ["template", release, str(CHART), "--namespace", "messaging", "--kube-version", version]
    arguments += [argument for api in apis for argument in ("--api-versions", api)]
    text = helm(*arguments, *(["--is-upgrade"] if upgrade else []), values=values)
    return [document for document in yaml.safe_load_all(text) if document]


def validate(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> list[tuple[int, str, str]]:
    """What versions of Kubernetes would not take: the object's number, the version, what is wrong."""
    done = subprocess.run(
        [str(TOOLS / "validate" / "bin" / "python"), str(Path(__file__).parent / "validate.py"), *versions],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[tuple[int, str, str]] = json.loads(done.stdout)
    return found


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [each for each in objects if each["kind"] == kind]


def pods(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod that would be made, with the name of what makes it."""
    for each in objects:
        if "template" in each.get("spec", {}):
            yield f"{each['kind']} {each['metadata']['name']}", each["spec"]["template"]


def with_ledger(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with what must be said."""
    is_sqlite = values.get("ledger", {}).get("kind") == "sqlite"
    return dict(values) if is_sqlite else {**LEDGER, **values}
