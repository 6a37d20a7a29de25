"""softrun's registry of this process's groups: they are noted when they are built, whatever code builds them.

gloo's addresses must be read while the group's store still answers, right after the group was built. So the functions
through which torch builds all groups are wrapped; groups that were built earlier are noted then. A note is valid as
long as torch has the group. Once the group is destroyed, its ports may be reused, and only the duplicates that were
taken before are touched.

Duplicates are taken when the group is built, or when it is aborted if gloo connects lazily. They are kept through
`destroy_process_group`, since the members of a group in trouble leave it at different times. They are released when the
next group with peers is built, when a group is left in good order, or when the process ends.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from softrun.runtime.groups import gloo_waits, native
from softrun.runtime.groups.books import has_group, retire_default_group
from softrun.runtime.groups.forgotten import Watch
from softrun.runtime.groups.gloo import Build, Connections, ask
from softrun.runtime.groups.held_groups import hold, make_room
from softrun.runtime.groups.sockets import Address
from softrun.runtime.groups.stores import connect, makes_own_store, underlying_store

NOTE_S = 1.0
MOST_RETIRED = 32
"""How many groups of earlier worlds are still known if they are used again."""

_C10D = "torch.distributed.distributed_c10d"
_CLASSES = "torch._C._distributed_c10d"
_TCP_STORE = ("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant")
"""The constructor's first parameters, in order: torch's classes do not tell their signatures."""
_TCP_STORE_PATIENCE = timedelta(seconds=300)
"""torch's default."""

_log = logging.getLogger("softrun.runtime")


class NotedGroup:
    """A group that torch has registered, with its connections if it has gloo."""

    def __init__(self, group: Any, connections: Connections | None) -> None:
        self.group: Callable[[], Any] = weakref.ref(group)
        self.connections = connections  # None if it has no gloo

    @property
    def is_there(self) -> bool:
        """Whether torch still has it."""
        return self.group() in registered_groups()

    def cut(self) -> None:
        """Make every thread that waits in one of its collectives raise. Any thread may call it; it does not wait."""
        if self.connections is None:
            return
        self.connections.cut(is_there=lambda: self.is_there)
        if not self.connections.addresses_known and self.is_there:
            native.start(self._read_and_cut, "softrun-abort")

    def _read_and_cut(self) -> None:
        """If gloo connects lazily, peers may have published their addresses after this rank built the group."""
        assert self.connections is not None
        with suppress(Exception):  # the store is gone
            self.connections.read()
            self.connections.cut(is_there=lambda: self.is_there)


_lock = threading.RLock()
_noted: list[NotedGroup] = []
_builds: list[Build] = []
_left: list[Connections] = []  # of groups that were never built
# Groups of earlier worlds, and what they were connected to.
_retired: deque[tuple[str, set[Address]]] = deque(maxlen=MOST_RETIRED)
_watch: Watch | None = None
_world_is_over = False
_default_groups = 0  # that were built in this world
_has_begun_default_group = False  # in this world
_parents: list[Callable[[], Any]] = []  # groups that a forked process has inherited, which are not its own


def registered_groups() -> dict[Any, Any]:
    """torch's groups with their stores. Never imports torch: a process that has not imported it has no groups."""
    world = getattr(sys.modules.get(_C10D), "_world", None)
    parents = [group() for group in _parents]
    groups = list(getattr(world, "pg_map", {}).items())
    return {group: entry[1] for group, entry in groups if not any(group is other for other in parents)}


def track_groups() -> None:
    """Note the groups that torch has, and from now on each that is built, so that they can be aborted.

    Idempotent. Never imports torch: call it again when torch may have been imported. If a release of torch keeps these
    functions elsewhere, groups are noted only by calls of this, and when they are aborted.
    """
    c10d = sys.modules.get(_C10D)
    owners = {
        "split_group": getattr(c10d, "ProcessGroup", None),
        "__init__": getattr(sys.modules.get(_CLASSES), "TCPStore", None),
    }
    for name, wrap in _WRAPPERS.items():
        owner = owners.get(name, c10d)
        function = getattr(owner, name, None) if owner is not None else None
        if function is not None and not hasattr(function, "softrun_notes"):
            wrapper: Any = functools.wraps(function)(wrap(function))
            wrapper.softrun_notes = True
            setattr(owner, name, wrapper)
    if _unnoted():
        noted = threading.Event()
        ask(_note_all, noted)  # the store may be gone by now, or another thread may wait in it
        noted.wait(NOTE_S)


