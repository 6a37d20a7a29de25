"""What health checks find out about GPUs, NVLinks and NICs, from a library and a sysfs that are made up here."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from states import STATE

from softrun.runtime.inprocess import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    Compose,
    HealthCheck,
    HealthCheckError,
)
from softrun.runtime.inprocess.hardware import nics, nvml

RECOVERY_FIELD = 230  # of NVML
ROOT_PORTS = ("pci0000:15/0000:15:01.0/0000:16:00.0", "pci0000:15/0000:15:03.0/0000:26:00.0")


class NVMLError(Exception):
    value = 999

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self.value = self.value if value is None else value

    def __str__(self) -> str:
        return {3: "Not Supported", 9: "Driver Not Loaded", 15: "GPU is lost"}.get(self.value, f"error {self.value}")


class InvalidArgumentError(NVMLError):
    value = 2


class NotSupportedError(NVMLError):
    value = 3


class DriverNotLoadedError(NVMLError):
    value = 9


class GpuIsLostError(NVMLError):
    value = 15


@dataclass
class Gpu:
    uuid: str
    bus_id: str
    action: int = 0
    links: list[int] = field(default_factory=lambda: [1, 1, 0, 1])
    error: NVMLError | None = None
    """What every call for it fails with."""
    field_error: int = 0
    """What NVML returns in the place of the action."""


class FakeNvml:
    """The module pynvml, on a node with two GPUs."""

    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = RECOVERY_FIELD
    NVML_NVLINK_MAX_LINKS = 18
    NVMLError = NVMLError

    def __init__(self) -> None:
        self.gpus = [Gpu("GPU-aaaa-0", "00000000:18:00.0"), Gpu("GPU-bbbb-1", "00000000:2A:00.0")]
        self.driver = True
        self.hang: threading.Event | None = None
        self.users = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise DriverNotLoadedError
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        assert self.users, "shut down more often than initialized"
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        assert self.users, "not initialized"
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if index >= self.nvmlDeviceGetCount():
            raise InvalidArgumentError
        return self._reached(self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Gpu:  # noqa: N802
        assert self.users, "not initialized"
        found = [gpu for gpu in self.gpus if gpu.uuid == uuid.decode()]
        if not found:
            raise NVMLError(6)
        return self._reached(found[0])

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, fields: list[int]) -> list[Any]:  # noqa: N802
        assert fields == [RECOVERY_FIELD]
        self._reached(gpu)
        return [SimpleNamespace(nvmlReturn=gpu.field_error, value=SimpleNamespace(uiVal=gpu.action))]

    def nvmlDeviceGetNvLinkState(self, gpu: Gpu, link: int) -> int:  # noqa: N802
        if link >= len(self._reached(gpu).links):
            raise InvalidArgumentError if gpu.links else NotSupportedError
        return gpu.links[link]

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._reached(gpu).bus_id)

    def _reached(self, gpu: Gpu) -> Gpu:
        assert self.users, "not initialized"
        if self.hang is not None:
            self.hang.wait()
        if gpu.error is not None:
            raise gpu.error
        return gpu


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield fake
    assert fake.users == 0, "initialized and not shut down"


@pytest.fixture
def hanging(pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """NVML while a GPU is broken so that no call returns."""
    monkeypatch.setattr(nvml, "ANSWER_S", 0.05)
    pynvml.hang = threading.Event()
    yield pynvml
    pynvml.hang.set()
    for thread in threading.enumerate():
        if thread.name == "softrun-nvml":
            thread.join()


@pytest.fixture
def debug_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "softrun.runtime.inprocess")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]


def error_of(check: HealthCheck) -> str:
    with pytest.raises(HealthCheckError) as unfit:
        check(STATE)
    line = str(unfit.value)
    assert line.startswith(f"{type(check).__name__}: rank 1 is unfit: ")
    assert "\n" not in line
    return line


# The GPU


def test_a_gpu_that_needs_nothing_is_fit(pynvml: FakeNvml) -> None:
    assert ChainedGPUHealthCheck()(STATE) is STATE
    assert ChainedGPUHealthCheck(1)(STATE) is STATE


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (1, "GPU reset"),
        (2, "node reboot"),
        (3, "drain P2P"),
        (4, "drain and reset"),
        (5, "recovery action 5"),
    ],
)
def test_a_gpu_that_needs_an_action_is_unfit(pynvml: FakeNvml, action: int, name: str) -> None:
    pynvml.gpus[1].action = action
    assert f": GPU 1 needs recovery ({name}); do that, or replace the node" in error_of(ChainedGPUHealthCheck(1))
    assert f": GPU 1 needs recovery ({name}); " in error_of(ChainedGPUHealthCheck())
    assert ChainedGPUHealthCheck(0)(STATE) is STATE, "another GPU is no concern of this rank"


def test_every_gpu_in_need_is_named(pynvml: FakeNvml) -> None:
    pynvml.gpus[0].action, pynvml.gpus[1].action = 1, 2
    assert "GPU 0 needs recovery (GPU reset), GPU 1 needs recovery (node reboot); " in error_of(ChainedGPUHealthCheck())


def test_a_lost_gpu_is_unfit(pynvml: FakeNvml) -> None:
    pynvml.gpus[0].error = GpuIsLostError()
    assert "GPU 0 fails with 'GPU is lost'; reset the GPU or reboot the node" in error_of(ChainedGPUHealthCheck(0))


def test_a_library_that_hangs_is_found(hanging: FakeNvml) -> None:
    assert "NVML did not answer about device_index=0 within 0.05 s; reset" in error_of(ChainedGPUHealthCheck(0))
    assert "NVML did not answer about the GPUs within 0.05 s; reset" in error_of(ChainedGPUHealthCheck())


@pytest.mark.parametrize(
    ("visible", "device_index", "examined"),
    [
        ("1,0", 0, 1),
        ("1, 0", 1, 0),
        ("GPU-bbbb-1", 0, 1),
        ("0,GPU-bbbb-1", 1, 1),
        (None, 1, 1),
    ],
)
def test_a_device_is_numbered_as_cuda_numbers_it(
    pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str | None, device_index: int, examined: int
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pynvml.gpus[1 - examined].action = 1
    assert ChainedGPUHealthCheck(device_index)(STATE) is STATE
    pynvml.gpus[examined].action = 2
    assert "(node reboot)" in error_of(ChainedGPUHealthCheck(device_index))


@pytest.mark.parametrize(
    ("visible", "device_index"),
    [
        ("0", 1),
        ("", 0),
        ("all", 0),
        ("0,x,1", 2),
        ("-1", 0),
        ("MIG-cccc", 0),
        ("GPU-gone", 0),
        ("7", 0),
        (None, 2),
    ],
)
def test_a_device_that_is_not_there_is_not_examined(
    pynvml: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    debug_lines: Callable[[], list[str]],
    visible: str | None,
    device_index: int,
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for gpu in pynvml.gpus:
        gpu.action = 1
    assert ChainedGPUHealthCheck(device_index)(STATE) is STATE
    assert len(debug_lines()) == 1


def old_module(pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")


def old_driver(pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu in pynvml.gpus:
        gpu.field_error = NotSupportedError.value


def no_driver(pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml.driver = False


def no_module(pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.mark.parametrize("lack", [old_module, old_driver, no_driver, no_module])
def test_what_cannot_tell_does_not_make_a_rank_unfit(
    pynvml: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    debug_lines: Callable[[], list[str]],
    lack: Callable[[FakeNvml, pytest.MonkeyPatch], None],
) -> None:
    for gpu in pynvml.gpus:
        gpu.action = 1
    lack(pynvml, monkeypatch)
    assert ChainedGPUHealthCheck()(STATE) is STATE
    assert len(debug_lines()) == 1


# NVLink


def test_lost_nvlinks_are_told_and_do_no_harm(pynvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    check = ChainedNVLHealthCheck()
    assert check(STATE) is STATE
    assert not caplog.messages, "link 2 was never active"
    pynvml.gpus[1].links = [0, 1, 0, 0]
    assert check(STATE) is STATE
    line = "ChainedNVLHealthCheck: rank 1 has lost NVLinks: GPU 1 link 0 3; see `nvidia-smi nvlink --status`"
    assert caplog.messages == [line]
    check(STATE)
    assert len(caplog.messages) == 1, "it is told once"
    pynvml.gpus[0].links = [0, 1, 0, 1]
    check(STATE)
    assert "GPU 0 link 0, GPU 1 link 0 3;" in caplog.messages[1]


def test_only_the_links_of_its_gpu_count(pynvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    check = ChainedNVLHealthCheck(0)
    check(STATE)
    pynvml.gpus[1].links = [0, 0, 0, 0]
    check(STATE)
    assert not caplog.messages


def test_a_gpu_without_nvlink_is_fit(
    pynvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(FakeNvml, "NVML_NVLINK_MAX_LINKS")
    caplog.set_level(logging.DEBUG, "softrun.runtime.inprocess")
    pynvml.gpus[0].links = []
    assert ChainedNVLHealthCheck(0)(STATE) is STATE
    assert not caplog.messages


def test_a_hang_while_links_are_read_is_told(hanging: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    assert ChainedNVLHealthCheck(0)(STATE) is STATE
    [line] = caplog.messages
    assert line.startswith("ChainedNVLHealthCheck: rank 1 cannot see its NVLinks: NVML did not answer about ")


# NICs


class Sysfs:
    """A node with two root ports; behind each, a PCI switch with a GPU and a NIC."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._add_device(f"{ROOT_PORTS[0]}/0000:17:00.0/0000:18:00.0")
        self._add_nic("mlx5_0", f"{ROOT_PORTS[0]}/0000:17:01.0/0000:19:00.0")
        self._add_device(f"{ROOT_PORTS[1]}/0000:27:00.0/0000:2a:00.0")
        self._add_nic("mlx5_1", f"{ROOT_PORTS[1]}/0000:27:01.0/0000:2b:00.0")

    def write(self, nic: str, *, state: str = "4: ACTIVE", link_downed: int = 0) -> None:
        port = self.root / "class/infiniband" / nic / "ports/1"
        (port / "state").write_text(f"{state}\n")
        (port / "counters/link_downed").write_text(f"{link_downed}\n")

    def remove(self, nic: str) -> None:
        (self.root / "class/infiniband" / nic).unlink()

    def _add_device(self, path: str) -> None:
        (self.root / "devices" / path).mkdir(parents=True)
        by_address = self.root / "bus/pci/devices" / Path(path).name
        by_address.parent.mkdir(parents=True, exist_ok=True)
        by_address.symlink_to(f"../../../devices/{path}")

    def _add_nic(self, name: str, path: str) -> None:
        self._add_device(path)
        folder = self.root / "devices" / path / "infiniband" / name
        (folder / "ports/1/counters").mkdir(parents=True)
        (folder / "device").symlink_to(f"../../../{Path(path).name}")
        by_name = self.root / "class/infiniband" / name
        by_name.parent.mkdir(parents=True, exist_ok=True)
        by_name.symlink_to(os.path.relpath(folder, by_name.parent))
        self.write(name)


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    monkeypatch.setattr(nics, "SYSFS", tmp_path)
    return Sysfs(tmp_path)


