"""The channel between an agent and one worker, both ends: a directory of JSON files and a page of shared memory."""
