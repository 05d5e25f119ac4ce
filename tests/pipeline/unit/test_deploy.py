"""What is in ``deploy/spark``: manifests that a cluster would take, with arguments that the command line takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import click
import pytest
import yaml

from gateway import __version__
from gateway.commands import cli
from gateway.pipeline.cli import pipeline
from gateway.pipeline.jobs.base import JOBS
from gateway.pipeline.settings import load

ROOT = Path(__file__).resolve().parents[3]
SPARK = ROOT / "deploy" / "spark"
MANIFESTS = sorted((SPARK / "kubernetes").glob("*.yaml"))
BROWSER = ("api", "console", "vendor")
"""Folders of files for browsers, which no Spark job reads."""
DOCKERFILE = (SPARK / "Dockerfile").read_text(encoding="utf-8")


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path, document


DOCUMENTS = list(documents())
APPLICATIONS = [
    pytest.param(document, id=path.stem)
    for path, document in DOCUMENTS
    if document["kind"].endswith("SparkApplication")
]


def application(document: dict[str, Any]) -> dict[str, Any]:
    """The specification of an application, or that of a scheduled one's template."""
    spec: dict[str, Any] = document["spec"]
    return spec["template"] if document["kind"] == "ScheduledSparkApplication" else spec


def parsed(group: click.Group, arguments: list[str]) -> list[str]:
    """The names of the commands that these arguments lead to, all their options taken by the last one's own parser."""
    command: click.Command = group
    context: click.Context | None = None
    names: list[str] = []
    left = arguments
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=command.name)
        following = command.get_command(context, left[0])
        assert following is not None, left
        names.append(left[0])
        command, left = following, left[1:]
    command.make_context(names[-1], list(left), parent=context)  # raises where it does not take them
    return names


def settings() -> dict[str, Any]:
    """What the config map says."""
    (found,) = [document["data"] for _, document in DOCUMENTS if document["kind"] == "ConfigMap"]
    return found


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GATEWAY_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("document", APPLICATIONS)
def test_the_arguments_are_those_of_the_command_line(document: dict[str, Any]) -> None:
    arguments = application(document)["arguments"]
    assert all(isinstance(argument, str) for argument in arguments), "a number is no argument"
    verb, job = parsed(pipeline, arguments)
    assert verb == "run"
    assert document["metadata"]["name"] == f"amqp-gateway-{job}"


def test_arguments_that_nobody_takes_are_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(pipeline, ["run", "rollup", "--sinse", "1h"])
    with pytest.raises(click.MissingParameter):
        parsed(pipeline, ["run", "retention"])


def test_there_is_one_for_every_job_that_runs_by_the_clock() -> None:
    there = {document.values[0]["metadata"]["name"].removeprefix("amqp-gateway-") for document in APPLICATIONS}
    assert there == JOBS.keys() - {"replay", "transfer"}


