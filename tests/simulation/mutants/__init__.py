"""The agent with one thing wrong, by what is wrong. Each mutant must die by the checker whose promise it breaks."""

from simulation.mutants import consensus, founding, leases, leaving, workers, worlds
from simulation.mutants.mutant import Job, Mutant

_ROOMS = (consensus, founding, leases, leaving, workers, worlds)
MUTANTS = [value for room in _ROOMS for value in vars(room).values() if isinstance(value, Mutant)]


def those(job: Job) -> list[Mutant]:
    """Return the mutants that die in this kind of job."""
    return [mutant for mutant in MUTANTS if mutant.job == job]
