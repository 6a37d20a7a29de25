"""An Ethernet switch in a process of its own, which can lose, delay and reset what hosts send each other.

    lossy_switch.py FD SEED

A host is a TAP device, with a number. It has the MAC address that `mac` makes of that number, so the switch need not
learn who is where. FD is a socket of packets to whoever started the switch. It reads one order from each, does it, and
answers with a packet:

    {"host": 1}                                                         the packet brings the descriptor of its device
    {"ways": [[1, 2], …], "drop": 0.2, "delay_s": 0.1, "resets": ""}    what becomes of frames from 1 to 2

Frames that are under way when a way changes still arrive as they would have. The switch ends when the socket is closed.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import random
import select
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import tcp_resets

FRAME = 65_536
TURN = 64  # frames that are read from a device before others have their turn
MOST = 20_000  # frames under way; further ones are lost, as where a real queue is full


@dataclass(frozen=True)
class Way:
    """What becomes of the frames from one host to another."""

    drop: float = 0.0
    """The share that is lost; with 1.0 the way is cut."""
    delay_s: float = 0.0
    resets: str = ""
    """Which TCP segments are lost and answered with resets, to both ends: "all", "new" for those that ask for a
    connection, or none."""


GOOD = Way()


def mac(number: int) -> str:
    """The address of a host, at most 255 of them."""
    return f"02:00:00:00:00:{number:02x}"


class Switch:
    """All devices, and the ways between them."""

    def __init__(self, control: socket.socket, seed: int) -> None:
        self._control = control
        self._draw = random.Random(seed)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._devices: dict[int, int] = {}  # descriptors, by the host's number
        self._ways: dict[tuple[int, int], Way] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []  # when it arrives, in which order, where, the frame
        self._delayed = 0

    def run(self) -> None:
        """Until the socket is closed."""
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._until_next_ms())}
            if self._control.fileno() in ready and not self._obey():
                return
            for number, device in list(self._devices.items()):
                if device in ready:
                    self._read(number, device)
            self._arrive()

    def _until_next_ms(self) -> int | None:
        if not self._under_way:
            return None
        return max(0, math.ceil((self._under_way[0][0] - time.monotonic()) * 1000))

    def _obey(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._control, FRAME, 1)
        if not packet:
            return False
        match json.loads(packet):
            case {"host": int(number)}:
                (device,) = descriptors
                os.set_blocking(device, False)
                self._poll.register(device, select.POLLIN)
                self._devices[number] = device
            case {"ways": ways, **way}:
                for sender, receiver in ways:
                    self._ways[sender, receiver] = Way(**way)
            case order:
                raise AssertionError(f"no order: {order}")
        self._control.send(b"done")
        return True

    def _read(self, sender: int, device: int) -> None:
        now = time.monotonic()
        for _ in range(TURN):
            try:
                frame = os.read(device, FRAME)
            except BlockingIOError:
                return
            except OSError:  # its namespace is gone
                self._poll.unregister(device)
                del self._devices[sender]
                return
            to_all = frame[0] & 1
            for receiver in list(self._devices) if to_all else (frame[5],):
                if receiver != sender and receiver in self._devices:
                    self._send(sender, receiver, frame, now)

    def _send(self, sender: int, receiver: int, frame: bytes, now: float) -> None:
        way = self._ways.get((sender, receiver), GOOD)
        segment = tcp_resets.segment_in(frame) if way.resets else None
        if segment is not None and (way.resets == "all" or segment.opens):
            self._reset(sender, receiver, segment)
            return
        if way.drop and self._draw.random() < way.drop:
            return
        if not way.delay_s:
            self._write(receiver, frame)
        elif len(self._under_way) < MOST:
            self._delayed += 1
            heapq.heappush(self._under_way, (now + way.delay_s, self._delayed, receiver, frame))

    def _reset(self, sender: int, receiver: int, segment: tcp_resets.Segment) -> None:
        self._write(sender, tcp_resets.to_sender(segment))
        if not segment.opens:
            self._write(receiver, tcp_resets.to_receiver(segment))

    def _arrive(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, receiver, frame = heapq.heappop(self._under_way)
            self._write(receiver, frame)

    def _write(self, receiver: int, frame: bytes) -> None:
        with suppress(OSError, KeyError):  # its device is down, or gone
            os.write(self._devices[receiver], frame)


if __name__ == "__main__":
    Switch(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