def test_links_that_stay_up_are_fit(sysfs: Sysfs) -> None:
    sysfs.write("mlx5_0", link_downed=3)
    sysfs.write("mlx5_1", state="1: DOWN")
    check = ChainedNicHealthCheck()
    assert check(STATE) is STATE, "what happened before does not count"
    assert check(STATE) is STATE


def test_a_link_that_went_down_and_came_back_is_told_once(sysfs: Sysfs) -> None:
    sysfs.write("mlx5_0", link_downed=3)
    check = ChainedNicHealthCheck()
    sysfs.write("mlx5_0", link_downed=5)
    line = "mlx5_0 port 1 has lost its link (link_downed was 3 and is 5); check the cable and the switch"
    assert line in error_of(check)
    assert check(STATE) is STATE
    sysfs.write("mlx5_0", link_downed=6)
    assert "was 5 and is 6" in error_of(check)


def test_a_counter_that_was_cleared_counts_from_there(sysfs: Sysfs) -> None:
    sysfs.write("mlx5_0", link_downed=3)
    check = ChainedNicHealthCheck()
    sysfs.write("mlx5_0", link_downed=0)
    assert check(STATE) is STATE
    sysfs.write("mlx5_0", link_downed=1)
    assert "was 0 and is 1" in error_of(check)


