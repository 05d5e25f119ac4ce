"""The chart: what it makes of many values, held against Kubernetes' own schemas and against what we promise of it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml

from gateway import __version__
from gateway.commands import cli
from gateway.config import load
from tests.deploy.helm import (
    APIS,
    CHART,
    FOREIGN,
    LEDGER,
    ROOT,
    TOOLS,
    VERSIONS,
    HelmRefused,
    Object,
    helm,
    of_kind,
    pods,
    template,
    validate,
    with_ledger,
)
from tests.deploy.sets import CA, ONCE, REFUSED, SETS, SLEEPING

SKIPPED = {
    "CKV_K8S_15": "the image is named by its digest: to pull it again could not bring another one",
}
"""Checks of checkov that are not for us, and why; docs/how-to/deployment.md says the same."""


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("helm_generate", CHART.parent / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


@cache
def rendered(name: str) -> list[Object]:
    return template(with_ledger(SETS[name]))


def test_there_are_as_many_sets_as_the_page_says() -> None:
    assert len(SETS) >= 80
    page = (ROOT / "docs/how-to/deployment.md").read_text()
    assert f"over {len(SETS)} sets of values" in page
    assert f"| wrong values | {len(REFUSED)}, each" in page


def test_the_icon_is_a_file_of_ours() -> None:
    icon = yaml.safe_load((CHART / "Chart.yaml").read_text())["icon"]
    assert (ROOT / icon.partition("/raw/main/")[2]).read_bytes().startswith(b"<svg")


# ---------------------------------------------------------------------------------------------------- schema


def test_the_schema_is_as_it_would_be_written_now() -> None:
    assert generate.SCHEMA.read_text(encoding="utf-8") == generate.render(), "run: python deploy/helm/generate.py"


def test_every_value_is_described_and_in_the_schema() -> None:
    schema = generate.document()

    def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from places(inner, (*path, name))
        else:
            yield path

    described = [path for path, _, _ in generate.described()]
    assert len(described) == len(set(described)) > 100
    for path in places(generate.values()):
        at = schema
        for part in path:
            if at.get("additionalProperties") is not False:
                break  # resources, labels and the like are described as a whole
            at = at["properties"][part]
        names = {".".join(path[:end]) for end in range(1, len(path) + 1)}
        assert names & set(described), path


def test_our_levels_take_no_other_names() -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            for name, inner in schema["properties"].items():
                walk(inner, f"{path}.{name}")

    schema = generate.document()
    walk(schema, "")
    for name, definition in schema["definitions"].items():
        walk(definition, name)


@pytest.mark.parametrize(("values", "sentence"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_wrong_value_is_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HelmRefused) as caught:
        template(with_ledger(values))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("values", "api"),
    [
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, APIS[0]),
        ({"metrics": {"prometheusRule": {"enabled": True}}}, APIS[0]),
        ({"worker": SETS["worker-keda"]["worker"]}, APIS[1]),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "front"}]}}, APIS[2]),
    ],
)
def test_what_the_cluster_does_not_know_is_refused(values: dict[str, Any], api: str) -> None:
    with pytest.raises(HelmRefused, match=f"this cluster has no {re.escape(api)}"):
        template(with_ledger(values), apis=())


def test_a_hook_that_sleeps_needs_a_cluster_that_knows_it() -> None:
    with pytest.raises(HelmRefused, match=r"Kubernetes v1\.29\.0 has no preStop sleep"):
        template(with_ledger(SLEEPING), version="1.29.0")
    (pod, *_) = (pod for _, pod in pods(of_kind(template(with_ledger(SLEEPING), version="1.30.0"), "Deployment")))
    assert pod["spec"]["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60


def test_an_old_cluster_is_refused() -> None:
    with pytest.raises(HelmRefused, match="chart requires kubeVersion"):
        template(LEDGER, version="1.24.9")


# ---------------------------------------------------------------------------------------------------- lint


@pytest.mark.parametrize("name", SETS)
def test_helm_lint(name: str) -> None:
    values = with_ledger(SETS[name])
    values = {**values, "metrics": {}, "httpRoute": {}}  # lint knows no cluster: what is foreign is refused there
    for role in ("api", "worker"):
        if values.get(role, {}).get("autoscaling", {}).get("kind") == "keda":
            values = {**values, role: {}}
    said = helm("lint", str(CHART), "--strict", "--kube-version", "1.34.0", values=values)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


# ------------------------------------------------------------------------------------ Kubernetes' own schemas


@pytest.fixture(scope="session")
def invalid() -> dict[str, list[str]]:
    """Set -> what Kubernetes, in any version, would not take of it."""
    places: dict[str, list[str]] = {}
    for name in SETS:
        for each in rendered(name):
            if each["kind"] not in FOREIGN:
                places.setdefault(json.dumps(each, sort_keys=True), []).append(name)
    found = validate([json.loads(text) for text in places], VERSIONS)
    failures: dict[str, list[str]] = {name: [] for name in SETS}
    for (index, version, what), names in ((each, list(places.values())[each[0]]) for each in found):
        document = json.loads(list(places)[index])
        for name in names:
            failures[name].append(f"{version} {document['kind']} {document['metadata']['name']} {what}")
    return failures


@pytest.mark.parametrize("name", SETS)
def test_every_version_of_kubernetes_takes_it(name: str, invalid: dict[str, list[str]]) -> None:
    assert invalid[name] == []


def test_the_validation_can_fail() -> None:
    (deployment, *_) = json.loads(json.dumps(of_kind(rendered("least"), "Deployment")))
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    assert [version for _, version, _ in validate([deployment], ("1.25", "1.37"))] == ["1.25", "1.37"]


def test_a_hook_that_sleeps_is_valid() -> None:
    objects = [each for each in template(with_ledger(SLEEPING)) if each["kind"] == "Deployment"]
    assert validate(objects, tuple(version for version in VERSIONS if version >= "1.30")) == []


# ------------------------------------------------------------------------------------------ what we promise


@pytest.mark.parametrize("name", SETS)
def test_pods_are_restricted(name: str) -> None:
    for maker, pod in pods(rendered(name)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, maker
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0 if name != "openshift" else "runAsUser" not in security
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
            assert {"requests", "limits"} <= container["resources"].keys()
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}, maker
        for volume in spec["volumes"]:
            assert "hostPath" not in volume


@pytest.mark.parametrize("name", SETS)
def test_names_labels_and_references_fit(name: str) -> None:
    objects = rendered(name)
    keys = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))
    made = {kind: {other for of, other in keys if of == kind} for kind, _ in keys}
    for each in objects:
        labels = each["metadata"]["labels"]
        assert len(each["metadata"]["name"]) <= 63
        assert each["metadata"]["namespace"] == "messaging"
        assert labels["app.kubernetes.io/instance"] == "orders"
        assert {"app.kubernetes.io/name", "app.kubernetes.io/version", "helm.sh/chart"} <= labels.keys()
        assert labels.items() >= SETS[name].get("commonLabels", {}).items()
    running = of_kind(objects, "Deployment")
    for each in running:
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert labels.items() >= each["spec"]["selector"]["matchLabels"].items()
        ports = {
            port["name"]: port["containerPort"] for port in each["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        container = each["spec"]["template"]["spec"]["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        account = each["spec"]["template"]["spec"]["serviceAccountName"]
        assert account in made.get("ServiceAccount", {account})
    for service in of_kind(objects, "Service"):
        behind = [
            each for each in running
            if each["spec"]["template"]["metadata"]["labels"].items() >= service["spec"]["selector"].items()
        ]  # fmt: skip
        assert behind, service["metadata"]["name"]
        for each in behind:
            ports = {port["name"] for port in each["spec"]["template"]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for kind in ("PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject"):
        for each in of_kind(objects, kind):
            assert each["metadata"]["name"] in made["Deployment"]


@pytest.mark.parametrize("name", SETS)
def test_settings_and_commands_are_the_gateways(name: str, tmp_path: Path) -> None:
    objects = rendered(name)
    (settings,) = (
        each["data"]["gateway.json"] for each in of_kind(objects, "ConfigMap") if "gateway.json" in each["data"]
    )
    path = tmp_path / "gateway.json"
    path.write_text(settings)
    for _, pod in pods(objects):
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            if container["name"] in ("helper", "first"):
                continue  # somebody else's
            if container["name"] == "test":
                compile(container["args"][0], "test.py", "exec")
                continue
            program, verb, *arguments = container["command"]
            command = cli.get_command(click.Context(cli), verb)
            assert program == "gateway"
            assert command is not None
            parsed = command.make_context(verb, list(arguments)).params
            if verb != "serve":
                continue
            environ = {each["name"]: each.get("value", "10.1.2.3") for each in container["env"]}
            if (file := environ.pop("GATEWAY_LEDGER_URL_FILE", None)) is not None:
                assert secret_of(pod["spec"], container, file) == ledger_secret(SETS[name])
            environ["GATEWAY_LEDGER_URL"] = "postgresql://db/gateway"
            config = load(path, environ, {"role": parsed["role"]})
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert (config.http.port, config.ops.port) == (ports.get("http", config.http.port), ports["ops"])
            assert config.role == pod["metadata"]["labels"]["app.kubernetes.io/component"] or config.role == "all"
            grace = pod["spec"]["terminationGracePeriodSeconds"]
            assert grace >= config.http.drain_delay + config.http.drain_timeout + 10
            asked = SETS[name].get("config", {})
            assert set(config.brokers) == set(asked.get("brokers", {}))
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            for file in (config.cluster.secret_file, config.ledger.secrets_file):
                assert not file or os.path.dirname(file) in mounts


def secret_of(spec: Object, container: Object, file: str) -> tuple[str, str]:
    """The Secret and its key of which a container finds the text in a file."""
    mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    mount = mounted[os.path.dirname(file)]
    assert mount["readOnly"] is True
    (volume,) = (each["secret"] for each in spec["volumes"] if each["name"] == mount["name"])
    assert volume["defaultMode"] == 0o440
    (item,) = volume["items"]
    assert item["path"] == os.path.basename(file)
    return volume["secretName"], item["key"]


def ledger_secret(values: dict[str, Any]) -> tuple[str, str]:
    """Where the ledger's URL is, by the values."""
    ledger = with_ledger(values)["ledger"]
    if "existingSecret" not in ledger:
        return "orders-amqp-gateway-ledger", "url"
    return ledger["existingSecret"], ledger.get("existingSecretKey", "url")


