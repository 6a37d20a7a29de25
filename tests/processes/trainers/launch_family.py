"""launch_family.py START_METHOD DIRECTORY: an agent in a program, whose worker is the function of family.py."""

import sys

from family import run

from softrun import LaunchConfig, launch_agent

if __name__ == "__main__":
    config = LaunchConfig(1, 1, 1, run_id="family", rdzv_endpoint="127.0.0.1:0", start_method=sys.argv[1])
    launch_agent(config, run, [sys.argv[2]])
