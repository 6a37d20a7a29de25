"""A node of workers that each are a replica group of torchft: starts them, and starts again whoever ends.

replicas.py NODE WORKERS COMMAND…; each worker gets its replica's name as its last argument. This is what a user's own
launcher does there; it imports nothing that takes time. On SIGTERM the workers get SIGTERM, and the node ends.
"""

import signal
import subprocess
import sys
import time
from typing import NoReturn

LOOK_S = 0.01


def main() -> NoReturn:
    node, workers, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    names = [f"node-{node}-{number}" for number in range(workers)]
    running = {name: subprocess.Popen([*command, name]) for name in names}

    def leave(*_: object) -> NoReturn:
        for worker in running.values():
            worker.terminate()
        for worker in running.values():
            worker.wait()
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    while True:
        for name, worker in running.items():
            if worker.poll() is not None:
                running[name] = subprocess.Popen([*command, name])
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
