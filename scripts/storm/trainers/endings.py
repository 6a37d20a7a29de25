"""A worker that ends as it is told to: endings.py DIRECTORY soft|hard

Once it is at work its process id is in DIRECTORY, as <node>-<local rank>.<number of its start>. It ends with the
exit code that it finds in the file of that name and ".order", or by that signal if it is negative.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.02


def begin(directory: Path) -> Path:
    """The file of this start."""
    name = f"{os.environ['ENDINGS_NODE']}-{os.environ['LOCAL_RANK']}"
    starts = len([path for path in directory.glob(f"{name}.*") if path.suffix[1:].isdigit()])
    here, whole = directory / f"{name}.{starts + 1}", directory / f"{name}.{starts + 1}.new"
    whole.write_text(str(os.getpid()))
    whole.rename(here)
    return here


def work(order: Path, between: Callable[[], None]) -> None:
    """Returns if it is told to finish."""
    while not order.exists():
        time.sleep(POLL_S)
        between()
    code = int(order.read_text())
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    if code:
        sys.exit(code)


directory = Path(sys.argv[1])
if sys.argv[2] == "hard":
    work(Path(f"{begin(directory)}.order"), lambda: None)
else:
    import softrun

    here = None
    for world in softrun.worlds():
        try:
            here = here or begin(directory)
            work(Path(f"{here}.order"), world.check)
        except softrun.WorldChanged:
            pass
