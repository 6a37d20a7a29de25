"""The fork server: a process that has imported torch, and is forked into each worker that runs a Python script.

It is run as a script (`python FLAGS fork_server_main.py DESCRIPTOR PADDING MODULE...`) with the flags and the
environment of the workers, so Python reads the same things at its start as it would in a worker. PADDING makes room for
the workers' command lines. It has no threads and no CUDA. The agent sends requests over a socket:

    {"modules": [...]}  ──▶   {"ready": true}, or {"unfit": "why"} and it ends. This comes first, and once
    {"script": ...} with
    a lifeline's end    ──▶   {"pid": 123} with a pidfd and, when that process has ended, {"ended": 123, "code": -9};
                              or {"refused": "why"}

It ends when the other end of the socket is closed.

A forked worker then does what Python does with a script, or with -m, in a new process.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # this file's directory: no worker must import from it

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 20
LOAD_S = 300.0


def serve(control: socket.socket, modules: list[str]) -> dict[str, Any]:
    """Fork the workers that are asked for. Returns only in the forked processes, with the order for that worker."""
    # A signal to all processes of a job is meant for the workers. If it ended this process, their exit codes were lost.
    unblocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    unfit = load(modules) or load(json.loads(received(control)[0] or "{}").get("modules", [])) or why_unfit()
    send(control, {"unfit": unfit} if unfit else {"ready": True})
    if unfit:
        os._exit(0)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ, 0)
    while True:
        for key, _ in selector.select():
            if key.data:
                _, status = os.waitpid(key.data, 0)
                selector.unregister(key.fd)
                os.close(key.fd)
                send(control, {"ended": key.data, "code": os.waitstatus_to_exitcode(status)})
                continue
            request, lifeline = received(control)
            if not request:
                os._exit(0)
            order: dict[str, Any] = json.loads(request)
            if hidden := hidden_modules(order):
                why = f"{hidden} beside the script would not be imported: another is loaded already"
                send(control, {"refused": why})
                close(lifeline)
                continue
            try:
                pid = os.fork()
            except OSError as error:  # no memory, or too many processes
                send(control, {"refused": f"a fork failed ({error.strerror})"})
                close(lifeline)
                continue
            if pid == 0:
                close([other.fd for other in selector.get_map().values()])
                control.detach()
                selector.close()
                become_worker(order, *lifeline)
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
                return order
            close(lifeline)
            pidfd = os.pidfd_open(pid)
            selector.register(pidfd, selectors.EVENT_READ, pid)
            send(control, {"pid": pid}, pidfd)


def hidden_modules(order: dict[str, Any]) -> str:
    """The names of the user's own modules, beside the script, that this process has others of."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return ""
    directory = Path(order["directory"])
    if not order["is_module"]:
        directory = (directory / order["script"]).resolve().parent
    try:
        files = os.listdir(directory)  # noqa: PTH208 - there may be many
    except OSError:
        return ""
    loaded = sys.modules.keys() - {"__main__"}
    alike = [(name, directory / file) for file in files if (name := file.partition(".")[0]) in loaded]
    return ", ".join(sorted({name for name, path in alike if hides(path, sys.modules[name])}))


def hides(path: Path, module: types.ModuleType) -> bool:
    """Whether Python would import this instead of the module; a folder without `__init__.py` comes last."""
    if path.suffix not in (".py", ".pyc", ".so") and not (path / "__init__.py").is_file():
        return False
    file = getattr(module, "__file__", None)
    return file is None or not Path(file).resolve().is_relative_to(path.parent)


def load(modules: list[str]) -> str:
    """Import what the workers will import. Returns why that is impossible, or an empty string."""
    # Not with faulthandler's own timer: that is a thread, which may still be there when threads are counted.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, LOAD_S)
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"{name} cannot be imported ({type(error).__name__}: {error})"
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    faulthandler.unregister(signal.SIGALRM)
    return ""


