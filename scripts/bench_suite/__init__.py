"""What `scripts/bench` is made of.

A *system* (systems.py) is a launcher with its settings. Its *job* (job.py, and a file for each launcher) is a training
on this machine, whose nodes can be started, killed and stopped. A *measure* lets something befall a job (faults.py)
and takes *figures* from the step log of its workers (figures.py); a *course* (courses.py) takes several measures of
one job. What was found is a *record* (records.py), a line of JSON. The table (table.py), the targets (targets.py) and
the picture (picture.py) are made of records alone.

What costs time while nothing happens is in steady.py; etcd.py and alone.py measure softrun alone.
"""