@pytest.mark.parametrize("document", APPLICATIONS)
def test_an_application_is_one_that_the_operator_knows(document: dict[str, Any]) -> None:
    assert document["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    spec = application(document)
    assert (spec["type"], spec["mode"], spec["pythonVersion"]) == ("Python", "cluster", "3")
    if document["kind"] == "ScheduledSparkApplication":
        assert document["spec"]["concurrencyPolicy"] == "Forbid"
        assert re.fullmatch(r"(\S+ ){4}\S+", document["spec"]["schedule"])
    else:
        assert spec["restartPolicy"]["type"] == "Always"


@pytest.mark.parametrize("document", APPLICATIONS)
def test_an_application_finds_what_it_names(document: dict[str, Any]) -> None:
    spec = application(document)
    assert spec["image"] == f"amqp-gateway-spark:{__version__}"
    assert spec["mainApplicationFile"] == "local:///opt/pipeline.py"
    named = {(found["kind"], found["metadata"]["name"]) for _, found in DOCUMENTS}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert ("PersistentVolumeClaim", volumes["data"]["persistentVolumeClaim"]["claimName"]) in named
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in named
    assert ("ServiceAccount", spec["driver"]["serviceAccount"]) in named
    for role in ("driver", "executor"):
        mounts = {mount["name"]: mount["mountPath"] for mount in spec[role]["volumeMounts"]}
        assert mounts == {"data": "/data", "settings": "/etc/amqp-gateway"}
    config = spec["arguments"][spec["arguments"].index("--config") + 1]
    assert config == f"/etc/amqp-gateway/{next(iter(settings()))}"


@pytest.mark.parametrize("document", APPLICATIONS)
def test_the_key_is_a_secret_and_no_setting_of_spark(document: dict[str, Any]) -> None:
    spec = application(document)
    for role in ("driver", "executor"):
        (variable,) = spec[role]["env"]
        assert variable["name"] == "GATEWAY_API_KEY"
        assert variable["valueFrom"]["secretKeyRef"]["key"] == "api-key"
    assert not re.search(r"key|secret|password|token", str(spec["sparkConf"]), re.IGNORECASE)


@pytest.mark.parametrize("document", APPLICATIONS)
def test_its_pods_are_restricted(document: dict[str, Any]) -> None:
    user = re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert user is not None
    for role in ("driver", "executor"):
        spec = application(document)[role]
        assert spec["podSecurityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(user[1]),
            "fsGroup": int(user[1]),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert spec["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("document", APPLICATIONS)
def test_the_version_of_spark_is_the_locked_one(document: dict[str, Any]) -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (version,) = [package["version"] for package in lock["package"] if package["name"] == "pyspark"]
    assert application(document)["sparkVersion"] == version


def test_the_settings_are_settings(tmp_path: Path) -> None:
    for name, text in settings().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found = load(tmp_path / name, {}, {})
        assert (found.settings.archive, found.storage, found.settings.jars) == ("delta", "/data", "/opt/delta")


def test_the_crontab_calls_what_there_is() -> None:
    jobs = []
    for line in (SPARK / "crontab").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#") or re.match(r"[A-Z_]+=", line):
            continue
        assert re.match(r"(\S+ +){5}flock -n \$LOCKS/\S+ gateway ", line), line
        words = shlex.split(line.partition(" gateway ")[2])
        end = next(at for at, word in enumerate(words) if word.startswith((">", "2>")))
        jobs.append(parsed(cli, words[:end])[-1])
    assert sorted(jobs) == sorted(JOBS.keys() - {"replay", "transfer"})


def test_the_image_holds_what_its_lines_name() -> None:
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
    variables = dict(re.findall(r"([A-Z_]+)=(\S+)", DOCKERFILE.partition("ENV ")[2].partition("\nRUN")[0]))
    found = load(None, {}, variables)
    assert (found.settings.archive, found.settings.jars, found.storage) == ("delta", "/opt/delta", "/data")
    assert "--require-hashes --requirement uv.txt" in DOCKERFILE


def entrypoint(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """What the entrypoint runs, each argument as a line of its own."""
    for name in ("bin/spark-submit", "bin/java"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin", "SPARK_HOME": str(folder), "JAVA_HOME": str(folder), **variables}
    done = subprocess.run(
        ["sh", str(SPARK / "entrypoint.sh"), *arguments], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_container_is_a_driver(tmp_path: Path) -> None:
    said = entrypoint(tmp_path, "driver", "--conf", "a=b c", "local:///x.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    assert said == [
        f"{tmp_path}/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7", "--deploy-mode", "client",
        "--conf", "a=b c", "local:///x.py",
    ]  # fmt: skip


def test_the_container_is_an_executor(tmp_path: Path) -> None:
    variables = {
        "SPARK_EXECUTOR_MEMORY": "4g", "SPARK_DRIVER_URL": "spark://d:1", "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd=$HOME", "SPARK_CLASSPATH": "/x",
    }  # fmt: skip
    said = entrypoint(tmp_path, "executor", **variables)
    assert said[:7] == [
        f"{tmp_path}/bin/java",
        "-Da=b c",
        "-Dd=$HOME",
        "-Xms4g",
        "-Xmx4g",
        "-cp",
        f"/x:{tmp_path}/jars/*",
    ]
    assert said[7].endswith("KubernetesExecutorBackend")
    assert dict(zip(said[8::2], said[9::2], strict=True)) == {
        "--driver-url": "spark://d:1", "--executor-id": "7", "--cores": "2", "--app-id": "app",
        "--hostname": "10.0.0.8", "--resourceProfileId": "0", "--podName": "pod",
    }  # fmt: skip


def test_the_container_is_any_command(tmp_path: Path) -> None:
    assert entrypoint(tmp_path, "echo", "a b") == ["a b"]


def test_the_package_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    for target in (first, second):
        subprocess.run([sys.executable, str(SPARK / "package.py"), str(target)], check=True, capture_output=True)
    assert first.read_bytes() == second.read_bytes()
    names = set(ZipFile(first).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for package in ("gateway", "pyspark_gateway")
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (path.suffix == ".py" or path.parent.name not in BROWSER)
    } - {"gateway/README.md"}
    assert wanted <= names, wanted - names
    # From the package alone: no folder of the sources is on the path.
    code = (
        "import gateway, gateway.pipeline.cli; from importlib.resources import files;"
        "print(gateway.__file__, len(list(files('gateway.pipeline').joinpath('sql').iterdir())))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(first), "PATH": "/usr/bin:/bin"}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, _, scripts = done.stdout.partition(" ")
    assert where.startswith(str(first))
    assert int(scripts) == len(list((ROOT / "gateway" / "pipeline" / "sql").glob("*.sql")))