def cut_groups() -> list[threading.Thread]:
    """Make every thread that waits in a gloo group raise. Any thread may call it; returns threads to join."""
    with _lock:
        builds, noted = list(_builds), list(_noted)
    for build in builds:
        build.abort()
    _watch_who_stays(noted)
    for group in noted:
        group.cut()
    _retire_lonely()
    return [native.start(_note_and_cut, "softrun-abort")] if _unnoted() else []


def _watch_who_stays(cut: list[NotedGroup]) -> None:
    """Before they are cut: whoever is freed then may raise before this thread goes on."""
    global _watch
    if any(group.connections for group in cut):
        with _lock:
            _watch = Watch(lambda: all(group in cut for group in _noted), _lock, _watch)


def _retire_lonely() -> None:
    """Retire gloo groups of one rank: they have no connection that could be cut to make the trainer raise."""
    for group in registered_groups():
        with suppress(Exception):  # it is being destroyed
            if group.size() == 1 and gloo_devices(group):
                retire_default_group(group)


def end_watch() -> None:
    """No thread waits in a group that was cut: look for none."""
    global _watch
    with _lock:
        watch, _watch = _watch, None
    if watch is not None:
        watch.end()


def end_world() -> None:
    """From now on no group can be built, and builds under way fail: their members will not come."""
    global _world_is_over
    with _lock:
        _world_is_over = True
        builds = list(_builds)
    for build in builds:
        build.abort()


def begin_world() -> None:
    """Let groups be built again."""
    global _world_is_over
    with _lock:
        _world_is_over = False


def count_groups_from_0() -> None:
    """Another world has begun, with another store."""
    global _default_groups, _has_begun_default_group
    _default_groups = 0
    _has_begun_default_group = False


def has_begun_default_group() -> bool:
    """Whether a default group was begun in this world, built or not."""
    return _has_begun_default_group


def _world_has_changed() -> Exception:
    """The same error as for a lost peer."""
    return _dist_error()(
        "the world has changed: leave its groups, and ask for the next one before you build another group"
    )


def _dist_error() -> type[Exception]:
    """The error that torch raises when a peer or its store is lost."""
    error: type[Exception] = getattr(sys.modules.get("torch.distributed"), "DistError", ConnectionError)
    return error


def release_connections() -> None:
    """Release the connections of the groups that were left, so that their peers notice."""
    with _lock:
        there = registered_groups()
        gone = [noted for noted in _noted if noted.group() not in there]
        _noted[:] = [noted for noted in _noted if noted not in gone]
        left = [*_left]
        _left.clear()
        known = [noted.connections for noted in gone if noted.connections is not None]
        _retired.extend((connections.group, connections.remotes) for connections in known)
    _release([*(noted.connections for noted in gone), *left])


@atexit.register
def _release_all_connections() -> None:
    """Release all connections: this process ends, and its peers notice."""
    with _lock:
        there = [noted.connections for noted in _noted]
    _release([*there, *_left])


def _release(connections: Iterable[Connections | None]) -> None:
    for of_one in connections:
        if of_one is not None:
            of_one.release_connections()


def retired_group_of(peer: Address) -> str | None:
    """The last group of an earlier world that was connected to this address, in words; None if one of this world is."""
    with _lock:
        if any(noted.connections is not None and peer in noted.connections.remotes for noted in _noted):
            return None
        return next((group for group, remotes in reversed(_retired) if peer in remotes), None)


