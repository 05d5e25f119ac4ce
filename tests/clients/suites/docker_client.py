"""In place of the module with which the suites of aiormq and aio-pika start a broker in a container.

The broker is there already, at the address that the environment names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


class DockerNotAvailableError(Exception):
    """Never raised: no container is needed."""


@dataclass
class DockerHostInfo:
    """Where the broker is."""

    container_host: str = os.environ["RABBITMQ_HOST"]


@dataclass
class ContainerInfo:
    """The broker, as if it were in a container."""

    id: str
    ports: dict[str, int]
    host: str


def check_docker_available() -> DockerHostInfo:
    """Say where the broker is."""
    return DockerHostInfo()


class DockerClient:
    """Has the broker as its only container."""

    def __init__(self, host: DockerHostInfo | None = None) -> None:
        self.docker_host_info = host or DockerHostInfo()

    def run(self, image: str, ports: list[str], environment: dict[str, str] | None = None) -> ContainerInfo:
        """The broker. Its port for TLS is one where nobody listens."""
        found = {port: int(os.environ["RABBITMQ_5672_TCP"]) if port == "5672/tcp" else 1 for port in ports}
        return ContainerInfo("broker", found, self.docker_host_info.container_host)

    def kill(self, container: str) -> None:
        """It goes on."""

    def remove(self, container: str) -> Any:
        """It stays."""