def why_unfit() -> str:
    """Return why this process cannot be forked, or an empty string."""
    # OpenBLAS ends its threads before a fork, and can start them again.
    torch = sys.modules.get("torch")
    if (rehearsal := os.fork()) == 0:
        os._exit(int(torch is not None and torch.cuda._is_in_bad_fork()))
    if os.waitpid(rehearsal, 0)[1]:
        return "what they import has asked for CUDA, which does not bear a fork"
    try:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only the number of names counts
    except OSError:
        return "there is no /proc here, which shows whether what they import has started threads"
    if threads > 1:
        return f"what they import has started {threads - 1} threads, which a fork does not have"
    gc.collect()
    gc.freeze()
    return ""


def close(descriptors: list[int]) -> None:
    """Close these descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def received(control: socket.socket) -> tuple[bytes, list[int]]:
    """The agent's next order, and the worker's lifeline; nothing if the agent is gone."""
    try:
        request, lifeline, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
    except ConnectionError:  # killed before it had read what it was told
        return b"", []
    return request, lifeline


def send(control: socket.socket, message: dict[str, Any], *descriptors: int) -> None:
    """Send a message to the agent. If the agent is gone, this process ends."""
    try:
        socket.send_fds(control, [json.dumps(message).encode()], descriptors)
    except OSError:
        os._exit(0)  # nobody listens any more


def become_worker(order: dict[str, Any], *lifeline: int) -> None:
    """Make the forked process like a new one: its session, streams, environment, and what Python knows."""
    from softrun.agent.workers.lifeline import tie  # found only once softrun's modules are loaded

    os.setsid()
    for descriptor in lifeline:
        tie(descriptor)
    os.chdir(order["directory"])
    for number, path in ((1, order["out"]), (2, order["err"])):
        if path:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            os.dup2(file, number)
            os.close(file)
    os.environ.update(order["set"])
    for name in order["unset"]:
        os.environ.pop(name, None)
    for limit, soft, hard in order["limits"]:
        with contextlib.suppress(OSError, ValueError):  # a sandbox does not support it
            resource.setrlimit(limit, (soft, hard))
    for signum in order["signals"]:  # a new process would have the default of those that the agent handles
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    sys.stdout = sys.__stdout__ = reopened(sys.stdout, 1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = reopened(sys.stderr, 2)  # type: ignore[misc]
    sys.argv = list(order["argv"])
    sys.orig_argv = list(order["command"])
    importlib.invalidate_caches()
    # Every worker needs its own random numbers. The module `random` sees to that itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    show_command(order["command"])


def reopened(stream: Any, number: int) -> Any:
    """The same stream, reopened on a descriptor that may lead elsewhere now."""
    if stream is None:
        return None
    raw = io.FileIO(number, "w", closefd=False)
    raw.name = stream.name
    binary: Any = raw if stream.write_through else io.BufferedWriter(raw)
    text: Any = io.TextIOWrapper(
        binary,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=not stream.write_through and (number == 2 or raw.isatty()),
        write_through=stream.write_through,
    )
    text.mode = "w"
    return text


def show_command(command: list[str]) -> None:
    """Change what `ps` shows: the memory that holds this process's arguments has room for so many characters."""
    import ctypes

    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return  # a sandbox without /proc
    begin, end = int(fields[45]), int(fields[46])
    if end <= begin:
        return  # a sandbox does not say
    text = b"\0".join(os.fsencode(word) for word in command)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


def run(order: dict[str, Any]) -> None:
    """Run the script or the module as `__main__`."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    names = main.__dict__
    names.update(__builtins__=__builtins__, __annotations__={})
    safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if order["is_module"]:
        if not safe:
            sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(order["script"])  # type: ignore[attr-defined]
        return
    path = os.path.abspath(order["script"])  # noqa: PTH100 - like Python, it resolves no links
    if not safe:
        sys.path.insert(0, str(Path(path).resolve().parent))
    names.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), names)


def end_with(error: BaseException) -> None:
    """End the interpreter as an uncaught exception does, without frames of this file in the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.excepthook(type(error), error, trace)
    sys.excepthook = lambda *_: None
    raise error.with_traceback(trace)


def main() -> None:
    """Serve until the agent closes the socket; each fork comes back here as a worker."""
    show_command(["softrun fork server"])
    order = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[3:])
    try:
        run(order)
    except SystemExit:
        raise
    except BaseException as error:
        end_with(error)


if __name__ == "__main__":
    main()
