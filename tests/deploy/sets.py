"""Value sets that the chart must take, and values that it must refuse."""
# ruff: noqa: E501  # tables

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.helm import LEDGER

SQLITE: Final[dict[str, Any]] = {"ledger": {"kind": "sqlite"}}
ONCE: Final[dict[str, Any]] = {
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "podLabels": {"team": "orders"},
    "extraEnv": [{"name": "PGSSLROOTCERT", "value": "/pgca/ca.pem"}],
    "extraEnvFrom": [{"configMapRef": {"name": "proxy"}}, {"prefix": "P_", "secretRef": {"name": "more"}}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}},
    "priorityClassName": "high",
}  # fmt: skip
"""What pods that run once take."""
SIDECAR: Final[dict[str, Any]] = {
    "name": "helper", "image": "helper:1", "command": ["helper", "run"], "env": [],
    "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
    "volumeMounts": [],
}  # fmt: skip
CA: Final[dict[str, Any]] = {
    "extraVolumes": [{"name": "pgca", "secret": {"secretName": "pgca"}}],
    "extraVolumeMounts": [{"name": "pgca", "mountPath": "/pgca", "readOnly": True}],
}
TRIGGER: Final[dict[str, Any]] = {
    "type": "rabbitmq",
    "metadata": {"queueName": "orders", "mode": "QueueLength", "value": "500", "activationValue": "1"},
    "authenticationRef": {"name": "rabbit"},
}
KEDA: Final[dict[str, Any]] = {"kind": "keda", "keda": {"triggers": [TRIGGER]}}
BROKERS: Final[dict[str, Any]] = {
    "orders": {
        "url": "amqps://gateway@rabbit.example:5671/orders?version=auto",
        "password_file": "/etc/amqp-gateway/secrets/rabbit/password",
        "required": True,
        "tls": {"ca_file": "/etc/amqp-gateway/secrets/rabbit/ca.crt"},
    },
    "legacy": {"url": "amqp://qpid.example/?version=0-10", "mechanisms": ["SCRAM-SHA-256"], "heartbeat": 15},
}
CONFIG: Final[dict[str, Any]] = {
    "log_level": "warning",
    "brokers": BROKERS,
    "api_keys": [{"name": "shop", "sha256": "9f" * 32, "scopes": ["publish:orders/*"]}],
}
BRIDGE: Final[dict[str, Any]] = {
    "source": {"broker": "legacy", "queue": "invoices"},
    "target": {"broker": "orders", "exchange": "invoices"},
}
ROLE: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("three", {"replicas": 3}),
    ("one", {"replicas": 1}),
    ("hpa", {"autoscaling": {"kind": "hpa"}}),
    ("hpa-one", {"autoscaling": {"kind": "hpa", "minReplicas": 1, "maxReplicas": 2, "targetCPU": 120}}),
    ("keda", {"autoscaling": KEDA}),
    ("no-budget", {"disruptionBudget": {"enabled": False}}),
    ("budget-percent", {"replicas": 10, "disruptionBudget": {"maxUnavailable": "20%"}}),
    ("spread-hard", {"spread": "hard"}),
    ("spread-none", {"spread": "none"}),
    ("spread-own", {"topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}]}),
    ("budget-least", {"replicas": 5, "disruptionBudget": {"minAvailable": "60%"}}),
    ("env-from", {"extraEnvFrom": [{"secretRef": {"name": "more"}}]}),
    ("sidecars", {"sidecars": [SIDECAR], "initContainers": [{**SIDECAR, "name": "first"}], "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}),
    ("annotations", {"podAnnotations": {"a.example/b": "c"}, "podLabels": {"team": "orders"}}),
    ("env", {"extraEnv": [{"name": "TZ", "value": "UTC"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}),
    ("nodes", {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "a", "operator": "Exists"}], "priorityClassName": "high"}),
    ("affinity", {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}}}),
    ("resources", {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi", "cpu": "1500m"}}}),
)  # fmt: skip

KIND: Final[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "kind" / "values.yaml").read_text("utf-8"))
"""What ``kind.sh`` installs."""

SETS: Final[dict[str, dict[str, Any]]] = {
    "kind": KIND,
    "least": LEDGER,
    "trial-url": {"ledger": {"url": "postgresql://gateway:secret@db/gateway"}},
    "trial-url-init": {"ledger": {"url": "postgresql://gateway@db/gateway"}, "migrations": {"mode": "init"}},
    "other-key": {"ledger": {"existingSecret": "db", "existingSecretKey": "POSTGRES.URL"}},
    "sqlite": SQLITE,
    "sqlite-claim": {**SQLITE, "ledger": {"kind": "sqlite", "persistence": {"existingClaim": "mine"}}},
    "sqlite-class": {**SQLITE, "ledger": {"kind": "sqlite", "persistence": {"storageClass": "fast", "size": "1Ti"}}},
    "sqlite-no-policy": {**SQLITE, "networkPolicy": {"enabled": False}},
    "config": {"config": CONFIG},
    "config-bridge": {"config": {**CONFIG, "bridges": {"invoices": BRIDGE}, "retention": {"history_days": 7}}},
    "config-subscription": {"config": {**CONFIG, "subscriptions": {"billing": {"broker": "legacy", "queue": "b"}}}},
    "config-http": {"config": {**CONFIG, "http": {"body_max": 1_048_576, "confirm_timeout": 12.5, "concurrency": 300}}},
    "secret-mounts": {
        "config": CONFIG,
        "secretMounts": [{"name": "rabbit", "existingSecret": "rabbit"}, {"name": "tls", "existingSecret": "ca.tls"}],
    },
    "cluster-secret": {"cluster": {"existingSecret": "cluster", "existingSecretKey": "key.b64", "port": 9999}},
    "seal": {"seal": {"existingSecret": "seal", "existingSecretKey": "secrets.key"}},
    "secrets-env": {
        "secretsAs": "env",
        "cluster": {"existingSecret": "c"},
        "test": {"broker": "orders", "existingSecret": "keys"},
    },
    "secrets-env-init": {"secretsAs": "env", "migrations": {"mode": "init"}},
    "all-secrets": {"cluster": {"existingSecret": "c"}, "seal": {"existingSecret": "s"}, "config": CONFIG},
    "migrate-init": {"migrations": {"mode": "init"}},
    "migrate-off": {"migrations": {"mode": "off"}},
    "migrate-patient": {"migrations": {"waitSeconds": 600, "activeDeadlineSeconds": 7200, "backoffLimit": 0}},
    "no-worker": {"worker": {"replicas": 0}},
    "names": {"nameOverride": "gate", "commonLabels": {"team": "orders", "cost-centre": "7"}},
    "full-name": {"fullnameOverride": "gateway"},
    "long-name": {"fullnameOverride": "a-name-that-is-much-longer-than-anything-that-kubernetes-would-take-for-one"},
    "registry": {"image": {"registry": "registry.example:5000", "tag": "0.1.0-rc1"}},
    "global-registry": {"global": {"imageRegistry": "mirror.example"}, "image": {"registry": "other.example"}},
    "digest": {"image": {"digest": "sha256:" + "0a" * 32, "pullPolicy": "Always"}},
    "pull-secrets": {"image": {"pullSecrets": ["registry", "other"]}},
    "ports": {"ports": {"http": 9000, "ops": 9001}, "service": {"port": 8080}},
    "ipv6": {"listenAddress": "::"},
    "slow-drain": {"drain": {"delaySeconds": 15, "timeoutSeconds": 60, "closeSeconds": 45}},
    "no-delay": {"drain": {"delaySeconds": 0}},
    "patient-start": {"probes": {"startup": {"failureThreshold": 300}, "readiness": {"periodSeconds": 1}}},
    "volumes": {
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/own", "readOnly": True}],
    },
    "user": {"pod": {"runAsUser": 1000, "fsGroup": 2000}},
    "account": {"serviceAccount": {"name": "robot", "annotations": {"eks.example/role": "arn"}}},
    "no-account": {"serviceAccount": {"create": False}},
    "foreign-account": {"serviceAccount": {"create": False, "name": "robot"}},
    "load-balancer": {"service": {"type": "LoadBalancer", "annotations": {"lb.example/internal": "true"}}},
    "fronts": {
        "config": {
            "brokers": {"modern": {"url": "amqp://gateway@rabbitmq/"}},
            "fronts": {
                "legacy": {"broker": "modern", "users": [{"name": "a", "password_file": "/run/a"}]},
                "secure": {"broker": "modern", "login": "pass", "port": 5671, "tls": {"cert_file": "/run/tls.crt"}},
            },
        },
        "fronts": {"service": {"type": "LoadBalancer", "labels": {"a": "b"}}},
        "networkPolicy": {"frontsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "node-port": {"service": {"type": "NodePort"}},
    "ingress": {"ingress": {"enabled": True, "hosts": ["gateway.example"], "className": "nginx", "tlsSecret": "tls"}},
    "ingress-plain": {"ingress": {"enabled": True, "hosts": ["a.example", "b.example"], "annotations": {"a": "b"}}},
    "route": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "front"}], "hostnames": ["gateway.example"]}},
    "route-anywhere": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "front", "namespace": "edge"}]}},
    "no-policy": {"networkPolicy": {"enabled": False}},
    "narrow-policy": {
        "networkPolicy": {
            "httpFrom": [{"namespaceSelector": {"matchLabels": {"name": "shop"}}}],
            "opsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "ledger": {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "port": 6432},
            "brokers": {"to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "ports": [5671]},
            "webhooks": {"enabled": False},
            "extraEgress": [{"ports": [{"port": 4317}]}],
        }
    },
    "tracing": {
        "config": {"tracing": {"endpoint": "http://collector.tracing:4318/v1/traces"}},
        "networkPolicy": {"tracing": {"to": [{"namespaceSelector": {"matchLabels": {"name": "tracing"}}}]}},
    },
    "tracing-anywhere": {"config": {"tracing": {"endpoint": "https://c.example/v1/traces", "sample": 0.1}}},
    "open-webhooks": {"networkPolicy": {"webhooks": {"ports": [443], "except": []}}},
    "service-monitor": {"metrics": {"serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"a": "b"}}}},
    "rules": {"metrics": {"prometheusRule": {"enabled": True, "runbooks": "https://wiki.example/runbooks/"}}},
    "dashboards": {"metrics": {"dashboards": {"enabled": True}}},
    "all-metrics": {
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")}
    },
    "once": {"migrations": ONCE, "test": ONCE, **CA},
    "once-env": {"secretsAs": "env", "migrations": {**ONCE, "ttlSecondsAfterFinished": 600}, **CA},
    "once-init": {"migrations": {**ONCE, "mode": "init"}, **CA},
    "migrate-account": {"migrations": {"serviceAccountName": "migrator"}},
    "annotated": {
        "commonAnnotations": {"a.example/owner": "orders"},
        "ingress": {"enabled": True, "hosts": ["a.example"]},
        "serviceAccount": {"annotations": {"eks.example/role": "arn"}},
    },
    "annotated-sqlite": {**SQLITE, "commonAnnotations": {"a.example/owner": "orders"}},
    "more-objects": {
        "extraDeploy": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": "{{ .Release.Name }}-more",
                    "namespace": "messaging",
                    "labels": {
                        "app.kubernetes.io/instance": "orders",
                        "app.kubernetes.io/name": "a",
                        "app.kubernetes.io/version": "1",
                        "helm.sh/chart": "b",
                    },
                },
                "data": {"a": "b"},
            },
        ]
    },
    "security-contexts": {
        "podSecurityContext": {"supplementalGroups": [7]},
        "containerSecurityContext": {"privileged": False},
    },
    "openshift": {"pod": {"runAsUser": None, "fsGroup": None}},
    "pod-options": {
        "pod": {
            "runtimeClassName": "gvisor",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["10.0.0.10"]},
            "hostAliases": [{"ip": "10.1.1.1", "hostnames": ["rabbit.example"]}],
        }
    },
    "service-options": {
        "service": {
            "type": "LoadBalancer",
            "nodePort": 30080,
            "labels": {"a": "b"},
            "externalTrafficPolicy": "Local",
            "loadBalancerClass": "internal.example/lb",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv6", "IPv4"],
        }
    },
    "ingress-paths": {
        "ingress": {
            "enabled": True,
            "hosts": [
                "a.example",
                {"host": "b.example", "paths": [{"path": "/v1"}, {"path": "/healthz", "pathType": "Exact"}]},
            ],
            "tls": [{"secretName": "tls-a", "hosts": ["a.example"]}, {"secretName": "tls-b", "hosts": ["b.example"]}],
        }
    },
    "relabelings": {
        "metrics": {
            "serviceMonitor": {
                "enabled": True,
                "relabelings": [{"targetLabel": "cluster", "replacement": "east"}],
                "metricRelabelings": [{"action": "labeldrop", "regex": "pod"}],
            }
        }
    },
    "no-test": {"test": {"enabled": False}},
    "round-trip": {"test": {"broker": "orders", "existingSecret": "keys", "existingSecretKey": "admin"}},
    "hpa-requests": {"api": {"autoscaling": {"kind": "hpa", "targetRequests": 50, "maxReplicas": 40}}},
    "both-scale": {"api": {"autoscaling": {"kind": "hpa"}}, "worker": {"autoscaling": KEDA}},
    **{f"{role}-{name}": {role: values} for role in ("api", "worker") for name, values in ROLE},
    "production": {
        "image": {"registry": "registry.example", "digest": "sha256:" + "0a" * 32},
        "config": {**CONFIG, "bridges": {"invoices": BRIDGE}},
        "cluster": {"existingSecret": "cluster"},
        "seal": {"existingSecret": "seal"},
        "secretMounts": [{"name": "rabbit", "existingSecret": "rabbit"}],
        "api": {"autoscaling": {"kind": "hpa", "targetRequests": 100}},
        "worker": {"replicas": 3},
        "ingress": {"enabled": True, "hosts": ["gateway.example"], "tlsSecret": "tls"},
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")},
    },
}
"""Name -> values; where they say nothing of a ledger, :data:`LEDGER` is added."""
SLEEPING: Final[dict[str, Any]] = {"drain": {"preStopSleepSeconds": 5}}
"""Only from 1.30 on."""

