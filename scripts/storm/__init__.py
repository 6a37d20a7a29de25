"""The storm: random sequences of faults against real agents and workers, `scripts/soak --real`.

A seed is a plan (`plan`): a trainer, a layout, a store, a policy, and faults that befall ranks in exact phases. `run`
carries it out, `evidence` is what is known then, `expect` says how such a run should end, `checkers` compare the two,
`soak` does so for many seeds. The trainers (`trainers/`) are what users write: the RFC's loop as printed, `worlds()`,
the `Wrapper`; what they share, and the files by which the driver orders and learns, is in `trainers/storming.py`.

How a run should end
--------------------

The work ends when all who should be there are at work again, or, in a run that hurries, after its fewest steps.

| what befalls a rank            | rfc                     | worlds                  | wrapper                       |
|--------------------------------|-------------------------|-------------------------|-------------------------------|
| kill, segv, exit3              | fails                   | fails                   | fails                         |
| exception                      | caught by the loop: it  | its own, so it is       | restarts in its process;      |
|                                | keeps its process;      | raised at once: fails   | fails at the start and in the |
|                                | fails outside the loop  |                         | health check                  |
| hang                           | ended after the hard    | the same                | interrupted, keeps its        |
|                                | timeout: fails          |                         | process; in an atomic block,  |
|                                |                         |                         | a callback or at the start it |
|                                |                         |                         | fails                         |
| stop, continued before the     | keeps its process       | the same                | the same                      |
| hard timeout                   |                         |                         |                               |
| stop, not continued            | fails                   | the same                | the same                      |
| hang or stop at the start      | has yet to ask for a world, for all that its agent knows: the others go on        |
|                                | without it until it does                                                          |
| exit0                          | has left: the others go on without it, and it is no failure                         |

| a rank fails under | its process      | its node's others | other nodes | at work again   | its launcher         |
|--------------------|------------------|-------------------|-------------|-----------------|----------------------|
| no-replace         | another one      | another one       | keep theirs | all             | 0                    |
| replace            | another one      | keep theirs       | keep theirs | all             | 0                    |
| record             | gone             | keep theirs       | keep theirs | all but this    | 0; 1 once all failed |
| restarts are spent | gone             | gone              | keep theirs | the other nodes | 1                    |
| when work is done  | gone, or another | as under its      | keep theirs |                 | 0 or 1               |
|                    |                  | policy            |             |                 |                      |

A failed rank need not come back if a neighbour has left by exit0: then its node has finished. Nor need a stopped one
that is continued after the soft timeout, in a hurry or when all ranks of a node have left or failed for good: the work
may be done then, and nobody joins a job that is finishing. A rank that hangs has failed when the hard timeout is over,
if the work goes on for so long.

| what befalls a node        | its processes | the others  | its launcher                    |
|----------------------------|---------------|-------------|---------------------------------|
| SIGTERM to its agent       | end           | keep theirs | 1                               |
| SIGKILL to its agent alone | end           | keep theirs | -9                              |
| node: all of it is killed  | end           | keep theirs | -9                              |
| newcomer: one is added     |               | keep theirs | 0, and all of its ranks at work |

In a hurry, or once the work is done, 0 does for 1 and the other way round: whoever is late may be needed no more.

Always: all launchers end in time; who should be at work is, within its time; somebody completes the work, all complete
the same step, each step is taken once and none is done again after that; worlds <= 2 x faults + 5; no orphan, no file,
no log of 1 MiB.
"""
