r"""Train on handwritten digits in blocks that succeed on all workers or raise on all; lost workers come back.

    python -m softrun --restart_policy soft --worker_failure replace --max_restarts 3 \
        --nproc_per_node 4 examples/live_train.py

It needs scikit-learn, for the digits.

Kill a worker while it runs (add --pause 0.1): the others take the same step again, and the replacement gets what it
missed from them. It is the second example of "Fault tolerant distributed JAX".
"""

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import softrun

BATCH = 240  # images per step of the whole world: the same training, however many workers there are

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
test, train = torch.randperm(len(images)).split([360, len(images) - 360])

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
sampler = softrun.ElasticSampler(train, global_batch_size=BATCH)
state = softrun.State(model=model, optimizer=optimizer, sampler=sampler, step=0)
while state.step < args.steps:
    try:
        with softrun.live_workers(state.step, sync=torch.cuda.synchronize if cuda else None) as world:
            if world.changed:  # newcomers, and whoever lacks something, get it from the others
                world.process_group()
                state.sync(world)
                parallel = DistributedDataParallel(model)
            share, weight = train[next(iter(sampler))], world.share(sampler.batch_size).weight
            optimizer.zero_grad()
            loss = cross_entropy(parallel(images[share].to(device)), labels[share].to(device))
            (loss * weight).backward()
    except softrun.PeerFailed as failure:
        print(f"step {state.step} failed: {failure}", flush=True)
        continue
    optimizer.step()  # in place, so only when the block has succeeded on all
    state.commit()
    time.sleep(args.pause)

if world.rank == 0:
    accuracy = (model(images[test].to(device)).argmax(1).cpu() == labels[test]).float().mean()
    print(f"final accuracy {accuracy:.2f} at step {state.step} with {world.world_size} workers", flush=True)
