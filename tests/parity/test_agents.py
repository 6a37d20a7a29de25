"""What programs that build their agent themselves ask of it: softrun's agent answers as torch's does."""

from __future__ import annotations

from pathlib import Path

import pytest
from nursery import Nursery
from programs import run_program
from torchrun import torchruns

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PREPARE = """
import logging, os, signal, sys, threading, time
import multiprocessing as mp
import torch
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
IMPORTS

def spec(work, *args, workers=2, restarts=0, nodes=1, endpoint="localhost:0", settings={}, **more):
    params = RendezvousParameters("c10d", endpoint, "job", nodes, nodes, **settings)
    return WorkerSpec(role="trainer", local_world_size=workers, entrypoint=work, args=args, max_restarts=restarts,
                      rdzv_handler=get_rendezvous_handler(params), monitor_interval=0.1, **more)

def run(work, *args, **more):
    return LocalElasticAgent(spec(work, *args, **more), DefaultLogsSpecs(), start_method="fork").run()

def known(error):  # by its name in torch, if it has one
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("torch.")]
    return (names or [type(error).__name__])[0]

def by_rank(values):  # torch has them in the order in which they came
    return dict(sorted(values.items()))
"""
VALUES = """
def state():
    weight = torch.arange(6.0).reshape(2, 3)
    return {"weight": weight, "parts": [weight[1], (weight.t(), 7)], "half": torch.ones(2, dtype=torch.bfloat16),
            "parameter": torch.nn.Parameter(torch.zeros(2)), "empty": torch.empty(0, 2)}

def locked():
    return threading.Lock()

def killed_at_first():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return torch.full((100, 100), float(os.environ["RANK"]))

def left():
    sys.exit(0)

if __name__ == "__main__":
    values = by_rank(run(state).return_values)
    print(values)
    values[0]["weight"].fill_(3)
    print("filled", values)
    print("left", by_rank(run(left).return_values))
    result = run(locked, workers=1)
    print("locked", result.state, result.return_values, {k: v.exitcode for k, v in result.failures.items()})
    print("killed", by_rank(run(killed_at_first, restarts=3).return_values))
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.append(by_rank(run(os.getenv, "RANK").return_values)))
    thread.start()
    thread.join()
    print("thread", in_thread)
"""
MEETING = """
def place():
    return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]

def node(rank):
    # Which of them is which node is not said, so each tells where all of its own workers meet.
    where = dict(master_addr="named", master_port=42, endpoint="127.0.0.1:FREE_PORT", settings={"is_host": rank == 0})
    os.write(1, f"{sorted(set(run(place, nodes=2, **where).return_values.values()))}\\n".encode())

if __name__ == "__main__":
    print(by_rank(run(place, master_addr="named", master_port=42).return_values))
    print(run(place, workers=1, master_addr="named").return_values[0][0])
    print(run(place, workers=1, master_port=42).return_values[0][1], flush=True)
    nodes = [mp.Process(target=node, args=(rank,)) for rank in (0, 1)]
    for one in nodes:
        one.start()
    for one in nodes:
        one.join()
    print([one.exitcode for one in nodes])
"""
SHUTDOWN = """
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.rendezvous.registry import handler_registry

class Told(logging.Handler):
    def emit(self, record):
        if '"state": "FAILED"' in record.getMessage() and '"source": "AGENT"' in record.getMessage():
            print("  the agent has failed")

class Mine(RendezvousHandler):
    def get_backend(self): return "mine"
    def get_run_id(self): return "job"
    def next_rendezvous(self): raise KeyboardInterrupt
    def is_closed(self): return False
    def set_closed(self): pass
    def num_nodes_waiting(self): return 0
    def shutdown(self): return True

handlers._log_handlers["told"] = Told()
handler_registry.register("mine", lambda params: Mine())

def count(kind, counted):
    shutdown = kind.shutdown
    def counting(self):
        counted.append(1)
        return shutdown(self)
    kind.shutdown = counting

def fail():
    raise ValueError("always")

def signal_agent():
    for _ in range(6):
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(10)  # torch's agent loses a signal that comes while it writes a log line

def launch(what, work, **changes):
    fields = dict(min_nodes=1, max_nodes=1, nproc_per_node=1, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                  run_id="job", max_restarts=0, monitor_interval=0.1, start_method="fork", event_log_handler="told")
    counted.clear()
    try:
        print(what, elastic_launch(LaunchConfig(**{**fields, **changes}), work)(), len(counted))
    except BaseException as error:
        print(what, known(error), len(counted))

if __name__ == "__main__":
    counted = []
    for kind in (type(spec(fail).rdzv_handler), Mine):
        count(kind, counted)
    result = LocalElasticAgent(spec(os.getpid), DefaultLogsSpecs(), start_method="fork").run()
    print("an agent leaves it to its caller", len(counted))
    launch("well", list)
    launch("failed", fail)
    launch("signalled", signal_agent)
    launch("too few", list, min_nodes=2, max_nodes=2, rdzv_configs={"join_timeout": 1})
    launch("interrupted", list, rdzv_backend="mine")
"""
TWO_HOSTS = """
def node(number):
    try:
        run(list, nodes=2, endpoint="127.0.0.1:FREE_PORT", settings={"is_host": True, "join_timeout": 3})
        os.write(1, b"has run\\n")
    except Exception as error:
        os.write(1, f"{known(error)}\\n".encode())

if __name__ == "__main__":
    nodes = [mp.Process(target=node, args=(number,)) for number in (0, 1)]
    for one in nodes:
        one.start()
    for one in nodes:
        one.join()
"""


