"""In place of the conftest.py at the root of aiormq's repository, which its package lacks: where the broker is."""

from __future__ import annotations

import pytest
from tests.docker_client import ContainerInfo, DockerClient, check_docker_available  # type: ignore[import-not-found]
from yarl import URL  # type: ignore[import-not-found]


@pytest.fixture(scope="session")
def rabbitmq_container() -> ContainerInfo:
    return DockerClient(check_docker_available()).run("", ["5672/tcp", "5671/tcp"])


@pytest.fixture(scope="session")
def amqp_direct_url(rabbitmq_container: ContainerInfo) -> URL:
    return URL(f"amqp://guest:guest@{rabbitmq_container.host}:{rabbitmq_container.ports['5672/tcp']}//")
