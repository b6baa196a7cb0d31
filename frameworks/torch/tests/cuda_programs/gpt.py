"""Trains a small GPT on bytes, in the manner of nanoGPT's train.py: settings are globals, --name=value overrides them."""

import json
import math
import os
import sys
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
batch_size = 4
block_size = 16
n_layer = 2
n_embd = 32
n_head = 2
max_iters = 8
learning_rate = 1e-3
grad_clip = 1.0
backend = "nccl"
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = "float32"
compile = False
init_from = "scratch"
for argument in sys.argv[1:]:
    key, value = argument.removeprefix("--").split("=")
    globals()[key] = type(globals()[key])(eval(value) if not isinstance(globals()[key], str) else value)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend if "cuda" in device else "gloo")
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    if "cuda" in device:
        device = f"cuda:{ddp_local_rank}"
        torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
else:
    master_process, seed_offset = True, 0
if master_process:
    os.makedirs(out_dir, exist_ok=True)

torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)

text = ("to be or not to be that is the question " * 40).encode()
data = torch.tensor(list(text))
picks = torch.Generator().manual_seed(seed_offset)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=picks)
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    if device_type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (each.view(B, T, n_head, C // n_head).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(B, T, C)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(128, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, 128, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        if idx.device.type == "cuda":
            pos = pos + torch.zeros(1, dtype=torch.long, device="cuda")
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


model = GPT()
checkpoint = None
start = 0
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    start = checkpoint["iter_num"]
model.to(device)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused=device_type == "cuda")
if checkpoint is not None:
    optimizer.load_state_dict(checkpoint["optimizer"])
raw_model = model
if compile:
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank] if device_type == "cuda" else None)

losses = []
for _ in range(start):
    get_batch()
for iter_num in range(start, max_iters):
    lr = learning_rate * 0.5 * (1 + math.cos(math.pi * iter_num / 100))
    for group in optimizer.param_groups:
        group["lr"] = lr
    X, Y = get_batch()
    with ctx:
        logits, loss = model(X, Y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())

if master_process:
    torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": max_iters}, os.path.join(out_dir, "ckpt.pt"))
    total = sum(parameter.double().sum().item() for parameter in raw_model.parameters())
    print(json.dumps({"device": str(next(raw_model.parameters()).device), "losses": losses, "total": total}))
if ddp:
    destroy_process_group()
