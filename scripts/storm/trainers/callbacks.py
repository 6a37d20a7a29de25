"""The same program as wrapper.py, whose callbacks the faults strike."""

import wrapper  # noqa: F401 - it trains
