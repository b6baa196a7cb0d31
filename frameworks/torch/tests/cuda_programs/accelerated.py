"""A training by Accelerate, which chooses device and backend itself."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pieces.mlp import MLP
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(mixed_precision="bf16")
set_seed(2)
dataset = TensorDataset(torch.randn(32, 6), torch.arange(32) % 3)
model = MLP(6, 8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset, batch_size=4))
steps = 0
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
total = sum(parameter.detach().double().sum() for parameter in model.parameters())
totals = accelerator.gather(total.reshape(1)).tolist()
if accelerator.is_main_process:
    print(json.dumps({"device": f"{x.device}", "processes": accelerator.num_processes, "steps": steps, "totals": totals}), flush=True)
accelerator.end_training()
