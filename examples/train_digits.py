r"""Train a small network on handwritten digits, whatever becomes of the other workers.

    python -m softrun --restart_policy soft --worker_failure replace --max_restarts 3 \
        --nproc_per_node 4 examples/train_digits.py

It needs scikit-learn, for the digits.

Kill a worker while it runs (add --pause 0.1): the others keep their process and go on at once, and the replacement gets
what it missed from them.
"""

import argparse
import os
import time
from itertools import islice

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
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
test, train = torch.randperm(len(images)).split([360, len(images) - 360])

# Everything that is made once is made before the loop: a change of the world does not touch it.
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
sampler = softrun.ElasticSampler(train, global_batch_size=BATCH)
state = softrun.State(model=model, optimizer=optimizer, sampler=sampler, step=0)
for world in softrun.worlds(state=state):
    with world.process_group():  # all ranks go on from the same step: whoever lacks something gets it from the others
        parallel = DistributedDataParallel(model)
        while state.step < args.steps:
            for part in islice(sampler, args.steps - state.step):
                share, weight = train[part], world.share(sampler.batch_size).weight
                optimizer.zero_grad()
                loss = cross_entropy(parallel(images[share].to(device)), labels[share].to(device))
                (loss * weight).backward()
                optimizer.step()
                state.commit()
                time.sleep(args.pause)
                world.check(state.step)  # ends this pass if the world has changed

if world.rank == 0:
    accuracy = (model(images[test].to(device)).argmax(1).cpu() == labels[test]).float().mean()
    print(f"final accuracy {accuracy:.2f} at step {state.step} with {world.world_size} workers")
