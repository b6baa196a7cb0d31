"""The share of each operator in a training step of five models, as a table: which operators to write first.

    cargo xtask python -- demo/shares.py

The models are small and have random weights and data, so it is the proportions that count. Times are of one step on the
device of OUTRIGGER_DRIVER, each call on its own, without the wait for what was queued before.
"""

from __future__ import annotations

import collections

import torch
import torch.nn.functional as F
import torch_outrigger
from torch import nn

STEPS = 10
# Operators below this share of every model are left out.
LEAST = 0.03


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(3))
        self.short = nn.Conv2d(inside, out, 1, stride, bias=False)

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y))
        return (y + self.norms[2](self.short(x))).relu()


class ResNet(nn.Module):
    """Images of 64x64 into ten classes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class Decoder(nn.Module):
    """A causal transformer with root mean square norms."""

    def __init__(self, words: int = 512, width: int = 128, depth: int = 3):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        layer = lambda: nn.ModuleDict({
            "norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
            "norm2": nn.RMSNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
        })
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, x):
        n, length = x.shape
        y = self.words(x) + self.places(torch.arange(length, device=x.device))
        for layer in self.layers:
            q, k, v = (t.view(n, length, 4, -1).transpose(1, 2) for t in layer["qkv"](layer["norm"](y)).chunk(3, -1))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = y + layer["out"](attended.transpose(1, 2).reshape(n, length, -1))
            y = y + layer["down"](F.gelu(layer["up"](layer["norm2"](y))))
        return self.head(y)


class Recurrent(nn.Module):
    """A language model with LSTM cells."""

    def __init__(self, words: int = 512, width: int = 128):
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(words, width), nn.LSTM(width, width, 2), nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.cell(self.words(x.t()))[0]).transpose(0, 1)


class UNet(nn.Module):
    """Images of 48x48 into masks, with group norms and resampling."""

    def __init__(self):
        super().__init__()
        step = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())
        self.down = nn.ModuleList([step(3, 16), step(16, 32), step(32, 64)])
        self.up = nn.ModuleList([step(96, 32), step(48, 16)])
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        kept = []
        for step in self.down:
            kept.append(x := step(F.avg_pool2d(x, 2) if kept else x))
        for step, other in zip(self.up, reversed(kept[:-1]), strict=True):
            x = step(torch.cat([F.interpolate(x, scale_factor=2.0, mode="bilinear"), other], 1))
        return self.head(x)


class Recommender(nn.Module):
    """Bags of embeddings and numbers, and their products, into a click."""

    def __init__(self, tables: int = 8, width: int = 32):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(2000, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        numbers, indices = x
        dense = self.bottom(numbers)
        all_ = torch.stack([dense, *(bag(one) for bag, one in zip(self.bags, indices, strict=True))], 1)
        products = torch.bmm(all_, all_.transpose(1, 2))
        rows, columns = torch.tril_indices(products.shape[1], products.shape[1], -1, device=dense.device)
        return self.top(torch.cat([dense, products[:, rows, columns]], 1)).squeeze(1)


def images(device, size):
    return torch.randn(8, 3, size, size).to(device)


def text(device):
    return torch.randint(512, (8, 65)).to(device)


def next_word(model, data):
    return F.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten())


# Each model with its data and its loss.
MODELS = {
    "ResNet": (ResNet, lambda d: images(d, 64), lambda m, x: F.cross_entropy(m(x), torch.arange(8, device=x.device))),
    "transformer": (Decoder, text, next_word),
    "LSTM": (Recurrent, text, next_word),
    "U-Net": (UNet, lambda d: images(d, 48), lambda m, x: F.binary_cross_entropy_with_logits(m(x), (x[:, :1] > 0).float())),
    "recommender": (
        Recommender,
        lambda d: (torch.randn(256, 16).to(d), torch.randint(2000, (8, 256, 4)).to(d)),
        lambda m, x: F.binary_cross_entropy_with_logits(m(x), (x[0][:, 0] > 0).float()),
    ),
}


def shares(make, data, loss) -> dict[tuple[str, str], float]:
    """The share of each operator in the time of a step, with its place."""
    device = torch.device("outrigger")
    torch.manual_seed(0)
    model, data = make().to(device), data(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        loss(model, data).backward()
        optimizer.step()

    step()
    torch_outrigger.reset_fallback_report()
    with torch_outrigger.timed_operators():
        for _ in range(STEPS):
            step()
    times = collections.Counter()
    for row in torch_outrigger.operator_report():
        times[row["operator"].removesuffix("_overrideable"), row["place"]] += row["seconds"]
    return {key: time / times.total() for key, time in times.items()}


def main() -> None:
    columns = {name: shares(*model) for name, model in MODELS.items()}
    operators = {key for column in columns.values() for key in column}
    rows = {key: [column.get(key, 0.0) for column in columns.values()] for key in operators}
    kept = sorted((key for key in rows if max(rows[key]) >= LEAST), key=lambda key: -sum(rows[key]))
    print("| operator | " + " | ".join(columns) + " | on the CPU it is |")
    print("|---|" + "---:|" * len(columns) + "---|")
    for operator, place in kept:
        cells = [f"{100 * share:.0f} %" if share >= 0.005 else "" for share in rows[operator, place]]
        print(f"| `{operator}` | " + " | ".join(cells) + f" | {place} |")
    rest = [1 - sum(rows[key][at] for key in kept) for at in range(len(columns))]
    print("| all others | " + " | ".join(f"{100 * share:.0f} %" for share in rest) + " | |")


if __name__ == "__main__":
    main()