def _noting_group(build_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap _new_process_group_helper, which builds all groups except those split from another."""
    signature = inspect.signature(build_group)

    def noting(*args: Any, **options: Any) -> Any:
        global _has_begun_default_group
        given = _given(signature, args, options)
        is_default = not has_group()
        _has_begun_default_group = _has_begun_default_group or is_default
        make_room()
        earlier_loops = gloo_waits.run_loops() if is_default else set()
        connections = _connections_to_be(given)
        store = underlying_store(given.get("store"))
        with _building(Build(getattr(store, "port", None), connections, store)) as build:
            if is_default:
                _meet(given)
            result = build_group(*args, **options)
            group, store = result if isinstance(result, tuple) else (result, None)
            noted = _note(group, store, connections, built=True) if group in registered_groups() else None
        if is_default:
            _count_default_group()
        if is_default and noted is not None and noted.connections is not None:
            hold(group, earlier_loops)
        if noted is not None and build.aborted:
            noted.cut()
        return result

    return noting


def _meet(given: dict[str, Any]) -> None:
    """Wait until all ranks are here, before they build a default group that has NCCL.

    It connects when it is built, or in its first collective, and nothing interrupts NCCL while it does. So ranks that
    wait there for one that is late would not hear that their world is over. Here they do.
    """
    c10d: Any = sys.modules[_C10D]
    try:
        backends = c10d.BackendConfig(c10d.Backend(given["backend"])).get_device_backend_map().values()
        ranks, store, timeout = given["group_size"], given["store"], given["timeout"]
    except Exception:
        return  # the callee raises it
    if ranks > 1 and any("nccl" in backend for backend in backends):
        meeting = c10d.PrefixStore("softrun/meeting", store)
        if meeting.add("ranks", 1) >= ranks:  # more, if some of an earlier build met here, too
            meeting.set("all", "")
        meeting.wait(["all"], timeout)


def _count_default_group() -> None:
    global _default_groups
    _default_groups += 1


def _with_fresh_keys(rendezvous: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap the rendezvous that returns the default group's store, for another one in the same world.

    torch numbers groups from 0 again when the default group is destroyed, as before a second wrapped call. So ranks
    could read each other's old addresses, and wait for ever.
    """

    def refreshing(*args: Any, **options: Any) -> Iterator[Any]:
        for store, *place in rendezvous(*args, **options):
            if _default_groups:
                store = sys.modules[_C10D].PrefixStore(f"softrun/group/{_default_groups}", store)
            yield (store, *place)

    return refreshing


def _connecting_aside(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap TCPStore's constructor: a client tries for minutes to reach a store that is gone, and nothing ends that; a
    host waits for its clients.
    """

    def connecting(store: Any, *args: Any, **options: Any) -> None:
        if makes_own_store():
            return init(store, *args, **options)
        given = {**dict(zip(_TCP_STORE, args, strict=False)), **options}
        timeout = given.setdefault("timeout", _TCP_STORE_PATIENCE)
        with _building(Build(given.get("port") or None)) as build:
            if given.get("is_master") or len(args) > len(_TCP_STORE) or not isinstance(timeout, timedelta):
                return init(store, *args, **options)

            def create(attempt: timedelta) -> None:
                init(store, **{**given, "timeout": attempt})

            def check() -> None:
                if build.aborted:
                    raise _world_has_changed()

            connect(create, timeout, check)
            store.set_timeout(timeout)
            return None

    return connecting


def _given(signature: inspect.Signature, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    with suppress(TypeError):  # the callee raises it
        return signature.bind(*args, **options).arguments
    return {}


def _noting_split(split_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ProcessGroup.split_group, which connects to the store again. torch registers its result."""

    def noting(parent: Any, ranks: Any, *args: Any, **options: Any) -> Any:
        port, connections = None, None
        with suppress(Exception):  # the callee raises it
            name, store = options["group_name"], parent.get_group_store()
            port = getattr(underlying_store(store), "port", None)
            store = sys.modules[_C10D].PrefixStore(f"{name}/", store)
            connections = Connections(store, name, [], ranks.index(parent.rank()), len(ranks))
        with _building(Build(port, connections)):
            return split_group(parent, ranks, *args, **options)

    return noting


def _noting_registration(register: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the registration, the last step of every build in torch 2.13, splits included."""

    def noting(pg: Any, *args: Any, **options: Any) -> Any:
        result = register(pg, *args, **options)
        if not _builds and pg in (groups := registered_groups()):
            _note(pg, groups[pg])
        return result

    return noting


_WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "_new_process_group_helper": _noting_group,
    "rendezvous": _with_fresh_keys,
    "__init__": _connecting_aside,
    "split_group": _noting_split,
    "_register_pg_in_world": _noting_registration,
}


@contextmanager
def _building(build: Build) -> Iterator[Build]:
    try:
        with _lock:
            if _world_is_over:
                raise _world_has_changed()
            _builds.append(build)
        yield build
    finally:
        _settle(build)


def _settle(build: Build) -> None:
    build.settle()
    with _lock:
        if build in _builds:
            _builds.remove(build)
        noted = [group.connections for group in _noted]
        if build.connections is not None and build.connections.held and build.connections not in noted:
            _left.append(build.connections)


def settle_builds() -> None:
    """End the builds of this thread, even one that was interrupted between two lines of this module."""
    with _lock:
        interrupted = [build for build in _builds if build.thread == threading.get_ident()]
    for build in interrupted:
        _settle(build)


def _note(group: Any, store: Any, connections: Connections | None = None, *, built: bool = False) -> NotedGroup | None:
    """Note a group. An error here must not reach the trainer; it is tried again when the group is aborted.

    `built`: the group was just built, and its user waits for it. If its store is already gone, so is its world, and
    nothing could abort the group: then the user gets an error, as from a lost peer.
    """
    try:
        devices = gloo_devices(group)
        if not devices or group.size() < 2:
            connections = None
        else:
            connections = connections or Connections(store, group.group_name, devices, group.rank(), group.size())
            connections.read()
            connections.hold()
        noted = NotedGroup(group, connections)
        with _lock:
            if any(other.group() is group for other in _noted):
                if connections is not None:
                    connections.let_go()
                return None
            _noted.append(noted)
        if connections is not None:
            _rehearse()
        if group.size() > 1:
            release_connections()
    except Exception as error:
        _log.debug("a process group could not be noted", exc_info=True)
        if built and isinstance(error, _dist_error()):
            raise
        return None
    return noted


@functools.cache
def _rehearse() -> None:
    """Raise an exception through torch's libraries: the first of a process takes 20 ms longer, while tables are read,
    and the exception that follows an abort should not be the first."""

    def fail() -> None:
        with suppress(RuntimeError):
            sys.modules["torch"].empty(2, device="cpu").view(3)

    native.start(fail, "softrun-rehearsal")


def gloo_devices(group: Any) -> list[str]:
    """The kinds of devices for which the group has gloo, also if gloo only checks another backend's calls."""
    gloo = getattr(sys.modules[_C10D], "ProcessGroupGloo", ())
    devices = []
    if type(group) is sys.modules[_C10D].ProcessGroup:
        for device in group._device_types:
            backend = group._get_backend(device)
            if isinstance(backend, gloo) or hasattr(backend, "wrapped_pg"):
                devices.append(device.type)
    return devices


def _connections_to_be(given: dict[str, Any]) -> Connections | None:
    """The connections of a group that is about to be built, from the arguments of _new_process_group_helper."""
    try:
        c10d: Any = sys.modules[_C10D]
        store = c10d.PrefixStore(f"{given['group_name']}/", given["store"])
        devices = list(c10d.BackendConfig(c10d.Backend(given["backend"])).get_device_backend_map())
        return Connections(store, given["group_name"], devices, given["group_rank"], given["group_size"])
    except Exception:
        _log.debug("a process group is built in an unknown way", exc_info=True)
        return None


def _unnoted() -> list[tuple[Any, Any]]:
    with _lock:
        noted = [group.group() for group in _noted]
    groups = registered_groups().items()
    return [(group, store) for group, store in groups if not any(group is other for other in noted)]


def _note_all() -> None:
    for group, store in _unnoted():
        _note(group, store)


def _note_and_cut() -> None:
    for group, store in _unnoted():
        if noted := _note(group, store):
            noted.cut()


def _begin_in_child() -> None:
    """A forked child shares its parent's connections, and must neither cut them nor keep them open."""
    global _lock, _world_is_over
    _lock = threading.RLock()
    _world_is_over = False
    _parents[:] = [weakref.ref(group) for group in registered_groups()]
    for connections in [*(noted.connections for noted in _noted), *(build.connections for build in _builds), *_left]:
        if connections is not None:
            connections.let_go_in_child()
    for of_the_parent in (_noted, _builds, _left):
        of_the_parent.clear()


os.register_at_fork(after_in_child=_begin_in_child)
