"""The process that launchers and workers of the tests are forked from. It has imported what these do.

It is run as `python -u nursery_main.py DESCRIPTOR PADDING`. Over the socket come orders, each with a number, and go the
process ids and exit codes. It has no threads, and has looked up no name.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import random
import select
import selectors
import signal
import socket
import sys
import types
import weakref
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 20
LAUNCHER = ["-m", "softrun"]
NETWORK_NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x4000_0000
OF_TRAINERS = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.nn.parallel")
"""What trainers of the tests import, or torch for them, at the cost of seconds."""
LEFT_ALONE: dict[str, types.ModuleType] = {}
"""The modules that were imported here."""
READ_AT_THE_START = ("PYTHON", "LD_", "TORCH_", "OMP_", "MKL_", "KMP_", "CUDA_", "MALLOC_", "RES_", "LOCALDOMAIN")
"""What begins so is read when Python, or torch, begins."""
RANK_OF_OTHERS = {"RANK", "WORLD_SIZE", "MASTER_ADDR"}
"""What another launcher tells the ranks that it starts."""
READ_LATER = ("TORCH_NCCL_", "TORCH_FR_")
"""But this is not: it is read when a group is made."""


def alike(environment: dict[str, str], own: dict[str, str]) -> bool:
    """Whether a process with the first cannot be told from a fork of one with the second."""
    differ = {name for name in {*environment, *own} if environment.get(name) != own.get(name)}
    return not any(name.startswith(READ_AT_THE_START) and not name.startswith(READ_LATER) for name in differ)


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork what is asked for. Returns in the forks alone, with the order; ends with the other end of the socket."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data:
                number, pid = key.data
                _, status = os.waitpid(pid, 0)
                selector.unregister(key.fd)
                os.close(key.fd)
                send(control, {"ended": number, "code": os.waitstatus_to_exitcode(status)})
                continue
            message = control.recv(MESSAGE_BYTES)
            if not message:
                end([other.data[1] for other in selector.get_map().values() if other.data])
            order = json.loads(message)
            pid = os.fork()
            if not pid:
                for other in list(selector.get_map().values()):
                    os.close(other.fd)
                control.detach()
                selector.close()
                return order
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (order["number"], pid))
            send(control, {"pid": pid})


def end(left: list[int]) -> None:
    """Nobody outlives the nursery whom a test has left behind."""
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def send(control: socket.socket, news: dict[str, int]) -> None:
    with contextlib.suppress(BrokenPipeError):
        control.send(json.dumps(news).encode())


def become(order: dict[str, Any]) -> None:
    """Make the fork like a new process, for all that the program sees."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN if order["ignores_sigint"] else signal.default_int_handler)
    for descriptor, name in ((1, "log"), (2, "errors")):
        file = os.open(order[name], os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    set_environment(order["env"])
    os.chdir(order["here"])
    if order["network"]:
        enter(NETWORK_NAMESPACES / order["network"])
    random.seed()
    for name, seed in (("numpy.random", "seed"), ("torch.random", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], seed)()
    del sys.path[0]


def enter(namespace: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns", str(namespace))
    os.close(descriptor)


def run(words: list[str]) -> None:
    """Run what Python finds on its command line: `-c TEXT`, `-m MODULE` or a script."""
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=__builtins__, __annotations__={})
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
        return
    from softrun.agent.workers import fork_server_main

    is_module = words[0] == "-m"
    name, *args = words[is_module:]
    sys.argv[:] = [name, *args]
    fork_server_main.run({"is_module": is_module, "script": name})


def set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


class Spare:
    """A fork of a process from before the program begins: it becomes what the program starts first, or ends with it."""

    def __init__(self) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self.orders.close()
            interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
            message, descriptors, _, _ = socket.recv_fds(theirs, MESSAGE_BYTES, 1)
            if not message:
                os._exit(0)
            theirs.close()
            signal.signal(signal.SIGINT, interrupted)
            order = json.loads(message)
            set_environment(order["env"])
            show_environment()
            self.serve(order, descriptors[0])  # it ends, and so does what it forks, with the interpreter
            sys.exit()
        theirs.close()

    def begin(self, order: dict[str, Any], descriptor: int) -> Child:
        """Have it become what the order says."""
        socket.send_fds(self.orders, [json.dumps(order).encode()], [descriptor])
        process, self.pid = Child(self.pid), 0
        return process

    def serve(self, order: dict[str, Any], descriptor: int) -> None:
        """What it becomes."""
        raise NotImplementedError


class SpareForkServer(Spare):
    """Of a launcher."""

    def __init__(self, environment: dict[str, str] | None) -> None:
        """`environment` is what torch has read when it was imported; None if that plays no part."""
        from softrun.agent.workers import fork_server

        self._environment = environment
        self._starts_another, fork_server.start = fork_server.start, self.start
        super().__init__()

    def start(self, command: list[str], environment: dict[str, str], descriptor: int) -> Any:
        """As `fork_server.start`, which is what a second one is started by."""
        from softrun.agent.workers.fork_server import SCRIPT_FLAGS

        flags = tuple(command[1 : 1 + len(SCRIPT_FLAGS)])
        is_alike = self._environment is None or alike(environment, self._environment)
        if not self.pid or flags != SCRIPT_FLAGS or not is_alike:
            return self._starts_another(command, environment, descriptor)
        process = self.begin({"argv": command[1 + len(flags) :], "env": environment}, descriptor)
        self.orders.close()
        return process

    def serve(self, order: dict[str, Any], descriptor: int) -> None:
        from softrun.agent.workers import fork_server_main

        os.setsid()
        program, _, *rest = order["argv"]
        sys.argv[:] = [program, str(descriptor), *rest]
        del sys.path[0]
        fork_server_main.main()


class SpareAgent(Spare):
    """Of a rank that no agent has started; the first wrapped call starts one for it."""

    def __init__(self) -> None:
        from softrun.runtime.inprocess.calls import light_agent

        self._starts_another, light_agent._start = light_agent._start, self.start
        super().__init__()

    def start(self, request: str, descriptor: int) -> None:
        """As `light_agent._start`, which is what a second one is started by."""
        if not self.pid:
            self._starts_another(request, descriptor)
            return
        order = {"request": request, "pid": os.getpid(), "env": dict(os.environ)}
        self.begin(order, descriptor).wait()

    def serve(self, order: dict[str, Any], descriptor: int) -> None:
        from softrun.agent import adopt
        from softrun.agent.workers.fork_server_main import show_command

        show_command([sys.executable, "-m", adopt.__name__, str(order["pid"])])
        sys.argv[:] = ["adopt", str(order["pid"])]
        request = json.loads(order["request"]) | {"descriptor": descriptor}
        sys.stdin = io.TextIOWrapper(io.BytesIO(json.dumps(request).encode()))
        sys.exit(adopt.main())


class Child:
    """A child process."""

    def __init__(self, pid: int) -> None:
        self._pid, self._pidfd = pid, os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> int:
        select.select([self._pidfd], [], [])
        os.close(self._pidfd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def show_environment() -> None:
    """Write it where /proc shows it: the tests look there for what has outlived its launcher."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    text = b"\0".join(os.fsencode(f"{name}={value}") for name, value in os.environ.items())
    if len(text) >= end - begin:
        raise AssertionError("the nursery needs more room for the environment")
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


def preload() -> None:
    atexit.register(leave_modules_alone)  # the first that is registered is the last that is called
    from softrun.agent.console import quieten_torch

    quieten_torch()
    import softrun.agent.launch
    import softrun.agent.local_agent
    import softrun.agent.torch_elastic.elastic  # noqa: F401
    from softrun.agent.workers.fork_server import PRELOADED

    for name in (*PRELOADED, *OF_TRAINERS):
        importlib.import_module(name)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # it is torch's, and unregisters operators one by one
    LEFT_ALONE.update(sys.modules)
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # with the exit code, before libraries take themselves apart
    gc.collect()
    gc.freeze()


def leave_modules_alone() -> None:
    """As a fork ends, Python would take apart what was imported here; this leaves what the program has brought.

    With what `preload` sees to, a fork ends in 0.05 s of processor time instead of 0.3: much of what a test costs.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(LEFT_ALONE))
    for name in LEFT_ALONE.keys() - {"sys", "builtins", "__main__"}:
        sys.modules.pop(name, None)


def main() -> None:
    preload()
    imported_with = dict(os.environ)
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    become(order)
    if order["words"][:2] == LAUNCHER:
        SpareForkServer(imported_with)
    else:
        show_environment()
        if order["env"].keys() >= RANK_OF_OTHERS:
            SpareAgent()
    try:
        run(order["words"])
    except SystemExit:
        raise
    except BaseException as error:
        from softrun.agent.workers.fork_server_main import end_with

        end_with(error)


if __name__ == "__main__":
    main()
