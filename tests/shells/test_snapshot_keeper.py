"""The keeper of a node's snapshots: its memory, and who may ask it for what."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from softrun.agent.snapshots.held_images import LEFT_ALONE, Buffer, HeldImages, NoRoomError
from softrun.agent.snapshots.memory_left import memory_left
from softrun.agent.snapshots.requests import Requests
from softrun.runtime.snapshots.images import Image
from softrun.runtime.snapshots.keeper import KeeperClient, LocalKeeper, SnapshotError, reach
from softrun.runtime.snapshots.wire import KEY_BYTES, WireError, meet, receive, send

SIZE = 1 << 16
KEY = bytes(range(KEY_BYTES))


def image(commits: int, rank: int = 0, round_: int = 1, state: str = "s") -> Image:
    return Image(state=state, commits=commits, round=round_, rank=rank, world_size=2)


def plenty() -> int:
    return LEFT_ALONE + (1 << 30)


def write(images: HeldImages, name: Image, letter: bytes, owner: str = "worker 0", size: int = SIZE) -> Buffer:
    buffer = images.reserve(name, size, owner)
    buffer.memory[:size] = letter * size
    images.seal(name, {"letter": letter.decode()})
    return buffer


# --- memory


def test_a_dropped_image_leaves_its_memory_to_the_next() -> None:
    images = HeldImages(plenty)
    room = images.make_room("worker 0", SIZE, copies=True)
    assert len(room) == 2
    numbers = [write(images, image(step), b"a").number for step in (1, 2)]
    assert sorted(numbers) == sorted(buffer.number for buffer in room)
    images.forget("s", (2, 1), (3, 1))
    assert images.sealed() == [image(2)]
    assert write(images, image(3), b"b").number == numbers[0]
    assert len(images.buffers) == 2
    assert images.make_room("worker 0", SIZE, copies=True) == room, "after the next world's beginning, too"


@pytest.mark.parametrize(
    ("whole", "since", "left"),
    [
        (None, (20, 2), [(20, 2), (30, 2)]),
        ((10, 1), (20, 2), [(10, 1), (20, 2), (30, 2)]),
        ((20, 2), (30, 2), [(20, 2), (30, 2)]),
        ((30, 2), (40, 2), [(30, 2)]),
    ],
)
def test_what_is_forgotten(whole: tuple[int, int] | None, since: tuple[int, int], left: list[tuple[int, int]]) -> None:
    """A neighbour may be ahead of this node's ranks, and what earlier worlds have left unfinished is of no use."""
    images = HeldImages(plenty)
    for commits, round_ in ((10, 1), (20, 1), (20, 2), (30, 2)):
        write(images, image(commits, round_=round_), b"a")
    write(images, image(1, state="another"), b"a")
    images.forget("s", whole, since)
    found = [(each.commits, each.round) for each in images.sealed() if each.state == "s"]
    assert found == left
    assert image(1, state="another") in images.sealed()


def test_memory_of_ranks_that_are_gone_is_given_back() -> None:
    images = HeldImages(plenty)
    for owner in ("worker 0", "worker 1"):
        images.make_room(owner, SIZE, copies=False)
    write(images, image(10), b"a")
    images.forget("s", (10, 1), (20, 1))
    assert len(images.buffers) == 2, "one for the image, one for the next"


def test_an_image_that_is_read_keeps_its_memory_though_it_is_dropped() -> None:
    images = HeldImages(plenty)
    buffer = write(images, image(1), b"a")
    with images.using(image(1)) as held:
        images.drop(image(1))
        assert write(images, image(2), b"b").number != buffer.number
        assert bytes(held.content) == b"a" * SIZE
    assert write(images, image(3), b"c").number == buffer.number


def test_a_changed_byte_is_noticed() -> None:
    images = HeldImages(plenty)
    buffer = write(images, image(1), b"a")
    assert images.check(image(1)).about == {"letter": "a"}
    buffer.memory[SIZE - 1] = 0
    with pytest.raises(KeyError):
        images.check(image(1))


def test_without_room_the_arithmetic_is_told_and_nothing_is_taken() -> None:
    images = HeldImages(lambda: LEFT_ALONE + (7 << 20))
    with pytest.raises(
        NoRoomError,
        match=r"^no room for 4 snapshots of 2 MiB: 8 MiB more are needed, and 7 MiB are left on this node; ",
    ):
        images.make_room("worker 0", 2 << 20, copies=True)
    assert images.buffers == []
    assert len(images.make_room("worker 0", 2 << 20, copies=False)) == 2


def test_before_it_is_refused_what_lies_idle_is_given_back() -> None:
    taken: list[HeldImages] = []

    def left() -> int:
        return LEFT_ALONE + (4 << 20) - sum(buffer.capacity for held in taken for buffer in held._buffers.values())

    images = HeldImages(left)
    taken.append(images)
    images.make_room("worker 0", 2 << 20, copies=False)
    assert len(images.make_room("worker 1", 1 << 20, copies=False)) == 2
    assert len(images.buffers) == 2


def test_the_memory_that_is_left_is_that_of_the_tightest_group(tmp_path: Path) -> None:
    meminfo, own, groups = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    own.write_text("0::/outer/inner\n")
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (inner.parent, "4096000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("3000000")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 1000\n")
    assert memory_left(meminfo, groups, own) == 4096000 - 3000000 + 1000
    assert memory_left(meminfo, groups, tmp_path / "none") == 8000 * 1024
    (inner / "memory.max").write_text("100")
    assert memory_left(meminfo, groups, own) == 0


