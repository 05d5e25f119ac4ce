"""What goes into a cluster besides the chart: Spark's manifests, and the script that tries the chart in a real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import ROOT, TOOLS, Object, template, validate
from tests.deploy.sets import KIND

HERE = Path(__file__).parent
PLAIN = {
    path: [
        document
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if not document["kind"].endswith("SparkApplication")
    ]
    for path in (HERE / "kind" / "servers.yaml", *sorted((ROOT / "deploy" / "spark" / "kubernetes").glob("*.yaml")))
}
"""File -> its objects that Kubernetes itself knows."""
PROGRAMS = ("docker", "kind", "kubectl", "helm", "openssl")
RECORDS = """#!/bin/sh
printf '%s %s\\n' "${0##*/}" "$*" >> "$RECORD"
case "${0##*/} $*" in
"$FAILS"*) [ -n "$FAILS" ] && exit 3 ;;
esac
case "${0##*/} $1" in openssl*) echo 0123456789abcdef ;; esac
exit 0
"""
"""Stands for a program: writes down what it was asked for, and fails where it is told to."""


def test_every_version_of_kubernetes_takes_the_manifests() -> None:
    objects: list[Object] = [document for documents in PLAIN.values() for document in documents]
    assert {each["kind"] for each in objects} >= {"ConfigMap", "PersistentVolumeClaim", "Role", "Deployment"}
    assert validate(objects) == []


def test_what_the_manifests_lack_is_noticed() -> None:
    (claim,) = (
        document
        for documents in PLAIN.values()
        for document in documents
        if document["kind"] == "PersistentVolumeClaim"
    )
    wrong = {**claim, "spec": {**claim["spec"], "accessMode": "ReadWriteMany"}}
    assert [version for _, version, _ in validate([wrong], ("1.25", "1.37"))] == ["1.25", "1.37"]


@pytest.mark.slow
def test_checkov_finds_nothing_in_what_the_jobs_share(tmp_path: Path) -> None:
    objects = [each for path, documents in PLAIN.items() if "spark" in path.parts for each in documents]
    (tmp_path / "spark.yaml").write_text(yaml.safe_dump_all(placed(each) for each in objects), encoding="utf-8")
    done = subprocess.run(
        [str(TOOLS / "checkov" / "bin" / "checkov"), "--directory", str(tmp_path), "--framework", "kubernetes",
         "--skip-download", "--compact", "--quiet"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def placed(document: dict[str, Any]) -> dict[str, Any]:
    """An object in a namespace of its own, as whoever applies it says."""
    return {**document, "metadata": {**document["metadata"], "namespace": "messaging"}}


# -------------------------------------------------------------------------------------------- the chart's trial


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """One in which the programs of a cluster only write down what they are asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(RECORDS, encoding="utf-8")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "RECORD": str(tmp_path / "record"), "FAILS": ""}


def trial(environ: dict[str, str]) -> tuple[int, list[str]]:
    """The script's status, and what it asked for."""
    done = subprocess.run(
        [str(HERE / "kind.sh"), "amqp-gateway:ci"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, Path(environ["RECORD"]).read_text(encoding="utf-8").splitlines()


def test_the_trial_asks_for_what_the_chart_has(environ: dict[str, str]) -> None:
    status, asked = trial(environ)
    assert status == 0
    assert asked[0].startswith("kind create cluster")
    assert asked[-1] == "kind delete cluster --name amqp-gateway-test"
    verbs = [line.split()[3] for line in asked if line.startswith("helm ")]
    assert verbs == ["upgrade", "test", "upgrade", "test", "rollback", "test", "test", "uninstall"]
    made = {line.split()[6] for line in asked if "create secret generic" in line}
    wanted = {"gateway-db", "gateway-cluster", "gateway-seal", "gateway-rabbitmq", "gateway-keys"}
    assert made == wanted | {"servers"}
    named = {
        volume["secret"]["secretName"]
        for each in template(KIND, release="gateway")
        if "template" in each.get("spec", {})
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert named == wanted
    waited = {word.removeprefix("deployment/") for line in asked for word in line.split() if "deployment/" in word}
    deployments = {
        each["metadata"]["name"] for each in template(KIND, release="gateway") if each["kind"] == "Deployment"
    }
    assert waited == deployments | {"postgresql", "rabbitmq"}
    (install, *_) = (line for line in asked if line.startswith("helm "))
    assert "--set image.repository=amqp-gateway --set image.tag=ci" in install


@pytest.mark.parametrize("fails", ["kind load", "helm --namespace messaging test", "kubectl -n servers rollout"])
def test_a_trial_that_fails_says_so_and_leaves_no_cluster(environ: dict[str, str], fails: str) -> None:
    status, asked = trial({**environ, "FAILS": fails})
    assert status == 3
    assert asked[-1] == "kind delete cluster --name amqp-gateway-test"
    assert any("logs --all-containers" in line for line in asked)


def test_a_trial_without_its_programs_makes_nothing(environ: dict[str, str]) -> None:
    missing = Path(environ["PATH"].partition(":")[0]) / "kind"
    os.remove(missing)
    done = subprocess.run(
        [str(HERE / "kind.sh"), "amqp-gateway:ci"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "there is no kind" in done.stderr
    assert not Path(environ["RECORD"]).exists()