@pytest.mark.parametrize("name", SETS)
def test_secrets_are_files_unless_asked_otherwise(name: str) -> None:
    as_files = SETS[name].get("secretsAs", "file") == "file"
    sqlite = SETS[name].get("ledger", {}).get("kind") == "sqlite"
    seen = 0
    for maker, pod in pods(rendered(name)):
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            if container["name"] in ("helper", "first"):
                continue  # somebody else's
            variables = {each["name"]: each for each in container["env"]}
            if as_files:
                assert not any("secretKeyRef" in each.get("valueFrom", {}) for each in variables.values()), maker
            if container["name"] == "test":
                wanted, secret = "GATEWAY_API_KEY", SETS[name].get("test", {}).get("existingSecret")
            else:
                wanted, secret = "GATEWAY_LEDGER_URL", None if sqlite else ledger_secret(SETS[name])[0]
            assert (wanted in variables, f"{wanted}_FILE" in variables) == (
                (False, False) if secret is None else (not as_files, as_files)
            ), maker
            if secret is not None and as_files:
                assert secret_of(pod["spec"], container, variables[f"{wanted}_FILE"]["value"])[0] == secret
            elif secret is not None:
                assert variables[wanted]["valueFrom"]["secretKeyRef"]["name"] == secret
            seen += 1
    assert seen >= (1 if sqlite else 2)


