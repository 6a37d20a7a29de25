from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings
from nursery import Nursery

from local_etcd import LocalEtcd

settings.register_profile("softrun", deadline=None)  # a busy machine makes no test fail
settings.load_profile("softrun")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need etcd are skipped if there is none, and fail if one is demanded, as in CI."""
    if shutil.which("etcd") is None and not os.environ.get("SOFTRUN_REQUIRE_ETCD"):
        for item in items:
            if item.get_closest_marker("etcd"):
                item.add_marker(pytest.mark.skip(reason="there is no etcd here: scripts/etcd --install"))


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    """One member that all tests share: it must not be harmed."""
    with LocalEtcd(tmp_path_factory.mktemp("etcd"), flags=["--unsafe-no-fsync"]) as etcd:
        yield etcd


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts launchers at once: it is for tests in which it does not matter how a launcher begins."""
    with Nursery() as nursery:
        yield nursery
