"""What a worker's function returns comes back to the agent, whatever it is and however the worker was started."""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from local_cluster import PATIENCE_S
from softrun.agent.errors import SoftrunError
from softrun.agent.workers.processes import Function, Start
from softrun.agent.workers.return_values import ReturnedValue

STRATEGIES = ["file_descriptor", "file_system"]


def ended(start_method: str, call: Any, *args: object) -> Function:
    """A worker that has come to its end; whatever it left in its memory, or with its server, is gone."""
    process = Function(start_method, Start(call, args))
    process.release()
    end = process.exit_fd()
    assert select.select([end], [], [], PATIENCE_S)[0]
    os.close(end)
    assert process.reap(PATIENCE_S) is not None
    return process


def state_of(strategy: str) -> dict[str, Any]:
    torch.multiprocessing.set_sharing_strategy(strategy)
    weight = torch.arange(6.0).reshape(2, 3)
    return {
        "model": [{"weight": weight, "tied": weight, "row": weight[1]}],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "step": 7,
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_tensors_outlive_the_worker_and_leave_nothing_behind(start_method: str, strategy: str) -> None:
    process = ended(start_method, state_of, strategy)
    state = process.value()
    (model,) = state["model"]
    assert torch.equal(model["weight"], torch.arange(6.0).reshape(2, 3))
    model["weight"][1, 0] = 40.0
    assert model["tied"][1, 0] == model["row"][0] == 40.0, "those that shared memory still do"
    assert isinstance(state["parameter"], torch.nn.Parameter)
    assert state["parameter"].requires_grad
    assert state["step"] == 7
    assert not list(Path("/dev/shm").glob(f"torch_{process.pid}_*"))


def many(count: int, size: int) -> list[torch.Tensor]:
    return [torch.full((size,), float(number)) for number in range(count)]


@pytest.mark.parametrize(("count", "size"), [(3000, 1), (1, 1 << 26)], ids=["more_than_descriptors", "256 MiB"])
def test_many_tensors_and_large_ones(count: int, size: int) -> None:
    tensors = ended("fork", many, count, size).value()
    assert [tensor.shape for tensor in tensors] == [(size,)] * count
    assert tensors[-1][-1] == count - 1


def leave() -> None:
    raise SystemExit(0)


def vanish() -> None:
    os._exit(0)


class Unreadable:
    def __setstate__(self, state: object) -> None:
        raise ValueError("not\nhere")

    def __getstate__(self) -> object:
        return "something"


def test_a_function_that_leaves_by_exit_has_returned_nothing() -> None:
    assert ended("fork", leave).value() is None


def test_one_that_vanished_is_told_from_one_that_returned() -> None:
    with pytest.raises(SoftrunError, match=r"^a worker exited 0 before its function returned: .*$"):
        ended("fork", vanish).value()


def test_what_does_not_unpickle_is_one_line() -> None:
    with pytest.raises(SoftrunError, match=r"^what a worker returned cannot be read \(ValueError: not\): .*$"):
        ended("fork", Unreadable).value()


def test_what_does_not_pickle_is_the_workers_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(report))
    assert ended("fork", threading.Lock).reap() == 1
    assert "what the function returned cannot be sent (TypeError: cannot pickle" in report.read_text()


def round_trip(value: Any) -> Any:
    returned = ReturnedValue()
    returned.write(value)
    return returned.read()


VALUES = {
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3),
    "view": torch.arange(12.0).reshape(3, 4).t()[1:, ::2],
    "half": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.ones(2, dtype=torch.complex64).conj(),
    "bool": torch.tensor([True, False]),
    "not_a_leaf": torch.ones(2, requires_grad=True) * 2,
    "sparse": torch.eye(3).to_sparse(),
    "shared": torch.ones(2).share_memory_(),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_kind_of_tensor(name: str) -> None:
    value, back = VALUES[name], round_trip(VALUES[name])
    assert (back.dtype, back.shape, back.layout) == (value.dtype, value.shape, value.layout)
    assert back.requires_grad == value.requires_grad
    assert torch.equal(back.to_dense(), value.to_dense())


def test_a_tensor_of_a_device_without_memory() -> None:
    assert round_trip(torch.ones(2, 3, device="meta")).shape == (2, 3)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_compressed_tensor() -> None:
    value = torch.eye(3).to_sparse_csr()
    assert torch.equal(round_trip(value).to_dense(), torch.eye(3))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_by_itself() -> None:
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    assert round_trip(storage).tolist() == [0, 1, 2, 3]
    assert round_trip(torch.arange(3.0).storage()).tolist() == [0.0, 1.0, 2.0]


def test_a_module_with_its_optimizer() -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    again, state = round_trip((module, optimizer.state_dict()))
    assert torch.equal(again(torch.ones(2)), module(torch.ones(2)))
    assert state == optimizer.state_dict()


def test_a_connection_is_refused() -> None:
    here, there = multiprocessing.Pipe()
    with here, there, pytest.raises(SoftrunError, match=r"cannot be sent .*a Connection is of use in its own process"):
        round_trip(here)


def test_its_memory_is_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    round_trip(b"x" * 1000)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