@pytest.mark.parametrize("role", ["api", "worker"])
def test_one_autoscaler_at_most(role: str) -> None:
    for kind, scaler in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        objects = rendered(f"{role}-{kind}")
        assert [each["metadata"]["name"] for each in of_kind(objects, scaler)] == [f"orders-amqp-gateway-{role}"]
        assert len([each for each in objects if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]) == 1
        (deployment,) = (each for each in of_kind(objects, "Deployment") if each["metadata"]["name"].endswith(role))
        assert "replicas" not in deployment["spec"]
    for name, budgets in ((f"{role}-one", 1), (f"{role}-hpa-one", 1), ("least", 2), (f"{role}-no-budget", 1)):
        assert len(of_kind(rendered(name), "PodDisruptionBudget")) == budgets, name


def test_migrations_by_choice() -> None:
    def inits(name: str) -> list[Any]:
        return [pod["spec"].get("initContainers") for _, pod in pods(of_kind(rendered(name), "Deployment"))]

    (job,) = (each for each in of_kind(rendered("least"), "Job") if each["metadata"]["name"].endswith("migrate"))
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == ["gateway", "migrate", "--wait", "120"]
    assert inits("least") == [None, None]
    for each in inits("migrate-init"):
        assert [container["command"] for container in each] == [command]
    for name in ("migrate-init", "migrate-off", "sqlite"):
        assert not [each for each in of_kind(rendered(name), "Job") if each["metadata"]["name"].endswith("migrate")]
    assert inits("migrate-off") == [None, None]