# --- requests


class Node:
    """A keeper in this process."""

    def __init__(self) -> None:
        self.images = HeldImages(plenty)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        self.requests = Requests(self.images, self.address)
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._serve(self.requests.serve_peer, sock)

    def _serve(self, serve: Callable[[socket.socket], None], sock: socket.socket) -> None:
        self._sockets.append(sock)
        threading.Thread(target=serve, args=(sock,), daemon=True).start()

    def worker(self) -> LocalKeeper:
        here, there = socket.socketpair()
        here.settimeout(30)
        self._sockets.append(here)
        self._serve(self.requests.serve_worker, there)
        return LocalKeeper(here)

    def close(self) -> None:
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def other() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


def until_told(keeper: LocalKeeper, name: Image) -> bool:
    while (told := keeper.is_safe(name)) is None:
        pass
    return told


def store(keeper: LocalKeeper, name: Image, content: bytes, copy_to: tuple[str, int] | None) -> bool:
    """Store an image; whether it is safe then."""
    memory = keeper.reserve("worker 0", name, len(content))
    memory[: len(content)] = content
    keeper.seal(name, {"is": "here"}, copy_to, KEY)
    return until_told(keeper, name)


def read(client: KeeperClient, name: Image, start: int, stop: int) -> bytes:
    room = bytearray(stop - start)
    client.read(name, start, memoryview(room))
    return bytes(room)


def test_an_image_and_its_copy_are_read_wherever_one_asks(node: Node, other: Node) -> None:
    keeper, neighbour = node.worker(), other.worker()
    for each in (keeper, neighbour):
        each.trust(KEY)
    content = secrets.token_bytes(SIZE + 3)
    keeper.make_room("worker 0", len(content), copies=True)
    assert store(keeper, image(5), content, neighbour.address())
    assert [each.listing().images for each in (keeper, neighbour)] == [[image(5)]] * 2
    remote = reach(other.address, KEY)
    for client in (keeper, neighbour, remote):
        assert client.about(image(5)) == {"is": "here"}
        assert read(client, image(5), 100, len(content)) == content[100:]
        for start, stop in ((0, len(content) + 1), (-1, 0), (1, 0)):
            with pytest.raises(SnapshotError, match="no bytes"):
                client.ask("read", image=image(5).model_dump(), start=start, stop=stop)
    with pytest.raises(SnapshotError, match="is not here any more"):
        remote.about(image(6))


def test_without_its_neighbour_an_image_is_kept_and_not_safe(
    node: Node, other: Node, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = node.worker()
    keeper.trust(KEY)
    other.close()
    assert not store(keeper, image(5), b"a" * SIZE, other.address)
    assert not store(keeper, image(6), b"a" * SIZE, other.address)
    assert keeper.listing().images == [image(5), image(6)]
    assert caplog.text.count("has no copy at 127.0.0.1:") == 1, "one line for each neighbour"


def test_a_copy_that_arrives_damaged_is_not_kept(node: Node) -> None:
    node.worker().trust(KEY)
    with pytest.raises(SnapshotError, match="the copy has arrived damaged"):
        reach(node.address, KEY).put(image(1), {}, memoryview(b"a" * SIZE), checksum=5)
    assert node.images.sealed() == []


def test_a_copy_that_breaks_off_is_not_kept(node: Node) -> None:
    node.worker().trust(KEY)
    client = reach(node.address, KEY)
    client.ask("put", image=image(1).model_dump(), about={}, size=SIZE, checksum=0)
    client.close()
    while node.images.is_safe(image(1)) is None:  # it is there as long as it is being received
        pass
    assert node.images.sealed() == []


@pytest.mark.parametrize("trusted", [True, False])
def test_strangers_get_nothing(node: Node, trusted: bool) -> None:
    if trusted:
        node.worker().trust(KEY)
    with pytest.raises(OSError, match=r"closed|reset"):
        reach(node.address, secrets.token_bytes(KEY_BYTES))


def test_who_knows_the_key_may_not_do_what_workers_do(node: Node) -> None:
    node.worker().trust(KEY)
    for do in ("trust", "seal", "forget", "room", "reserve", "list", "state"):
        with pytest.raises(SnapshotError, match="not here"):
            reach(node.address, KEY).ask(do)


def test_who_answers_in_a_keepers_place_is_found_out() -> None:
    here, there = socket.socketpair()

    def answer() -> None:
        receive(there)
        send(there, {"nonce": "0"})
        receive(there)
        send(there, {"proof": "0" * 64})

    threading.Thread(target=answer).start()
    with here, there, pytest.raises(WireError, match="not a keeper of this job"):
        meet(here, KEY)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x02{]",
        b"\x00\x00\x00\x0d" + b'{"nonce": 12}',
        b"\xff" * 8,
    ],
)
def test_a_stranger_that_speaks_otherwise_is_hung_up_on(node: Node, said: bytes) -> None:
    with socket.create_connection(node.address, 30) as stranger:
        stranger.sendall(said)
        with suppress(OSError):  # it may be hung up on already
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(100) == b""


@pytest.mark.parametrize(
    "request_",
    [{}, {"do": "reserve"}, {"do": "about", "image": 5}, {"do": "room", "size": "x"}, {"do": "trust", "key": "zz"}],
)
def test_a_request_that_is_none_is_refused_and_the_next_is_answered(node: Node, request_: dict[str, Any]) -> None:
    keeper = node.worker()
    with pytest.raises(SnapshotError):
        keeper.ask(request_.pop("do", "nothing"), **request_)
    assert keeper.address() == node.address
