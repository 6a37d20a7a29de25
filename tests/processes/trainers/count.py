"""Counts steps through changes of the world, without torch, so that it starts quickly.

count.py STEPS PAUSE_S
"""

import sys
import time

import softrun

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
step = 0
for world in softrun.worlds():
    try:
        while step < steps:
            time.sleep(pause_s)
            step += 1
            world.check(step)
    except softrun.WorldChanged:
        pass
print(f"counted to {step}", flush=True)
