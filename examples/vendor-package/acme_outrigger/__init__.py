"""Acme's accelerators in PyTorch: `import torch` makes the device type `acme` known, and nothing more happens."""

from pathlib import Path

import torch
from torch_outrigger import Vendor

vendor = Vendor(
    name="acme",
    # The driver's file is named after the Python that built it, as every compiled part of a package.
    driver=next(Path(__file__).resolve().parent.glob("driver.*")),
    options={"devices": 2},
    autocast=(torch.bfloat16,),
)
