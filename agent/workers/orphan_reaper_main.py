"""The orphan reaper: a small process beside an agent, which ends whatever the agent leaves behind when it dies.

It is run as a script (`python -I -S orphan_reaper_main.py TOKEN DIRECTORY AGENT [LISTENER TESTAMENT]`) and holds the
reading end of a pipe whose writing end only the agent has. When the agent dies, however it dies, the kernel closes that
end; the reaper then kills every process that carries a mark with that TOKEN, which are the workers and all that they
have started, and removes the agent's channels. For `TELLS_S` it answers whoever dials the agent that this one has ended
(`softrun.agent.proof.testament`), if it was given the agent's listening socket and its testament, as two descriptors.

An agent that ends in good order says so first. The reaper then kills and removes nothing, but it answers, for
`TELLS_IN_ORDER_S`: a peer whose link broke just then has not heard that the agent left, or that the job is over.

A mark is `TOKEN-NUMBER`: the agent's token and the number of the worker. A process carries it in two ways:

- as its soft limit of RLIMIT_LOCKS, which no kernel since Linux 2.4 enforces. Whatever a process starts inherits it,
  even in a new session, without a parent, as another program, with an emptied environment. Nothing sets it by accident.
- as `SOFTRUN_AGENT=MARK` in the environment that it was started with, for systems on which that limit cannot be set.
  It is lost if a process overwrites that memory to show another name.

A reaper itself carries no mark, so that a launcher inside a worker keeps its reapers when that worker is killed with
all that it started. Its name has nothing in common with a launcher's, so that it survives `pkill -f` with the
launcher's name. Without /proc it finds no process; then only the workers' lifelines end them (`lifeline.py`).
"""

import os
import resource
import select
import signal
import sys

TYPE_CHECKING = False  # like the name in `typing`, whose import takes time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

TELLS_S = 60.0
"""For how long it answers for an agent that was killed."""
TELLS_IN_ORDER_S = 10.0
"""For how long it answers for one that has ended in good order."""
ANSWERS_FIRST_S = 0.5  # before it tidies up: peers that had a link ask at once
_LOOKS_ROUND_S = 1.0  # what it needs to answer is read then, if its agent lives so long
VARIABLE = "SOFTRUN_AGENT"
ALL_IS_WELL = b"."
LIMIT = 10  # RLIMIT_LOCKS

_NUMBER_BITS = 20
_ROUNDS = 1000
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46  # fields of /proc/self/stat, counted after the name


def main(token: str, directory: str, agent: int, descriptors: "list[int]") -> None:
    """Wait for the agent to end, then kill what it has left behind, and answer for it."""
    # It ends with its agent, not before. A scheduler sends whatever signal it was told to, to all processes of a job.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    set_limits(*[resource.getrlimit(LIMIT)[1]] * 2)
    _show(f"orphan reaper of {agent}")
    if _agent_says(agent) == ALL_IS_WELL:
        _let_go_of_output()
        if descriptors:
            _testament().tell(*descriptors, TELLS_IN_ORDER_S)
        return
    kill_all_of(token)
    _let_go_of_output()
    if descriptors:
        _testament().tell(*descriptors, ANSWERS_FIRST_S)
    import shutil  # imported only now, since it takes time

    shutil.rmtree(directory, ignore_errors=True)
    if descriptors:
        _testament().tell(*descriptors, TELLS_S)


def mark_of(token: str, number: int) -> str:
    """The mark of one worker: the agent's token, and the worker's number."""
    return f"{token}-{number}"


def limits_with(mark: str) -> tuple[int, int]:
    """The soft and the hard limit of a process that carries the mark; give them to `set_limits`."""
    return _limit_of(mark), resource.getrlimit(LIMIT)[1]


def set_limits(soft: int, hard: int) -> None:
    """Set the mark of this process, which its children inherit."""
    try:
        resource.setrlimit(LIMIT, (soft, hard))
    except (OSError, ValueError):
        return  # a sandbox does not support it, or the hard limit is lower


def kill_all_of(token: str) -> None:
    """Send SIGKILL to every process with a mark of this token, except this process."""
    entry = f"\0{VARIABLE}={token}-".encode()
    _kill(lambda pid: _soft_limit(pid) >> _NUMBER_BITS == int(token, 16) or entry in b"\0" + _environment(pid))


def kill_marked(mark: str) -> None:
    """Send SIGKILL to every process that has inherited exactly this mark, except this process."""
    value = _limit_of(mark)
    _kill(lambda pid: _soft_limit(pid) == value)


def _kill(is_meant: "Callable[[int], bool]") -> None:
    """A process that was sent SIGKILL starts nothing more; what it started before shows up in the next round."""
    killed = {os.getpid()}
    for _ in range(_ROUNDS):
        found = [pid for pid in _all_pids() if pid not in killed and is_meant(pid)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # ended meanwhile
        if not found:
            return
        killed.update(found)


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib costs start-up time
    except OSError:
        return []


def _limit_of(mark: str) -> int:
    token, _, number = mark.partition("-")
    return int(token, 16) << _NUMBER_BITS | int(number) % (1 << _NUMBER_BITS)


def _soft_limit(pid: int) -> int:
    try:
        return resource.prlimit(pid, LIMIT)[0]
    except OSError:
        return 0  # ended meanwhile, or not ours


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
            return file.read()
    except OSError:
        return b""


def _agent_says(agent: int) -> bytes:
    """What the agent says when it ends; nothing if it dies. Processes that it forked may hold the pipe, too."""
    ends = select.poll()
    ends.register(0, select.POLLIN)
    try:
        ends.register(os.pidfd_open(agent), select.POLLIN)
    except OSError:
        return b""
    ended = dict(ends.poll(_LOOKS_ROUND_S * 1000))
    if not ended:
        _testament()
        ended = dict(ends.poll())
    return os.read(0, 1) if 0 in ended else b""


def _testament() -> "ModuleType":
    """Return the module with which it answers, imported without what its packages would import besides."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    for name, places in (("softrun", []), ("softrun.agent", [here]), ("softrun.agent.proof", [f"{here}/proof"])):
        if name not in sys.modules:
            sys.modules[name] = type(sys)(name)
            sys.modules[name].__path__ = places
    from softrun.agent.proof import testament

    return testament


def _let_go_of_output() -> None:
    """Whoever reads what the agent has printed must not wait for this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)


def _show(name: str) -> None:
    """Change what `ps` shows, without importing a module for it."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            memory.seek(begin)
            memory.write(name.encode()[: end - begin - 1].ljust(end - begin, b"\0"))
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123
            file.write("orphan reaper")
    except OSError:
        return  # a sandbox


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(argument) for argument in sys.argv[4:]])
