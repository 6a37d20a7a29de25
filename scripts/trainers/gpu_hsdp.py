"""examples/train_hsdp.py, on devices that ranks may have to share. See scripts/check_gpu.py. gpu_hsdp.py BACKEND"""

import os
import runpy
import sys
from pathlib import Path

from gpu_device import device_of

example = Path(__file__).parents[2] / "examples" / "train_hsdp.py"
if sys.argv[1] == "gloo":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the example takes a GPU if there is one
device = device_of(sys.argv[1], int(os.environ["LOCAL_RANK"]))
os.environ["LOCAL_RANK"] = str(device.index or 0)
sys.argv = [str(example), "1000000"]  # steps
runpy.run_path(str(example), run_name="__main__")