def test_pods_that_run_once_take_what_the_others_do() -> None:
    """A database with a CA of its own, dedicated nodes, a mesh whose sidecar never ends."""
    for name, wanted in (("once", {"migrate", "test"}), ("once-env", {"migrate"})):
        found = {}
        for job in of_kind(rendered(name), "Job"):
            pod = job["spec"]["template"]
            found[pod["metadata"]["labels"]["app.kubernetes.io/component"]] = pod
        for each in wanted:
            spec, container = found[each]["spec"], found[each]["spec"]["containers"][0]
            assert found[each]["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
            assert found[each]["metadata"]["labels"]["team"] == "orders"
            assert spec["tolerations"] == ONCE["tolerations"]
            assert spec["nodeSelector"] == ONCE["nodeSelector"]
            assert spec["affinity"] == ONCE["affinity"]
            assert spec["priorityClassName"] == "high"
            assert container["envFrom"] == ONCE["extraEnvFrom"]
            assert ONCE["extraEnv"][0] in container["env"]
            assert CA["extraVolumes"][0] in spec["volumes"]
            assert CA["extraVolumeMounts"][0] in container["volumeMounts"]
    (init,) = next(iter(pods(of_kind(rendered("once-init"), "Deployment"))))[1]["spec"]["initContainers"]
    assert CA["extraVolumeMounts"][0] in init["volumeMounts"]
    assert init["envFrom"] == ONCE["extraEnvFrom"]


def test_the_account_of_the_migration_is_there_before_it() -> None:
    objects = rendered("account")
    (job,) = (each for each in of_kind(objects, "Job") if each["metadata"]["name"].endswith("migrate"))
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    (made,) = (each for each in of_kind(objects, "ServiceAccount") if each["metadata"]["name"] == account)
    annotations = made["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert annotations["eks.example/role"] == "arn"
    assert int(annotations["helm.sh/hook-weight"]) < int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
    for name, wanted in (("foreign-account", "robot"), ("migrate-account", "migrator"), ("no-account", "default")):
        (job,) = (each for each in of_kind(rendered(name), "Job") if each["metadata"]["name"].endswith("migrate"))
        assert job["spec"]["template"]["spec"]["serviceAccountName"] == wanted


def test_common_annotations_are_everywhere() -> None:
    for name in ("annotated", "annotated-sqlite"):
        for each in rendered(name):
            assert each["metadata"]["annotations"]["a.example/owner"] == "orders", each["kind"]
        for maker, pod in pods(rendered(name)):
            assert pod["metadata"]["annotations"]["a.example/owner"] == "orders", maker


def test_ingress_paths_and_certificates() -> None:
    (ingress,) = of_kind(rendered("ingress-paths"), "Ingress")
    rules = {rule["host"]: rule["http"]["paths"] for rule in ingress["spec"]["rules"]}
    assert [(path["path"], path["pathType"]) for path in rules["a.example"]] == [("/", "Prefix")]
    assert [(path["path"], path["pathType"]) for path in rules["b.example"]] == [
        ("/v1", "Prefix"),
        ("/healthz", "Exact"),
    ]
    assert [tls["secretName"] for tls in ingress["spec"]["tls"]] == ["tls-a", "tls-b"]


def test_sqlite_is_one_process_with_a_volume() -> None:
    objects = rendered("sqlite")
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert deployment["spec"]["replicas"] == 1
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][-2:] == ["--role", "all"]
    assert not [each for each in container["env"] if each["name"].startswith("GATEWAY_LEDGER_URL")]
    (claim,) = of_kind(objects, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not of_kind(rendered("sqlite-claim"), "PersistentVolumeClaim")


def test_a_change_of_the_settings_rolls_the_pods() -> None:
    def sums(values: dict[str, Any]) -> set[str]:
        made = pods(of_kind(template(with_ledger(values)), "Deployment"))
        return {pod["metadata"]["annotations"]["checksum/config"] for _, pod in made}

    before, after = sums({}), sums({"config": {"log_level": "debug"}})
    assert len(before) == len(after) == 1
    assert before != after
    assert sums({"api": {"replicas": 7}}) == before


def test_secrets_stand_in_no_settings() -> None:
    text = json.dumps([each for each in rendered("trial-url") if each["kind"] != "Secret"])
    assert "gateway:secret@" not in text
    (secret,) = of_kind(rendered("trial-url"), "Secret")
    assert secret["stringData"] == {"url": "postgresql://gateway:secret@db/gateway"}
    assert "pre-install" in secret["metadata"]["annotations"]["helm.sh/hook"]
    assert not of_kind(rendered("least"), "Secret")


def test_policies_hold_both_ways() -> None:
    (policy,) = (
        each
        for each in of_kind(rendered("narrow-policy"), "NetworkPolicy")
        if each["metadata"]["name"].endswith("gateway")
    )
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    ports = [[port["port"] for port in rule["ports"]] for rule in spec["egress"]]
    assert ports == [[53, 53], [9470], [8080], [6432], [5671], [4317]]
    assert [rule["ports"][0]["port"] for rule in spec["ingress"]] == [8080, 8081, 9470]
    assert all(rule.get("from") for rule in spec["ingress"])
    (policy, *_) = of_kind(rendered("least"), "NetworkPolicy")
    (outside,) = (rule for rule in policy["spec"]["egress"] if rule["ports"][0]["port"] == 443)
    assert "169.254.0.0/16" in outside["to"][0]["ipBlock"]["except"]
    assert outside["to"][1]["ipBlock"]["cidr"] == "::/0"
    assert "fc00::/7" in outside["to"][1]["ipBlock"]["except"]
    assert not of_kind(rendered("no-policy"), "NetworkPolicy")
    for name, wanted in (
        ("least", []),
        ("tracing", [{"namespaceSelector": {"matchLabels": {"name": "tracing"}}}]),
        ("tracing-anywhere", None),
    ):
        (policy, *_) = of_kind(rendered(name), "NetworkPolicy")
        rules = [rule for rule in policy["spec"]["egress"] if rule["ports"][0]["port"] == 4318]
        assert len(rules) == (name != "least")
        assert all(rule.get("to") == wanted for rule in rules)


def test_fronts_have_ports_and_a_service() -> None:
    found = rendered("fronts")
    (service,) = (each for each in of_kind(found, "Service") if each["metadata"]["name"].endswith("-fronts"))
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["metadata"]["labels"]["a"] == "b"
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert ports == {"front-0": 5673, "front-1": 5671}
    pods = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in of_kind(found, "Deployment")}
    (api,) = (spec for name, spec in pods.items() if name.endswith("-api"))
    assert ports.items() <= {each["name"]: each["containerPort"] for each in api["containers"][0]["ports"]}.items()
    for name, spec in pods.items():
        if not name.endswith("-api"):
            assert not [each for each in spec["containers"][0]["ports"] if each["name"].startswith("front-")]
    (policy, *_) = of_kind(found, "NetworkPolicy")
    (rule,) = (each for each in policy["spec"]["ingress"] if {"port": 5673} in each["ports"])
    assert rule == {"ports": [{"port": 5673}, {"port": 5671}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    (config,) = (each for each in of_kind(found, "ConfigMap") if each["metadata"]["name"].endswith("-config"))
    fronts = json.loads(next(iter(config["data"].values())))["fronts"]
    assert [fronts[name]["host"] for name in ("legacy", "secure")] == ["0.0.0.0", "0.0.0.0"]
    assert not [each for each in of_kind(rendered("least"), "Service") if each["metadata"]["name"].endswith("-fronts")]


def test_alerts_are_the_rules_with_our_runbooks() -> None:
    groups = of_kind(rendered("rules"), "PrometheusRule")[0]["spec"]["groups"]
    given = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert rules
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/runbooks/{rule['alert']}.md"
        rule["annotations"]["runbook_url"] = f"https://example.com/amqp-gateway/runbooks/{rule['alert']}.md"
    assert groups == given, "nothing else is changed, braces included"


def test_dashboards_are_mounted_as_they_are() -> None:
    (shown,) = (
        each for each in of_kind(rendered("dashboards"), "ConfigMap") if each["metadata"]["name"].endswith("dashboards")
    )
    files = sorted((CHART / "files" / "dashboards").glob("*.json"))
    assert len(files) == 4
    assert {name: json.loads(text) for name, text in shown["data"].items()} == {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in files
    }


def test_the_notes_say_what_is_next() -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    assert re.findall(r"^  (\d)\. ", text, re.MULTILINE) == ["1", "2", "3"]


def test_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == __version__


# --------------------------------------------------------------------------------------------------- checkov


@pytest.mark.slow
def test_checkov_finds_nothing(tmp_path: Path) -> None:
    assert len(SKIPPED) <= 2
    page = (ROOT / "docs" / "how-to" / "deployment.md").read_text(encoding="utf-8")
    for name, why in SKIPPED.items():
        assert f"| `{name}` | {why} |" in page
    for name in ("production", "sqlite", "migrate-init"):
        values = {**SETS[name], "image": SETS["production"]["image"]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(template(with_ledger(values))))
    done = subprocess.run(
        [
            str(TOOLS / "checkov" / "bin" / "checkov"), "--directory", str(tmp_path), "--framework", "kubernetes",
            "--skip-download", "--skip-check", ",".join(SKIPPED), "--output", "json", "--compact",
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    failed = [
        f"{each['check_id']} {each['check_name']}: {each['resource']}" for each in found["results"]["failed_checks"]
    ]
    assert failed == []
    assert found["summary"]["passed"] > 200