def test_a_link_that_stays_down_is_told_each_time(sysfs: Sysfs) -> None:
    check = ChainedNicHealthCheck()
    sysfs.write("mlx5_0", state="1: DOWN", link_downed=1)
    sysfs.write("mlx5_1", state="2: INIT")
    for _ in range(2):
        assert "mlx5_0 port 1 was ACTIVE and is DOWN, mlx5_1 port 1 was ACTIVE and is INIT;" in error_of(check)
    sysfs.write("mlx5_0", link_downed=1)
    sysfs.write("mlx5_1")
    assert check(STATE) is STATE


def test_a_nic_that_is_gone_is_found(sysfs: Sysfs) -> None:
    check = ChainedNicHealthCheck()
    sysfs.remove("mlx5_1")
    assert "mlx5_1 port 1 was ACTIVE and is gone;" in error_of(check)


def test_a_nic_whose_driver_does_not_count_has_a_state(sysfs: Sysfs) -> None:
    (sysfs.root / "class/infiniband/mlx5_0/ports/1/counters/link_downed").unlink()
    check = ChainedNicHealthCheck()
    assert check(STATE) is STATE
    (sysfs.root / "class/infiniband/mlx5_0/ports/1/state").unlink()
    assert "mlx5_0 port 1 was ACTIVE and is unreadable;" in error_of(check)


