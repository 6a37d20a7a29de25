"""Hosts on this machine: network namespaces on a switch, so that a host can fall silent and the network can be bad.

Each host's eth0 is a TAP device, and a process hands on what is sent there (`lossy_switch`). The kernel's own means, a
bridge and netem, are missing in many kernels, and cannot be told what becomes of the frames between two hosts alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import count, permutations
from pathlib import Path
from typing import TYPE_CHECKING

import lossy_switch

if TYPE_CHECKING:
    from typing_extensions import Self

TUN = Path("/dev/net/tun")
NEEDS = "root, iproute2 and /dev/net/tun"
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
ANSWER_S = 10.0
_numbered = count()


def able() -> bool:
    """Whether there can be hosts on this machine, which takes `NEEDS`."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and TUN.exists()


class LocalNetwork:
    """Its hosts, by name. Use it as a context manager: nothing outlives it.

    Names of namespaces carry this process's number and the network's, so that networks beside each other do not meet.
    Whatever is lost is lost silently, neither end is told. `seed` draws which frames are dropped.
    """

    def __init__(self, seed: int = 0) -> None:
        self._mark = f"sr{os.getpid()}-{next(_numbered)}"
        self._seed = seed
        self._numbers: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._control, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_S)
        with end:
            command = [sys.executable, lossy_switch.__file__, str(end.fileno()), str(self._seed)]
            self._switch = subprocess.Popen(command, pass_fds=[end.fileno()], start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        try:
            self._switch.wait(ANSWER_S)
        finally:
            self._switch.kill()
            self._switch.wait()
            for host in self._numbers:
                subprocess.run(["ip", "netns", "del", self.namespace(host)], check=False, capture_output=True)

    def add(self, host: str) -> str:
        """Returns its address."""
        number = self._numbers[host] = len(self._numbers) + 1
        namespace, device = self.namespace(host), f"{self._mark}-{number}"
        _ip("netns", "add", namespace)
        tap = os.open(TUN, os.O_RDWR)
        try:
            fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TAP_WITHOUT_HEADER))
            _ip("link", "set", "dev", device, "address", lossy_switch.mac(number))
            _ip("link", "set", "dev", device, "netns", namespace, "name", "eth0")
            self._order({"host": number}, [tap])
        finally:
            os.close(tap)
        _ip("-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for each in ("eth0", "lo"):
            _ip("-n", namespace, "link", "set", "dev", each, "up")
        return self.address(host)

    def address(self, host: str) -> str:
        return f"10.77.0.{self._numbers[host]}"

    def namespace(self, host: str) -> str:
        return f"{self._mark}-{host}"

    def on(self, host: str) -> list[str]:
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def cut(self, host: str, *others: str) -> float:
        """Cut `host` off from these others, or from all. Returns when."""
        return self._set(self.between(host, *others), drop=1.0)

    def cut_way(self, sender: str, receiver: str) -> float:
        """Lose what `sender` sends to `receiver`, but nothing on the way back. Returns when."""
        return self._set([(sender, receiver)], drop=1.0)

    def worsen(self, drop: float, delay_s: float) -> float:
        """Lose this share of all frames, and delay the others, each way, between any two hosts. Returns when."""
        return self._set(self.everywhere(), drop, delay_s)

    def reset(self, ways: Iterable[tuple[str, str]], *, new_only: bool = False) -> float:
        """Have a firewall between senders and receivers reset their connections, or refuse new ones only.

        Returns when.
        """
        return self._set(ways, resets="new" if new_only else "all")

    def between(self, host: str, *others: str) -> list[tuple[str, str]]:
        """The ways, in both directions, between `host` and these others, or all."""
        ways = [(host, other) for other in others or self._numbers if other != host]
        return [*ways, *((b, a) for a, b in ways)]

    def everywhere(self) -> list[tuple[str, str]]:
        """All ways."""
        return list(permutations(self._numbers, 2))

    def move(self, owner: str, holder: str, to: str) -> float:
        """Take the address of `owner` from the host that has it, and give it to another, which answers then.

        Returns when.
        """
        at = time.monotonic()
        address = f"{self.address(owner)}/24"
        _ip("-n", self.namespace(holder), "addr", "del", address, "dev", "eth0")
        _ip("-n", self.namespace(to), "addr", "add", address, "dev", "eth0")
        for each in self._numbers:
            _ip("-n", self.namespace(each), "neigh", "flush", "dev", "eth0")
        return at

    def heal(self) -> float:
        """All ways are good again. Returns when."""
        return self.worsen(0.0, 0.0)

    def _set(self, ways: Iterable[tuple[str, str]], drop: float = 0.0, delay_s: float = 0.0, resets: str = "") -> float:
        at = time.monotonic()
        numbers = [(self._numbers[sender], self._numbers[receiver]) for sender, receiver in ways]
        self._order({"ways": numbers, "drop": drop, "delay_s": delay_s, "resets": resets})
        return at

    def _order(self, order: dict[str, object], descriptors: Iterable[int] = ()) -> None:
        """Returns once it is done."""
        socket.send_fds(self._control, [json.dumps(order).encode()], list(descriptors))
        if not self._control.recv(16):
            raise RuntimeError("the switch has ended")


def _ip(*args: str) -> None:
    try:
        subprocess.run(["ip", *args], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"ip {' '.join(args)}: {error.stderr.strip()}") from error
