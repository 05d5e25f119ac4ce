"""Both classic versions run every test that asks for ``version``."""

from __future__ import annotations

import pytest

from gateway.session import Version


@pytest.fixture(params=[Version.V0_8, Version.V0_9_1], ids=lambda version: version.value)
def version(request: pytest.FixtureRequest) -> Version:
    chosen: Version = request.param
    return chosen