@pytest.mark.parametrize(("device_index", "near", "far"), [(0, "mlx5_0", "mlx5_1"), (1, "mlx5_1", "mlx5_0")])
def test_only_the_nics_near_its_gpu_count(
    sysfs: Sysfs, pynvml: FakeNvml, device_index: int, near: str, far: str
) -> None:
    check = ChainedNicHealthCheck(device_index)
    sysfs.write(far, state="1: DOWN", link_downed=1)
    assert check(STATE) is STATE
    sysfs.write(near, link_downed=1)
    assert f"{near} port 1 has lost its link" in error_of(check)


def test_the_nearest_nic_is_behind_the_same_switch(sysfs: Sysfs, pynvml: FakeNvml) -> None:
    pynvml.gpus[0].bus_id = "00000000:1B:00.0"
    sysfs._add_device(f"{ROOT_PORTS[0]}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0")
    sysfs._add_nic("mlx5_2", f"{ROOT_PORTS[0]}/0000:17:02.0/0000:1a:01.0/0000:1c:00.0")
    check = ChainedNicHealthCheck(0)
    sysfs.write("mlx5_0", link_downed=1)
    assert check(STATE) is STATE
    sysfs.write("mlx5_2", link_downed=1)
    assert "mlx5_2 port 1 has lost its link" in error_of(check)


@pytest.mark.parametrize(
    "bus_id",
    [
        "00000000:4F:00.0",  # there is no such device
        "00000000:15:05.0",  # below the same root complex, by itself
    ],
)
def test_a_gpu_without_a_nic_nearby_has_none(
    sysfs: Sysfs, pynvml: FakeNvml, debug_lines: Callable[[], list[str]], bus_id: str
) -> None:
    sysfs._add_device("pci0000:15/0000:15:05.0")
    pynvml.gpus[0].bus_id = bus_id
    check = ChainedNicHealthCheck(0)
    assert debug_lines() == ["ChainedNicHealthCheck: watches no NIC, since none is near the GPU of device_index=0"]
    sysfs.write("mlx5_0", state="1: DOWN")
    assert check(STATE) is STATE


@pytest.mark.parametrize("lack", [no_driver, no_module])
def test_without_nvml_no_nic_is_near(
    sysfs: Sysfs,
    pynvml: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    lack: Callable[[FakeNvml, pytest.MonkeyPatch], None],
) -> None:
    lack(pynvml, monkeypatch)
    check = ChainedNicHealthCheck(0)
    sysfs.write("mlx5_0", state="1: DOWN")
    assert check(STATE) is STATE


def test_a_hang_while_nics_are_chosen_is_told(
    sysfs: Sysfs, hanging: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    check = ChainedNicHealthCheck(0)
    [line] = caplog.messages
    assert line.startswith("ChainedNicHealthCheck: watches no NIC, since the GPU's place is unknown: NVML did not")
    assert check(STATE) is STATE


# All of them


def test_a_node_without_gpus_and_nics_is_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nics, "SYSFS", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for device_index in (0, None):
        checks = [
            check(device_index) for check in (ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck)
        ]
        composed = Compose(*checks)
        assert isinstance(composed, HealthCheck)
        assert composed(STATE) is STATE
    assert not caplog.messages


@pytest.mark.parametrize("check", [ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck])
def test_a_device_index_is_a_number_or_none(check: Callable[[Any], HealthCheck]) -> None:
    name = check.__name__
    with pytest.raises(ValueError, match=rf"^{name}: device_index is -1; pass 0 or more$"):
        check(-1)
    for wrong in ("0", True, 1.0):
        with pytest.raises(TypeError, match=rf"^{name}: device_index is .*; pass a whole number, 0 or more$"):
            check(wrong)
    assert repr(check(2)) == f"{name}(device_index=2)"
