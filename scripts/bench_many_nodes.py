"""What many nodes cost: joining, a loss and a leave, beside torch's dynamic rendezvous, timed and counted.

The agents are light ones: the real engine, driver, links and store, in threads of a few processes on one machine. So
everything that N nodes would do on N machines is done by the cores of one, for torch's handlers as for ours.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time
from collections import Counter

from light_agents import LightC10dStore, Tally, count_etcd
from light_crowd import Crowd, OpenStore
from local_cluster import free_port

SETTLE_S = 1.0


def softrun_c10d(nodes: int) -> dict[str, object]:
    port = free_port()
    return crowd_of(nodes, lambda _name, tally: LightC10dStore(tally, "light", "127.0.0.1", port, 60.0))


def crowd_of(nodes: int, open_store: OpenStore, prepare=None) -> dict[str, object]:
    record: dict[str, object] = {"nodes": nodes}
    with Crowd(nodes, open_store, prepare) as crowd:
        before: Counter[str] = Counter()
        began = crowd.start()
        told = crowd.told(nodes)
        record["start"] = {"seconds": told.at - began, **dict(sorted((crowd.counts() - before).items()))}
        time.sleep(SETTLE_S)
        for size, what in ((nodes - 1, "loss"), (nodes - 2, "leave")):
            victim = next(n for n in reversed(crowd.names()) if n != told.leader and n not in told.hosts)
            before = crowd.counts()
            began = crowd.die(victim) if what == "loss" else crowd.leave(victim)
            told = crowd.told(size)
            record[what] = {"seconds": told.at - began, **dict(sorted((crowd.counts() - before).items()))}
            time.sleep(SETTLE_S)
            record[what + "_settled"] = dict(sorted((crowd.counts() - before).items()))
    return record


if __name__ == "__main__":
    logging.getLogger("softrun").setLevel(logging.ERROR)
    print(json.dumps(softrun_c10d(int(sys.argv[1]))), flush=True)
