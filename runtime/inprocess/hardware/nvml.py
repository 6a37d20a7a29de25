"""What NVML, the library behind nvidia-smi, knows about the GPUs of this node.

This file alone knows its Python module, pynvml (`pip install nvidia-ml-py`). The answers are by GPU. A GPU is named by
nvidia-smi's number, like "GPU 3", or by its UUID if CUDA_VISIBLE_DEVICES has that. One that NVML cannot tell about is
left out, and all are if the module or the driver is missing; a debug line says why.

`device_index` is CUDA's number in this process, such as LOCAL_RANK: one of CUDA_VISIBLE_DEVICES. None: all GPUs.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from softrun.runtime.inprocess.calls.bounded import call_bounded

_log = logging.getLogger("softrun.runtime.inprocess")

ANSWER_S = 30.0
"""How long NVML may take to answer. Its calls can hang if a GPU is broken."""

# Higher numbers are named by number: 5 means different things in different releases of NVML.
_ACTIONS = {1: "GPU reset", 2: "node reboot", 3: "drain P2P", 4: "drain and reset"}

_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13
# These say that NVML cannot tell, not that the GPU is broken.
_NO_ANSWER = {_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _FUNCTION_NOT_FOUND}

_VISIBLE = re.compile(r"[0-9]+|GPU-.+")

Answer = TypeVar("Answer")


class GpuFault(Exception):  # noqa: N818
    """NVML reports an error of a GPU, or hangs. The text names the GPU, on one line."""


def needed_recovery(device_index: int | None) -> dict[str, str]:
    """The action that the driver (570 or newer) wants for each GPU that needs one, like "GPU reset".

    Raises GpuFault.
    """
    actions = _ask(device_index, _recovery_action)
    return {gpu: _ACTIONS.get(action, f"recovery action {action}") for gpu, action in actions.items() if action}


def active_links(device_index: int | None) -> dict[str, list[bool]]:
    """For each GPU, whether its NVLinks are active, by the number of the link. Raises GpuFault."""
    return _ask(device_index, _link_states)


def pci_address(device_index: int) -> str | None:
    """Where the GPU is on the PCI bus, as sysfs writes it, like "0000:18:00.0". Raises GpuFault."""
    return next(iter(_ask(device_index, _pci_address).values()), None)


def _recovery_action(pynvml: Any, gpu: Any) -> int:
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:  # this pynvml is older than 12.570
        raise pynvml.NVMLError(_NOT_SUPPORTED)
    [answer] = pynvml.nvmlDeviceGetFieldValues(gpu, [field])
    if answer.nvmlReturn:
        raise pynvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _link_states(pynvml: Any, gpu: Any) -> list[bool]:
    states: list[bool] = []
    for link in range(getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            states.append(bool(pynvml.nvmlDeviceGetNvLinkState(gpu, link)))
        except pynvml.NVMLError as error:
            if error.value not in (_INVALID_ARGUMENT, _NOT_SUPPORTED):
                raise
            break  # the GPU has no more links
    return states


def _pci_address(pynvml: Any, gpu: Any) -> str:
    # Old releases of pynvml give bytes. NVML writes the domain with eight digits, sysfs with four or more.
    domain, rest = os.fsdecode(pynvml.nvmlDeviceGetPciInfo(gpu).busId).lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _ask(device_index: int | None, question: Callable[[Any, Any], Answer]) -> dict[str, Answer]:
    """The answers to a question, which is a function of pynvml and a GPU's handle, by GPU."""
    try:
        pynvml: Any = importlib.import_module("pynvml")  # optional, so type checkers may not find it
    except ImportError as error:
        _log.debug("NVML is not asked: %s", error)
        return {}
    answers: dict[str, Answer] = {}
    silent: list[str] = []
    ask = partial(_ask_each, pynvml, device_index, question, answers, silent)
    if not call_bounded(ask, timedelta(seconds=ANSWER_S), "softrun-nvml"):
        gpus = "the GPUs" if device_index is None else f"device_index={device_index}"
        raise GpuFault(f"NVML did not answer about {gpus} within {ANSWER_S:g} s")
    if silent:
        _log.debug("NVML cannot tell: %s", ", ".join(silent))
    return answers


def _ask_each(
    pynvml: Any,
    device_index: int | None,
    question: Callable[[Any, Any], Answer],
    answers: dict[str, Answer],
    silent: list[str],
) -> None:
    """Add the answers, and why others are missing."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:  # such as a missing driver; NVML has not looked at a GPU so far
        silent.append(str(error))
        return
    asked = "NVML"
    try:
        gpus = [*map(str, range(pynvml.nvmlDeviceGetCount()))] if device_index is None else _visible(device_index)
        if not gpus:
            silent.append(f"no GPU has device_index={device_index}")
        for gpu in gpus:
            asked = gpu if gpu.startswith("GPU-") else f"GPU {gpu}"
            try:
                answers[asked] = question(pynvml, _handle(pynvml, gpu))
            except pynvml.NVMLError as error:
                if error.value not in _NO_ANSWER:
                    raise
                silent.append(f"{asked}: {error}")
    except pynvml.NVMLError as error:
        raise GpuFault(f"{asked} fails with {str(error)!r}") from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _handle(pynvml: Any, gpu: str) -> Any:
    if gpu.startswith("GPU-"):
        return pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
    return pynvml.nvmlDeviceGetHandleByIndex(int(gpu))


def _visible(device_index: int) -> list[str]:
    """NVML's number, or the UUID, of one of CUDA's devices; nothing if CUDA has no such device.

    CUDA may sort GPUs of different models another way, unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(device_index)]
    entries = (entry.strip() for entry in listed.split(","))
    usable = list(itertools.takewhile(_VISIBLE.fullmatch, entries))  # CUDA, too, stops at an invalid entry
    return usable[device_index : device_index + 1]