def lines(nursery: Nursery, program: str, side: str, tmp_path: Path) -> list[str]:
    return run_program(nursery, PREPARE + program, side, tmp_path).splitlines()


def both(nursery: Nursery, name: str, program: str, tmp_path: Path) -> list[str]:
    """The lines that both print."""
    theirs: list[str] = torchruns(name, lambda: lines(nursery, program, "torchrun", tmp_path))
    assert lines(nursery, program, "softrun", tmp_path) == theirs
    return theirs


def test_functions_return_the_same(nursery: Nursery, tmp_path: Path) -> None:
    said = both(nursery, "agent_values", VALUES, tmp_path)
    assert "locked WorkerState.FAILED {} {0: 1}" in said
    assert said[-1] == "thread [{0: '0', 1: '1'}]"


def test_workers_meet_where_the_spec_has_it(nursery: Nursery, tmp_path: Path) -> None:
    said = both(nursery, "agent_meeting", MEETING, tmp_path)
    assert said[:3] == ["{0: ('named', '42'), 1: ('named', '42')}", "named", "42"]
    assert said[3:] == ["[('named', '42')]"] * 2 + ["[0, 0]"]


def test_a_handler_is_shut_down_when_torchs_launcher_would(nursery: Nursery, tmp_path: Path) -> None:
    assert both(nursery, "agent_shutdown", SHUTDOWN, tmp_path) == [
        "an agent leaves it to its caller 0",
        "well {0: []} 1",
        "failed ChildFailedError 1",
        "  the agent has failed",
        "signalled SignalException 0",
        "  the agent has failed",
        "too few RendezvousTimeoutError 1",
        "interrupted KeyboardInterrupt 1",
    ]


def test_two_nodes_that_are_both_to_host_meet_where_with_torch_one_fails_at_once_and_one_waits(
    nursery: Nursery, tmp_path: Path
) -> None:
    """There is nothing to host: one listens at the endpoint, and the other finds it there."""
    theirs = torchruns("agent_two_hosts", lambda: lines(nursery, TWO_HOSTS, "torchrun", tmp_path))
    assert theirs == ["RendezvousConnectionError", "RendezvousTimeoutError"]
    assert lines(nursery, TWO_HOSTS, "softrun", tmp_path) == ["has run", "has run"]
