"""A State is healed, and in the middle of that somebody dies. See test_healing.

healing_breaks.py DIRECTORY WHO: `source` or `newcomer` dies once while the replacement of a killed worker is healed;
`first`, the source of the very beginning.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import softrun
from softrun.runtime.state import transfer

directory, who = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(os.getpid())
transfer.PIECE_BYTES = 10_000
begin = transfer.Stream.begin
pieces = 0


def once(what):
    try:
        (directory / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def begin_or_die(stream, piece, start, *, receives):
    global pieces
    pieces += 1
    due = (directory / "killed").exists() or who == "first"
    if due and pieces > 20 and receives == (who == "newcomer") and once("broken"):
        os.kill(os.getpid(), signal.SIGKILL)
    return begin(stream, piece, start, receives=receives)


transfer.Stream.begin = begin_or_die
model = torch.nn.Linear(1000, 500)
state = softrun.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), step=0)
for world in softrun.worlds(state=state):
    with world.process_group():
        pieces = 0
        while state.step < 60 or world.world_size < 3:
            state.optimizer.zero_grad()
            model(torch.ones(1, 1000)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            state.optimizer.step()
            state.commit()
            if who != "first" and state.step == 5 and world.rank == 1 and once("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            world.check(state.step)

content = repr([parameter.tolist() for parameter in model.parameters()])
(directory / f"told-{os.getpid()}").write_text(f"{state.step} {hashlib.sha256(content.encode()).hexdigest()}")
