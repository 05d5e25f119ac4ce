"""Write the chart's ``values.schema.json`` from its ``values.yaml``, the rules below, and the gateway's own settings.

A value has the type of its default; :data:`RULES` says what the type does not. ``config`` has the schema of the
settings file, made from the structs that read it, less :data:`NOT_IN_CONFIG`. ``python deploy/helm/generate.py`` writes
the file; a test fails while it differs from what would be written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.config import Config

CHART = Path(__file__).resolve().parent / "amqp-gateway"
SCHEMA = CHART / "values.schema.json"

NAME = r"^$|^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
"""Of an object of the cluster; or none."""
KEY = r"^[A-Za-z0-9._-]+$"
"""In a Secret."""
PORT = {"type": "integer", "minimum": 1, "maximum": 65_535}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
NAMES = {"type": "array", "items": {"type": "string", "pattern": NAME, "minLength": 1}}
HOSTS = {"type": "array", "items": {"type": "string", "minLength": 1}}
QUANTITY = {"type": ["string", "integer", "number"]}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = {
    "type": "object",
    "properties": {"requests": QUANTITIES, "limits": QUANTITIES},
    "additionalProperties": False,
}
ENV = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "value": {"type": "string"},
            "valueFrom": {"type": "object"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}

ENV_FROM = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "prefix": {"type": "string"},
            "configMapRef": {"type": "object"},
            "secretRef": {"type": "object"},
        },
        "additionalProperties": False,
    },
}
PATHS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "pattern": "^/"},
            "pathType": {"enum": ["Prefix", "Exact", "ImplementationSpecific"]},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}
HOST = {"type": "string", "minLength": 1}
CIDRS_V6 = {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f:]+/[0-9]{1,3}$"}}

RULES: dict[str, dict[str, Any]] = {
    "commonLabels": STRINGS,
    "commonAnnotations": STRINGS,
    "extraDeploy": {"type": "array", "items": {"type": ["object", "string"]}},
    "api.replicas": {"type": ["integer", "null"], "minimum": 0},
    "service.nodePort": {"type": "integer", "minimum": 0, "maximum": 65_535},
    "service.externalTrafficPolicy": {"enum": ["", "Cluster", "Local"]},
    "service.loadBalancerSourceRanges": HOSTS,
    "service.ipFamilyPolicy": {"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
    "service.ipFamilies": {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}},
    "ingress.tls": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"secretName": {"type": "string", "pattern": NAME, "minLength": 1}, "hosts": HOSTS},
            "required": ["secretName", "hosts"],
            "additionalProperties": False,
        },
    },
    "networkPolicy.webhooks.exceptV6": CIDRS_V6,
    "pod.dnsPolicy": {"enum": ["", "ClusterFirst", "Default", "None"]},
    "image.repository": {"type": "string", "minLength": 1},
    "image.digest": {"type": "string", "pattern": "^$|^sha256:[0-9a-f]{64}$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.pullSecrets": NAMES,
    "config": {"$ref": "#/definitions/Config"},
    "ledger.kind": {"enum": ["postgresql", "sqlite"]},
    "ledger.url": {"type": "string", "pattern": r"^$|^postgres(ql)?(\+psycopg)?://"},
    "secretMounts": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$"},
                "existingSecret": {"type": "string", "pattern": NAME, "minLength": 1},
            },
            "required": ["name", "existingSecret"],
            "additionalProperties": False,
        },
    },
    "secretsAs": {"enum": ["file", "env"]},
    "ports.http": PORT,
    "ports.ops": PORT,
    "cluster.port": PORT,
    "listenAddress": {"type": "string", "minLength": 1},
    "migrations.mode": {"enum": ["job", "init", "off"]},
    "migrations.activeDeadlineSeconds": {"type": "integer", "minimum": 1},
    "drain.delaySeconds": {"type": "integer", "minimum": 0, "maximum": 300},
    "drain.timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 3_600},
    "drain.closeSeconds": {"type": "integer", "minimum": 10, "maximum": 600},
    "drain.preStopSleepSeconds": {"type": "integer", "minimum": 0, "maximum": 300},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "fronts.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "fronts.service.loadBalancerSourceRanges": HOSTS,
    "service.port": PORT,
    "ingress.hosts": {
        "type": "array",
        "items": {
            "anyOf": [
                HOST,
                {
                    "type": "object",
                    "properties": {"host": HOST, "paths": PATHS},
                    "required": ["host"],
                    "additionalProperties": False,
                },
            ]
        },
    },
    "httpRoute.parentRefs": OBJECTS,
    "httpRoute.hostnames": HOSTS,
    "networkPolicy.ledger.port": PORT,
    "networkPolicy.tracing.port": PORT,
    "networkPolicy.brokers.ports": {"type": "array", "items": PORT},
    "networkPolicy.webhooks.ports": {"type": "array", "items": PORT, "minItems": 1},
    "networkPolicy.webhooks.except": {
        "type": "array",
        "items": {"type": "string", "pattern": r"^[0-9.]+/[0-9]{1,2}$"},
    },
    "pod.runAsUser": {"type": "integer", "minimum": 1},
    "pod.fsGroup": {"type": "integer", "minimum": 1},
    "metrics.serviceMonitor.interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
    "metrics.prometheusRule.runbooks": {"type": "string", "pattern": "^https?://"},
}
"""Path -> schema, where the type of the default is not all."""
BY_LAST: dict[str, dict[str, Any]] = {
    "existingSecret": {"type": "string", "pattern": NAME},
    "existingSecretKey": {"type": "string", "pattern": KEY},
    "existingClaim": {"type": "string", "pattern": NAME},
    "tlsSecret": {"type": "string", "pattern": NAME},
    "annotations": STRINGS,
    "labels": STRINGS,
    "podAnnotations": STRINGS,
    "podLabels": STRINGS,
    "nodeSelector": STRINGS,
    "resources": RESOURCES,
    "extraEnv": ENV,
    "extraEnvFrom": ENV_FROM,
    "minAvailable": {"type": ["integer", "string"], "minimum": 1, "pattern": "^$|^[0-9]{1,3}%$"},
    "serviceAccountName": {"type": "string", "pattern": NAME},
    "kind": {"enum": ["none", "hpa", "keda"]},
    "minReplicas": {"type": "integer", "minimum": 1},
    "maxReplicas": {"type": "integer", "minimum": 1},
    "targetCPU": {"type": "integer", "minimum": 1, "maximum": 1_000},
    "maxUnavailable": {"type": ["integer", "string"], "minimum": 1, "pattern": "^[0-9]{1,3}%$"},
    "spread": {"enum": ["soft", "hard", "none"]},
    "periodSeconds": {"type": "integer", "minimum": 1},
    "timeoutSeconds": {"type": "integer", "minimum": 1},
    "failureThreshold": {"type": "integer", "minimum": 1},
}
"""The same by the last part of the path."""
NOT_IN_CONFIG: dict[str, tuple[str, ...]] = {
    "Config": ("role", "data_dir", "ops", "cluster", "pipeline"),
    "HttpSettings": ("host", "port", "drain_delay", "drain_timeout"),
    "LedgerSettings": ("url", "secrets_file"),
    "AccessSettings": ("required",),
    "ApiKeySettings": ("key",),
    "EndpointAuth": ("secret",),
    "EndpointTls": ("key",),
    "FrontSettings": ("host",),
    "FrontUser": ("password",),
}
"""Struct -> settings that are the chart's, or that belong into a Secret."""
NO_PASSWORD = "^amqps?://([^:@/]*@)?[^@/]+(/.*)?$"  # noqa: S105  # a pattern
"""A broker's URL in a ConfigMap."""


