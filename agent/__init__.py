"""The per-node agent: a pure engine, and the thin shells around it that touch the world.

The map, from the ground up. A room imports from those above it in this list, never from those below; what decides is
pure, so the first five read no clock and do no input or output.

    protocol/       what is said: the record, the messages, what goes into the engine and what comes out
    consensus/      how the agents agree on the record, and find each other, without a store
    rendezvous/     who leads, and how one agreed world becomes the next
    live/           the calls of live_workers: one verdict for all workers of a world
    core/           the engine of one node: its stages, its workers, their health and their steps
    proof/          what proves who speaks, and what is said of an agent after its end
    links/          the connections between agents, and how they prove who they are
    store/          etcd, which keeps the record of a job that has one; where a job is, and its settings
    torch_elastic/  torch's elastic package: all that is used of it, and what is offered in its shape
    workers/        processes: how workers start, are watched and end
    snapshots/      the process beside the agent that holds the workers' snapshots in memory
    loop/           the one thread that runs the engine: observations in, effects out
    (here)          the front door: `cli`, `launch`, `local_agent`; `errors` is for every room
"""
