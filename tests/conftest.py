from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hangs import is_hang, processes_and_logs
from hypothesis import settings
from nursery import Nursery
from run_tests import name_of

from local_etcd import LocalEtcd

torch.set_num_threads(1)  # forked ranks would hang in OpenMP if their parent had ever run more
settings.register_profile("softrun", deadline=None)  # a busy machine makes no test fail
settings.load_profile("softrun")


DURATIONS = Path(__file__).with_name("durations.json")


class FailuresAtOnce:
    """Names each test that fails when it does, not at the end of a quarter of an hour."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_line(f"\nfailed: {report.nodeid}")


@pytest.hookimpl(trylast=True)  # there is a terminal by then
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.getoption("numprocesses", None):
        config.pluginmanager.register(FailuresAtOnce(terminal))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need etcd are skipped if there is none, and fail if one is demanded, as in CI. Those that run torchrun
    itself are run by `scripts/test --torch`."""
    named_by_place = [item.nodeid for item in items if str(config.rootpath) in item.nodeid]
    if named_by_place:
        raise pytest.UsageError(f"{named_by_place[0]}: a test has the same name in each checkout, so give it ids")
    if not os.environ.get("SOFTRUN_TORCHRUN"):
        items[:] = [item for item in items if not item.get_closest_marker("torchrun")]
    if shutil.which("etcd") is None and not os.environ.get("SOFTRUN_REQUIRE_ETCD"):
        for item in items:
            if item.get_closest_marker("etcd"):
                item.add_marker(pytest.mark.skip(reason="there is no etcd here: scripts/etcd --install"))
    if config.getoption("dist", "no") != "no" or os.environ.get("PYTEST_XDIST_WORKER"):
        durations = json.loads(DURATIONS.read_text())  # `scripts/test --all --keep-durations` writes it
        items.sort(key=lambda item: -durations.get(name_of(item), 0.0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that hangs shows where all of its processes are, before they are ended."""
    report = yield
    if report.failed and call.excinfo is not None and is_hang(call.excinfo.value):
        directory = getattr(item, "funcargs", {}).get("tmp_path")
        report.sections.append(("processes and logs", processes_and_logs(directory)))
    return report


@pytest.fixture(autouse=True)
def _logging_begins_afresh() -> None:
    """A launcher that a test has run in this process writes softrun's log to what was standard error then."""
    logger = logging.getLogger("softrun")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


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
