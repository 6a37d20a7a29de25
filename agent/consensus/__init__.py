"""How the agents of a job keep its record themselves, so that any of them may be lost.

- `replica`: agreement on the next record, and who has accepted it
- `quorum`: how many must have
- `leases`: until when an agent knows that it was not left behind, and whom it may call dead
- `witness`: a third party that has the casting vote
- `witness_link`: how the leader keeps in touch with it
- `search`: how an agent finds the job, and how the job finds those that look for it
"""
