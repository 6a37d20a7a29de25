"""Joins its world and never looks up again, as in the middle of a long checkpoint."""

import time

import softrun

softrun.get_worker_info()
print("at work", flush=True)
time.sleep(3600)
