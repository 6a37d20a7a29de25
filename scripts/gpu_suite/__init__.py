"""What `scripts/check_gpu` is made of.

A *check* takes the setting (setting.py) and returns what it found, or says why it could not be made. alone.py has the
checks of ranks without an agent, of which each starts with new processes; jobs.py has those of whole jobs under
softrun, and parts.py takes the time of a recovery apart. report.py tells it all: the lines, the table and the JSON.
"""
