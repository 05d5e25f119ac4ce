"""What a job works with: ``[pipeline]`` of the configuration, and what belongs to it from elsewhere in the file.

A :class:`Pipeline` is a value: it can be sent to other processes. Its secrets, the API key and the ledger's URL, are
never part of its text, and no part of Spark's settings, which anyone sees who sees Spark's pages or the list of
processes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway import config
from gateway.config import PipelineSettings
from gateway.errors import ConfigurationError

API_KEY: Final = "GATEWAY_API_KEY"
"""Variable that holds the API key."""
GATEWAY_URL: Final = "GATEWAY_URL"
"""Variable that names the gateway for every verb of the command line, and so for the jobs."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All outside settings of a job."""

    settings: PipelineSettings = field(default_factory=PipelineSettings)
    url: str = "http://127.0.0.1:8080"
    """The gateway, without a slash at the end."""
    api_key: str = field(default="", repr=False)
    """Its key; empty: none."""
    ledger_dsn: str = field(default="", repr=False)
    """``sqlite:///…`` or ``postgresql://…`` where the logs are read straight from the ledger; empty: over HTTP."""
    storage: str = "./gateway-pipeline"
    """Absolute folder, or URL, that holds what jobs keep."""

    def place(self, *parts: str) -> str:
        """A place below the storage: ``place("archive", "messages")``."""
        return "/".join([self.storage.rstrip("/"), *parts])

    @property
    def local(self) -> bool:
        """Whether the storage is a folder of this machine, or one that is mounted here."""
        return "://" not in self.storage

    def fingerprint(self, job: str, options: Mapping[str, Any]) -> str:
        """What makes a run that run: its job, its options, the gateway and the place. 32 hexadecimal digits."""
        text = json.dumps([job, dict(options), self.url, self.storage], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Pipeline:
    """Read the configuration, the environment and the options, each stronger than the one before.

    Args:
        path: the configuration file; None: the one of ``GATEWAY_CONFIG``, or none.
        overrides: names of ``[pipeline]`` and their values; None values are passed over. ``api_key`` is the key itself;
            ``spark`` is added to what the file has.

    Raises:
        ConfigurationError: naming the file, the setting and what is wrong with it.
    """
    given = dict(overrides or {})
    api_key = given.pop("api_key", None)
    spark = given.pop("spark", None) or {}
    if GATEWAY_URL in environ and given.get("url") is None:
        given["url"] = environ[GATEWAY_URL]
    whole = config.load(
        path or environ.get("GATEWAY_CONFIG"),
        dict(environ),
        {f"pipeline.{name}": value for name, value in given.items()},
    )
    settings = msgspec.structs.replace(whole.pipeline, spark={**whole.pipeline.spark, **spark})
    parts = urlsplit(settings.url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f"pipeline.url is {settings.url!r}, not http://HOST:PORT or https://HOST:PORT")
    if settings.archive == "parquet" and "://" in settings.storage:
        raise ConfigurationError(
            f"pipeline.storage is {settings.storage!r}, and an archive of plain Parquet needs a file system: "
            'set pipeline.archive = "delta"'
        )
    storage = settings.storage if "://" in settings.storage else os.path.abspath(settings.storage)
    return Pipeline(
        settings=settings,
        url=settings.url.rstrip("/"),
        api_key=api_key or environ.get(API_KEY) or _read(settings.api_key_file),
        ledger_dsn=_ledger(whole) if settings.direct else "",
        storage=storage,
    )


def _read(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"pipeline.api_key_file {path}: {error}") from None


def _ledger(whole: config.Config) -> str:
    """Where the service of the same file has its ledger."""
    return whole.ledger.url or f"sqlite:///{os.path.abspath(os.path.join(whole.data_dir, 'ledger.db'))}"
