"""What the kernel knows about the links of InfiniBand and RoCE NICs, from sysfs.

Below /sys, for a NIC and a GPU:

    class/infiniband/mlx5_0 -> ../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/infiniband/mlx5_0
        device -> ../../../0000:16:00.0
        ports/1/state                  "4: ACTIVE"
        ports/1/counters/link_downed   how often the link has gone down
    bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/…/0000:18:00.0
"""

from __future__ import annotations

import itertools
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

from softrun.runtime.inprocess.hardware import nvml

_log = logging.getLogger("softrun.runtime.inprocess")

SYSFS = Path("/sys")
ACTIVE = "ACTIVE"

_PCI_DEVICE = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Port:
    """A port of a NIC at one moment."""

    state: str
    """Such as ACTIVE or DOWN."""
    downs: int | None
    """How often its link has gone down; None if the kernel does not count."""


GONE = Port("gone", None)


class Links:
    """Watches the ports of the NICs that are nearest to a GPU, or None: of all NICs."""

    def __init__(self, sysfs: Path, device_index: int | None) -> None:
        self._nics = _all_nics(sysfs) if device_index is None else _nics_of(device_index, sysfs)
        self._ports = _read(self._nics)

    def failures(self) -> list[str]:
        """What has happened to links, one clause for each port.

        A link that has gone down and come back is told once, one that stays down again at each call.
        """
        now = _read(self._nics)
        found: list[str] = []
        for name, before in self._ports.items():
            port = now.get(name, GONE)
            if before.state == ACTIVE != port.state:
                found.append(f"{name} was {ACTIVE} and is {port.state}")
            elif before.downs is not None and port.downs is not None and port.downs > before.downs:
                found.append(f"{name} has lost its link (link_downed was {before.downs} and is {port.downs})")
            self._ports[name] = _baseline(before, port)
        return found


def _baseline(before: Port, now: Port) -> Port:
    """What a port is compared with next: it should stay active once it was, and lose its link no more."""
    return replace(
        now,
        state=ACTIVE if before.state == ACTIVE else now.state,
        downs=before.downs if now.downs is None else now.downs,
    )


def _all_nics(sysfs: Path) -> list[Path]:
    return sorted((sysfs / "class/infiniband").glob("*"))


def _nics_of(device_index: int, sysfs: Path) -> list[Path]:
    """The NICs that share the most PCI bridges with a GPU, and at least one: a root port, below the root complex."""
    nics = _all_nics(sysfs)
    if not nics:
        return []
    try:
        address = nvml.pci_address(device_index)
    except nvml.GpuFault as fault:
        _log.warning("ChainedNicHealthCheck: watches no NIC, since the GPU's place is unknown: %s", fault)
        return []
    gpu = sysfs / f"bus/pci/devices/{address}"
    shared = {nic: 0 if address is None else _shared_bridges(nic / "device", gpu) for nic in nics}
    most = max(shared.values())
    if most == 0:
        _log.debug("ChainedNicHealthCheck: watches no NIC, since none is near the GPU of device_index=%s", device_index)
        return []
    return [nic for nic in nics if shared[nic] == most]


def _shared_bridges(one: Path, other: Path) -> int:
    """How many PCI bridges the paths to two devices have in common."""
    parts = zip(one.resolve().parts, other.resolve().parts, strict=False)
    common = itertools.takewhile(lambda pair: pair[0] == pair[1], parts)
    return sum(_PCI_DEVICE.fullmatch(part) is not None for part, _ in common)


def _read(nics: list[Path]) -> dict[str, Port]:
    """The ports of these NICs, by names like "mlx5_0 port 1"."""
    ports = {f"{nic.name} port {port.name}": port for nic in nics for port in sorted((nic / "ports").glob("*"))}
    return {name: Port(_state(port), _downs(port)) for name, port in ports.items()}


def _state(port: Path) -> str:
    try:
        return (port / "state").read_text().rpartition(":")[2].strip()  # "4: ACTIVE"
    except OSError:
        return "unreadable"


def _downs(port: Path) -> int | None:
    try:
        return int((port / "counters/link_downed").read_text())
    except (OSError, ValueError):
        return None
