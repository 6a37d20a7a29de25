"""What an agent gives back of its memory, and that it goes on without it."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys

import pytest

from softrun.agent.memory import _MADV_COLLAPSE, _as_in_their_files, _own

LARGE = 2 << 20


def collapses() -> bool:
    """Whether this kernel moves memory to large pages when it is asked to."""
    with mmap.mmap(-1, 4 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        try:
            memory.madvise(_MADV_COLLAPSE)
        except OSError:
            return False
        return True


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


GATHERED = """
import json, pathlib, re
import torch
from softrun.agent.memory import gather_memory

def gathered():
    return int(re.search(r"AnonHugePages:\\s+(\\d+)", pathlib.Path("/proc/self/smaps_rollup").read_text())[1])

before = gathered()
gather_memory()
print(json.dumps({"gathered": gathered() - before, "sum": float(torch.ones(1000).sum())}))
"""


def test_own_memory_is_the_large_mappings_of_no_file() -> None:
    smaps = "".join(
        f"{begin:08x}-{begin + size:08x} {permissions} 00000000 00:00 {inode}   {name}\nAnonymous: 4 kB\n"
        for begin, size, permissions, inode, name in (
            (0x1000000, 0x200000, "rw-p", 0, "[heap]"),
            (0x2000000, 0x400000, "rw-p", 0, ""),
            (0x3000000, 0x1000, "rw-p", 0, ""),
            (0x4000000, 0x200000, "r--p", 0, ""),
            (0x5000000, 0x200000, "rw-p", 7, "/usr/lib/a file.so"),
            (0x6000000, 0x200000, "rw-p", 0, "[stack]"),
        )
    )
    assert list(_own(smaps)) == [(0x1000000, 0x1200000), (0x2000000, 0x2400000)]


@pytest.mark.skipif(not collapses(), reason="needs Linux 6.1 with transparent huge pages")
def test_own_memory_is_gathered_in_large_pages_and_keeps_what_it_holds() -> None:
    said = json.loads(subprocess.check_output([sys.executable, "-c", GATHERED]))
    assert said["sum"] == 1000.0
    assert said["gathered"] > 20 * 1024, "KiB"
