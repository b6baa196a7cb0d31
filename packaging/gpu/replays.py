"""Replays in PyTorch: a training step's worth of small operators, captured once, compared with eager execution, and timed.

`cost` is that of each way to replay: `native_ns` is one launch of a graph of the driver, if it has graphs, and `node_by_node_ns`
a command for each node. The figures are written to the file that is named.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch_outrigger import graphs

ROUNDS = 200
weights = torch.randn(256, 256, device="outrigger") / 16
image = torch.randn(64, 256, device="outrigger")


def work() -> torch.Tensor:
    """Thirty operators, most of them small."""
    value = image
    for _ in range(10):
        value = torch.tanh(value @ weights) + image
    return value


def timed(run: object) -> float:
    """Microseconds of one round."""
    torch.outrigger.synchronize()
    started = time.perf_counter()
    for _ in range(ROUNDS):
        run()  # type: ignore[operator]
    torch.outrigger.synchronize()
    return 1e6 * (time.perf_counter() - started) / ROUNDS


work()
graph = graphs.Graph()
with graphs.graph(graph):
    result = work()
for seed in (1, 2):
    torch.manual_seed(seed)
    image.copy_(torch.randn(64, 256))
    graph.replay()
    torch.testing.assert_close(result.cpu(), work().cpu())
figures = {"eager_us": timed(work), "replay_us": timed(graph.replay), "cost": graph.cost()}
Path(sys.argv[1]).write_text(json.dumps(figures))
print(figures)