def _when(condition: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    return {"if": condition, "then": then}


def _at(path: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    """A schema for one value, from the root."""
    for name in reversed(path.split(".")):
        schema = {"properties": {name: schema}, **({"required": [name]} if required else {})}
    return schema


TOGETHER: list[dict[str, Any]] = [
    _when(
        _at("ledger.kind", {"const": "sqlite"}, required=True),
        {"allOf": [_at("api.replicas", {"maximum": 1}), _at("api.autoscaling.kind", {"const": "none"})]},
    ),
    *(
        _when(
            _at(f"{role}.autoscaling.kind", {"const": "keda"}, required=True),
            _at(f"{role}.autoscaling.keda.triggers", {"minItems": 1}),
        )
        for role in ("api", "worker")
    ),
    _when(_at("httpRoute.enabled", {"const": True}, required=True), _at("httpRoute.parentRefs", {"minItems": 1})),
]
"""What must fit together: one process on SQLite, triggers for KEDA, a parent for a route."""


def values() -> dict[str, Any]:
    """The defaults."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def schema_of(value: Any, path: str = "") -> dict[str, Any]:
    """The schema of a value, by its default."""
    if path in RULES:
        return RULES[path]
    if (last := path.rpartition(".")[2]) in BY_LAST and path != "ledger.kind":
        return BY_LAST[last]
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer", "minimum": 0}
        case str():
            return {"type": "string"}
        case list():
            return OBJECTS
        case {}:
            if not value:
                return {"type": "object"}
            inner = {name: schema_of(each, f"{path}.{name}".lstrip(".")) for name, each in value.items()}
            return {"type": "object", "properties": inner, "additionalProperties": False}
    raise TypeError(f"{path}: {value!r}")


def config_definitions() -> dict[str, Any]:
    """The settings file, as the gateway reads it."""
    _, components = msgspec.json.schema_components([Config], ref_template="#/definitions/{name}")
    found: dict[str, Any] = _bare(components)
    for struct, names in NOT_IN_CONFIG.items():
        for name in names:
            del found[struct]["properties"][name]
    found["BrokerSettings"]["properties"]["url"] = {"type": "string", "pattern": NO_PASSWORD}
    return found


def _bare(schema: Any) -> Any:
    """Without what is only said to people, and what the settings document better."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    named = {"properties", "definitions"}
    return {
        name: {key: _bare(each) for key, each in value.items()} if name in named else _bare(value)
        for name, value in schema.items()
        if name not in ("title", "description", "default")
    }


def document() -> dict[str, Any]:
    """The whole schema."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema_of(values()),
        "allOf": TOGETHER,
        "definitions": config_definitions(),
    }


def render() -> str:
    """As it stands in the file."""
    return json.dumps(document(), indent=1, sort_keys=False) + "\n"


def described() -> Iterator[tuple[str, Any, str]]:
    """Path, default and comment of each value, in the order of the file.

    Raises:
        ValueError: a value has no comment ``# --``.
    """
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    inside: int | None = None
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if text.startswith("#"):
            comment = [text[4:]] if text.startswith("# --") else [*comment, text[1:].strip()] if comment else []
            continue
        match = re.match(r"([A-Za-z0-9]+):(.*)", text)
        if match is None or (inside is not None and depth > inside):
            if not text:
                comment = []
            continue
        inside = None
        stack = [*(each for each in stack if each[0] < depth), (depth, match[1])]
        path = ".".join(name for _, name in stack)
        default: Any = values()
        for _, name in stack:
            default = default[name]
        if comment:
            yield path, default, " ".join(comment).strip()
            inside = depth
        elif not (isinstance(default, dict) and default):
            raise ValueError(f"{path} has no comment '# --'")
        comment = []


def main() -> int:
    """Write it."""
    SCHEMA.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
