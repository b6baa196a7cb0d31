"""A training step in a CUDA graph, as PyTorch's documentation of CUDA graphs has it, with mixed precision."""

import argparse
import json

import torch
from pieces.mlp import MLP, describe

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--no-graph", action="store_true")
args = parser.parse_args()

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
on_gpu = device.type == "cuda"
torch.manual_seed(0)
if on_gpu:
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    major, minor = torch.cuda.get_device_capability(device)
    assert torch.cuda.get_device_properties(0).major == major
    torch.cuda.reset_peak_memory_stats()

model = MLP(16, 32, 4).to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, enabled=False)
inputs = torch.randn(args.steps, 8, 16)
targets = torch.randint(0, 4, (args.steps, 8))
static_input = torch.zeros(8, 16, device=device)
static_target = torch.zeros(8, dtype=torch.long, device=device)


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16, enabled=False):
        loss = criterion(model(static_input), static_target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


losses = []
if on_gpu and not args.no_graph:
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    model.load_state_dict(kept)
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        static_loss = step()
    model.load_state_dict(kept)
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()
    for x, y in zip(inputs, targets):
        static_input.copy_(x)
        static_target.copy_(y)
        g.replay()
        losses.append(static_loss.item())
else:
    for x, y in zip(inputs, targets):
        static_input.copy_(x)
        static_target.copy_(y)
        losses.append(step().item())

if on_gpu:
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() > 0
print(json.dumps({"device": describe(model), "losses": losses}))
