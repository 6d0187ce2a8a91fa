"""One workshop for the whole session, shared by the workers of pytest-xdist."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.executed.projects import Workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    base = tmp_path_factory.getbasetemp()
    workshop = Workshop((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "executed")
    yield workshop
    workshop.close()
