"""The driver is asked before torch's CPU kernels run. Over the driver with an operator library, which also offers every
operator of torch and refuses it, each operator that ran on the CPU must have been asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.of_driver

LIBRARY = os.environ.get("OUTRIGGER_DRIVER", "").split("?")[0]

NOT_ASKED = {
    # Shapes of results depend on values, or the result is a value of the host: nothing can be prepared.
    "_unique2", "bincount", "equal", "linalg_lstsq", "masked_select", "nonzero", "repeat_interleave", "unique_consecutive",
    "unique_dim",
    # The operator draws from a generator, and its schema does not say how many numbers.
    "rrelu_with_noise",
    # Sparse tensors have no form in a call.
    "_sparse_mm_reduce_impl", "_to_sparse", "_to_sparse_csr", "sparse_sampled_addmm",
}

PROGRAM = """
import json, sys, warnings
import torch, torch_outrigger
from torch.testing._internal.common_methods_invocations import op_db

warnings.simplefilter("ignore")
device = "outrigger:0"
torch_outrigger.reset_fallback_report()
for op in op_db:
    if torch.float32 not in op.dtypes:
        continue
    try:
        sample = next(iter(op.sample_inputs(device, torch.float32)))
        op(sample.input, *sample.args, **sample.kwargs)
    except Exception:
        pass  # the sweep judges results; here it counts who was asked
for model in (torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.MaxPool2d(2)),
              torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)):
    shape = (2, 3, 8, 8) if isinstance(model, torch.nn.Sequential) else (2, 5, 16)
    model.to(device)(torch.randn(shape, device=device)).square().mean().backward()
json.dump(torch_outrigger.operator_report(), open(sys.argv[1], "w"))
"""


def base(name: str) -> str:
    """An operator without namespace, overload and the mark of writing in place."""
    plain = name.split("::")[-1].split(".")[0]
    return plain.rstrip("_") if not plain.startswith("__") else plain


@pytest.mark.skipif("library_driver" not in LIBRARY, reason="only over the driver with an operator library")
def test_every_operator_on_the_cpu_was_asked_for_first(tmp_path):
    offer, log, report = tmp_path / "offer", tmp_path / "log", tmp_path / "report.json"
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    offer.write_text("\n".join(names) + "\n")
    environment = {**os.environ, "OUTRIGGER_DRIVER": f"{LIBRARY}?offer={offer}&log={log}"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(report)], env=environment, check=True, timeout=600)
    asked = {base(name) for name in log.read_text().split()}
    assert len(asked) > 150, "the log has few names"
    ran = {base(row["operator"]) for row in json.loads(report.read_text()) if row["place"] == "framework"}
    assert ran - asked <= NOT_ASKED, sorted(ran - asked - NOT_ASKED)
