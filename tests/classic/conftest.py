"""Each classic version runs every test that asks for ``version``."""

from __future__ import annotations

import pytest

from gateway.session import Version
from gateway.v08.version import V0_8
from gateway.v09.version import V0_9
from gateway.v091.version import V0_9_1


@pytest.fixture(params=[V0_8, V0_9, V0_9_1], ids=lambda version: version.value)
def version(request: pytest.FixtureRequest) -> Version:
    chosen: Version = request.param
    return chosen
