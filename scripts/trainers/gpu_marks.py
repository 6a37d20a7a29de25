"""What a trainer of scripts/check_gpu has got to, and when: a line of JSON for each mark, in `marks-<pid>.jsonl`."""

import json
import os
import time
from pathlib import Path


def mark(directory: str, what: str) -> None:
    with Path(directory, f"marks-{os.getpid()}.jsonl").open("a") as marks:
        marks.write(json.dumps({"what": what, "at": time.time()}) + "\n")
