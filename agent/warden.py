"""The warden: a small process beside an agent, which ends whatever an agent that dies leaves behind.

It is run as a script (`python -I -S warden.py MARK DIRECTORY`) and holds the reading end of a pipe whose writing end
only the agent has. When the agent dies, however it dies, the kernel closes that end; the warden then kills every
process that carries `SOFTRUN_AGENT=MARK` in its environment, which are the workers and all that they have started,
and removes the agent's channels. An agent that ends in good order says so first, and the warden just ends.

A parent-death signal would reach the workers alone, not their children, and is lost when the agent's thread that
started them ends.
"""

import os
import shutil
import signal
import sys
import time

VARIABLE = "SOFTRUN_AGENT"
ALL_IS_WELL = b"."
_ROUNDS = 200


def main(mark: str, directory: str) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)  # it ends with its agent, and only then
    if os.read(0, 1) == ALL_IS_WELL:
        return
    for _ in range(_ROUNDS):
        if not kill_marked(mark):
            break
        time.sleep(0.005)  # a process that forked while it was killed is found in the next round
    shutil.rmtree(directory, ignore_errors=True)


def kill_marked(mark: str) -> int:
    """Send SIGKILL to every process with the mark; returns how many there were."""
    entry = f"{VARIABLE}={mark}".encode()
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs start-up time
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
                marked = entry in file.read().split(b"\0")
            if marked:
                os.kill(int(name), signal.SIGKILL)
                found += 1
        except OSError:
            continue  # ended meanwhile, or not ours
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
