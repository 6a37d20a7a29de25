"""What an agent gives back of its memory, and that it goes on without it."""

from __future__ import annotations

import json
import subprocess
import sys

from softrun.agent.memory import _as_in_their_files

SMAPS = """\
00400000-00402000 r--p 00000000 fe:00 260386                     /usr/lib/a file.so
Rss:                   8 kB
Anonymous:             0 kB
Swap:                  0 kB
00402000-00403000 r-xp 00002000 fe:00 260386                     /usr/lib/a file.so
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
00403000-00404000 r--p 00003000 fe:00 260386                     /usr/lib/a file.so
Anonymous:             4 kB
Swap:                  0 kB
00404000-00405000 r--p 00004000 fe:00 260386                     /usr/lib/a file.so
Anonymous:             0 kB
Swap:                  4 kB
00405000-00406000 rw-p 00004000 fe:00 260386                     /usr/lib/a file.so
Anonymous:             0 kB
Swap:                  0 kB
00406000-00407000 r--s 00004000 fe:00 260386                     /usr/lib/a file.so
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000001000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f0000001000-7f0000002000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
Swap:                  0 kB
"""

AGENT = """
import json, pathlib, re
import torch
from softrun.agent.memory import give_back_memory

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

before = of_files()
give_back_memory()
given_back = before - of_files()
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("key", "value")
print(json.dumps({"before": before, "given_back": given_back, "value": store.get("key").decode()}))
"""


def test_what_was_changed_is_kept() -> None:
    assert list(_as_in_their_files(SMAPS)) == [(0x400000, 0x402000), (0x402000, 0x403000)]
    assert list(_as_in_their_files("")) == []


def test_the_libraries_go_on_to_work() -> None:
    said = json.loads(subprocess.check_output([sys.executable, "-c", AGENT]))
    assert said["given_back"] > said["before"] / 2
    assert said["value"] == "value"
