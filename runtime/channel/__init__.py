"""Between an agent and one worker: the directory of JSON files and the page of shared memory, both ends."""
