"""The script that torchrun starts in test_distributed.py: a rank fails in the first round, and all work in the second."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group()
tensor = torch.ones(4, device=sys.argv[1])
dist.all_reduce(tensor)
assert tensor.tolist() == [float(dist.get_world_size())] * 4
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        sys.exit(3)
    # Waits for the rank that has gone: an error, or the end by torchrun, but no success.
    dist.all_reduce(tensor)
    tensor.tolist()
    sys.exit(4)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has finished with {dist.get_backend_config()}", flush=True)
dist.destroy_process_group()
