"""A real etcd on this machine, with one member or several: for development and the tests.

As a program it runs until it is interrupted, and prints the endpoint for `--rdzv_endpoint`.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from local_cluster import end_in_order_on_sigterm, free_port

if TYPE_CHECKING:
    from typing_extensions import Self


class LocalEtcd:
    """Its members, by number. Use it as a context manager: nothing outlives it.

    `flags` go to every member; `scheme` is https if they bring certificates; `client` is what etcdctl needs then.
    """

    def __init__(
        self,
        directory: Path,
        members: int = 1,
        *,
        host: str = "127.0.0.1",
        ports: Sequence[int] | None = None,
        flags: Sequence[str] = (),
        scheme: str = "http",
        client: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        if shutil.which("etcd") is None:
            raise FileNotFoundError("there is no etcd on this machine: apt-get install etcd-server etcd-client")
        self.directory = directory
        self._ports = list(ports or [free_port() for _ in range(members)])
        self._peers = [free_port() for _ in range(members)]
        self._host, self._flags, self._scheme, self._client = host, flags, scheme, client
        self._prefix = prefix  # of every command, such as `ip netns exec NAME`
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def endpoint(self) -> str:
        return ",".join(f"{self._host}:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        self.processes = [self._start(number) for number in range(len(self._ports))]
        try:
            self.wait_until_healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def start_again(self, number: int) -> None:
        self.processes[number] = self._start(number)

    def signal(self, number: int, signum: int) -> None:
        self.processes[number].send_signal(signum)

    def leader(self) -> int:
        """The number of the member that leads."""
        for number, port in enumerate(self._ports):
            status = self.ctl("endpoint", "status", "-w", "fields", endpoint=f"{self._host}:{port}")
            fields = dict(line.split(" : ", 1) for line in status.splitlines() if " : " in line)
            if fields['"MemberID"'] == fields['"Leader"']:
                return number
        raise RuntimeError("no member leads")

    def ctl(self, *args: str, endpoint: str | None = None) -> str:
        """What `etcdctl` prints; raises CalledProcessError."""
        url = ",".join(f"{self._scheme}://{each}" for each in (endpoint or self.endpoint).split(","))
        command = [*self._prefix, "etcdctl", "--endpoints", url, "--command-timeout=5s", *self._client, *args]
        return subprocess.run(
            command,
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def wait_until_healthy(self, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.ctl("endpoint", "health")
            except subprocess.CalledProcessError as error:
                if time.monotonic() >= deadline:
                    logs = "\n".join(path.read_text()[-2000:] for path in self.directory.glob("*.log"))
                    raise TimeoutError(f"etcd is not healthy: {error.stderr}\n{logs}") from error
                time.sleep(0.05)
            else:
                return

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        client = f"{self._scheme}://{self._host}:{self._ports[number]}"
        peers = [f"http://{self._host}:{port}" for port in self._peers]
        command = [
            *self._prefix,
            "etcd",
            f"--name=m{number}",
            f"--data-dir={self.directory / f'm{number}'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peers[number]}",
            f"--initial-advertise-peer-urls={peers[number]}",
            f"--initial-cluster={','.join(f'm{n}={url}' for n, url in enumerate(peers))}",
            *self._flags,
        ]
        with (self.directory / f"m{number}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/etcd", description=__doc__)
    parser.add_argument("--members", type=int, choices=(1, 3), default=1)
    parser.add_argument("--port", type=int, default=2379, help="of the first member; the others take the next ones")
    args = parser.parse_args()
    end_in_order_on_sigterm()
    ports = [args.port + number for number in range(args.members)]
    with (
        tempfile.TemporaryDirectory(prefix="softrun-etcd-") as directory,
        LocalEtcd(Path(directory), args.members, ports=ports) as etcd,
    ):
        print(f"etcd runs until you interrupt it: --rdzv_backend etcd3 --rdzv_endpoint {etcd.endpoint}", flush=True)
        signal.pause()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
