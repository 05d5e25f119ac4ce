"""What Spark is told, and what is said where Java or PySpark are not as they must be. No Spark is started here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from gateway.errors import ConfigurationError, JavaMissing, SparkMissing
from gateway.exits import MISSING, exit_status
from gateway.pipeline import session
from gateway.pipeline.settings import Pipeline, load

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was found before is looked for again."""
    session.java.cache_clear()
    yield
    session.java.cache_clear()


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> Path:
    """A Java that says this."""
    java = folder / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return java


def test_java_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = pretend(tmp_path, monkeypatch, OPENJDK_17)
    assert session.java() == (str(java), 17)


def test_java_home_counts_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    java = pretend(tmp_path / "bin", monkeypatch, OPENJDK_17.replace("17.0.15", "21.0.2"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session.subprocess, "run", _with_path(session.subprocess.run))
    assert session.java() == (str(java), 21)


def _with_path(run):  # type: ignore[no-untyped-def]
    return lambda *arguments, **options: run(*arguments, env={"PATH": "/usr/bin:/bin"}, **options)


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JavaMissing, match="there is none on the PATH: install openjdk-17-jre-headless") as caught:
        session.java()
    assert exit_status(type(caught.value)) == MISSING
    monkeypatch.setenv("JAVA_HOME", "/nowhere/jdk")
    with pytest.raises(JavaMissing, match="there is none in JAVA_HOME=/nowhere/jdk"):
        session.java()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11, and Spark needs 17 or later: install openjdk-17"),
        ('java version "1.8.0_412"', "is Java 8, and Spark needs 17"),
        ("The operation couldn't be completed", "does not say its version"),
    ],
)
def test_a_java_that_does_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str) -> None:
    pretend(tmp_path, monkeypatch, said)
    with pytest.raises(JavaMissing, match=sentence):
        session.java()


def test_a_java_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, "").write_bytes(b"\x7fELF no program")
    with pytest.raises(JavaMissing, match=r"does not run: .* Install openjdk-17"):
        session.java()


def test_the_versions_that_are_installed_do() -> None:
    assert list(session.check_versions()) == ["pyspark", "pyarrow", "pandas"]


@pytest.mark.parametrize(
    ("package", "version", "said"),
    [
        ("pyspark", "4.1.1", "pyspark is 4.1.1; the pipeline works with 4.2 and later, before 4.4"),
        ("pandas", "3.0.0", "pandas is 3.0.0; the pipeline works with 2.2 and later, before 3.0"),
        ("pyarrow", "17", "pyarrow is 17; the pipeline works with 18.0 and later: pip"),
        ("pandas", None, r"pandas is not installed: pip install 'amqp-gateway\[spark\]'"),
    ],
)
def test_a_package_that_does_not_do(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, said: str
) -> None:
    there = metadata.version

    def pretended(name: str) -> str:
        if name != package:
            return there(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(session.metadata, "version", pretended)
    with pytest.raises(SparkMissing, match=said):
        session.check_versions()


def test_a_session_without_pyspark_is_refused_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(session.metadata, "version", missing)
    with pytest.raises(SparkMissing, match="pyspark is not installed"):
        session.spark_session(Pipeline())


def test_a_driver_on_this_machine_listens_to_nobody_else(tmp_path: Path) -> None:
    for master in ("local", "local[*]", "local[2,4]", "spark://127.0.0.1:7077", "spark://localhost:7077"):
        assert session.settings_of(Pipeline(), master, tmp_path)["spark.driver.host"] == "127.0.0.1"
    for master in ("spark://spark.internal:7077", "k8s://https://10.0.0.1", "yarn", "local-cluster[2,1,1024]"):
        assert "spark.driver.host" not in session.settings_of(Pipeline(), master, tmp_path)


def test_no_secret_is_among_the_settings(tmp_path: Path) -> None:
    pipeline = load(
        None, {"api_key": "swordfish", "direct": True}, {"GATEWAY_LEDGER_URL": "postgresql://u:swordfish@h/d"}
    )
    assert "swordfish" in pipeline.ledger_dsn
    assert "swordfish" not in str(session.settings_of(pipeline, "local", tmp_path))


def test_what_a_run_needs_only_while_it_lasts_is_in_its_folder(tmp_path: Path) -> None:
    found = session.settings_of(Pipeline(), "local", tmp_path)
    assert found["spark.local.dir"] == str(tmp_path)
    assert f"-Djava.io.tmpdir={tmp_path}" in found["spark.driver.extraJavaOptions"]


def test_delta_comes_with_its_jars(tmp_path: Path) -> None:
    pipeline = Pipeline(settings=msgspec.structs.replace(Pipeline().settings, jars=str(tmp_path)))
    with pytest.raises(ConfigurationError, match=f"there is no delta-spark jar in {tmp_path}"):
        session.delta_jars(pipeline)
    for name in ("delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"):
        (tmp_path / name).touch()
    assert [jar.name for jar in session.delta_jars(pipeline)] == [
        "delta-spark_4.2_2.13-4.4.0.jar",
        "delta-storage-4.4.0.jar",
    ]


def test_a_jvm_that_was_submitted_must_have_deltas_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="spark-submit was given none: --jars"):
        session.check_submitted_jars("file:/x/other.jar")
    session.check_submitted_jars("file:/x/other.jar,file:/x/delta-spark_4.2_2.13-4.4.0.jar")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    session.check_submitted_jars("")


def test_later_settings_count_more_but_options_of_java_are_added() -> None:
    found = session.merged(
        {"spark.a": "1", "spark.driver.extraJavaOptions": "-Da"},
        {"spark.a": "2"},
        {"spark.driver.extraJavaOptions": "-Db"},
    )
    assert found == {"spark.a": "2", "spark.driver.extraJavaOptions": "-Da -Db"}