REFUSED: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("no-ledger", {"ledger": {"existingSecret": ""}}, "ledger.existingSecret: name the Secret"),
    ("no-seal", {"seal": {"existingSecret": ""}}, "seal.existingSecret: name the Secret with the key"),
    ("trial-no-seal", {"ledger": {"url": "postgresql://db/gateway"}, "seal": {}}, "seal.existingSecret: name the Secret"),
    ("misspelt", {"replicas": 3}, "additional properties 'replicas' not allowed"),
    ("misspelt-below", {"api": {"replica": 3}}, "at '/api': additional properties 'replica' not allowed"),
    ("misspelt-config", {"config": {"http": {"prot": 1}}}, "at '/config/http': additional properties 'prot'"),
    ("config-port", {"config": {"http": {"port": 1}}}, "at '/config/http': additional properties 'port'"),
    ("config-ledger", {"config": {"ledger": {"url": "x"}}}, "at '/config/ledger': additional properties 'url'"),
    ("config-role", {"config": {"role": "api"}}, "additional properties 'role' not allowed"),
    ("config-type", {"config": {"brokers": {"a": {"url": "amqp://h", "heartbeat": "soon"}}}}, "/config/brokers/a/heartbeat"),
    ("password", {"config": {"brokers": {"a": {"url": "amqp://u:p@h/"}}}}, "at '/config/brokers/a/url'"),
    ("api-key", {"config": {"api_keys": [{"name": "a", "key": "k"}]}}, "additional properties 'key' not allowed"),
    ("no-url", {"config": {"brokers": {"a": {}}}}, "missing property 'url'"),
    ("kind", {"ledger": {"kind": "mysql"}}, "at '/ledger/kind': value must be one of 'postgresql', 'sqlite'"),
    ("url", {"ledger": {"url": "mysql://db"}}, "at '/ledger/url'"),
    ("sqlite-two", {"ledger": {"kind": "sqlite"}, "api": {"replicas": 2}}, "at '/api/replicas': maximum: got 2, want 1"),
    ("sqlite-hpa", {**SQLITE, "api": {"autoscaling": {"kind": "hpa"}}}, "value must be 'none'"),
    ("scaling", {"api": {"autoscaling": {"kind": "both"}}}, "'/api/autoscaling/kind': value must be one of 'none', 'hpa', 'keda'"),
    ("keda-empty", {"worker": {"autoscaling": {"kind": "keda"}}}, "'/worker/autoscaling/keda/triggers': minItems: got 0, want 1"),
    ("mode", {"migrations": {"mode": "hook"}}, "value must be one of 'job', 'init', 'off'"),
    ("root", {"pod": {"runAsUser": 0}}, "at '/pod/runAsUser': minimum: got 0, want 1"),
    ("port", {"ports": {"http": 70_000}}, "at '/ports/http': maximum: got 70,000, want 65,535"),
    ("ports", {"ports": {"ops": 8080}}, "ports.ops is 8080, and so is ports.http"),
    ("cluster-port", {"cluster": {"port": 8080}}, "cluster.port is 8080, and so is ports.http"),
    ("front-port", {"config": {"fronts": {"a": {"port": 0}}}}, "config.fronts.a.port: a Service needs a number, not 0"),
    ("front-ports", {"config": {"fronts": {"a": {"port": 8080}}}}, "config.fronts.a.port is 8080, and so is ports.http"),
    ("front-password", {"config": {"fronts": {"a": {"users": [{"name": "a", "password": "b"}]}}}}, "additional properties 'password' not allowed"),
    ("node-port", {"service": {"nodePort": 30080}}, "service.nodePort: a Service of the type ClusterIP has none"),
    ("ingress-path", {"ingress": {"enabled": True, "hosts": [{"host": "a", "paths": [{"path": "v1"}]}]}}, "at '/ingress/hosts/0'"),
    ("env-from", {"test": {"extraEnvFrom": [{"name": "a"}]}}, "at '/test/extraEnvFrom/0': additional properties 'name'"),
    ("digest", {"image": {"digest": "latest"}}, "at '/image/digest'"),
    ("pull-policy", {"image": {"pullPolicy": "Sometimes"}}, "'/image/pullPolicy': value must be one of"),
    ("replicas", {"api": {"replicas": "two"}}, "at '/api/replicas': got string, want "),
    ("negative", {"worker": {"replicas": -1}}, "at '/worker/replicas': minimum: got -1, want 0"),
    ("secret-name", {"cluster": {"existingSecret": "Not_A_Name"}}, "at '/cluster/existingSecret'"),
    ("secrets-as", {"secretsAs": "volume"}, "at '/secretsAs': value must be one of 'file', 'env'"),
    ("mount", {"secretMounts": [{"name": "a"}]}, "missing property 'existingSecret'"),
    ("mount-path", {"secretMounts": [{"name": "../a", "existingSecret": "b"}]}, "at '/secretMounts/0/name'"),
    ("grace", {"drain": {"closeSeconds": 1}}, "at '/drain/closeSeconds': minimum: got 1, want 10"),
    ("route", {"httpRoute": {"enabled": True}}, "'/httpRoute/parentRefs': minItems: got 0, want 1"),
    ("hosts", {"ingress": {"enabled": True}}, "ingress.hosts: name at least one host"),
    ("test-key", {"test": {"broker": "orders"}}, "test.existingSecret: name the Secret with the API key"),
    ("env", {"api": {"extraEnv": [{"nme": "A"}]}}, "missing property 'name'"),
    ("resources", {"api": {"resources": {"cpu": 1}}}, "at '/api/resources': additional properties 'cpu'"),
    ("service", {"service": {"type": "ExternalName"}}, "at '/service/type': value must be one of"),
    ("network", {"networkPolicy": {"webhooks": {"except": ["private"]}}}, "at '/networkPolicy/webhooks/except/0'"),
    ("interval", {"metrics": {"serviceMonitor": {"interval": "often"}}}, "at '/metrics/serviceMonitor/interval'"),
)  # fmt: skip
"""Name, values, and what the sentence says that refuses them."""
