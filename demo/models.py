"""The two models of the demo, in plain PyTorch: a small CNN and a GPT-like character model.

They name no device and contain no dropout: all runs of a model must compute the same numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DigitNet(nn.Module):
    """Two convolutions with batch norm, pooling, and a linear layer: [n, 1, 8, 8] to [n, 10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classify = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images).flatten(1))


class Block(nn.Module):
    """One transformer block: causal self-attention, then an MLP, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.from_attention = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.to_qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.from_attention(mixed.transpose(1, 2).reshape(batch, length, width))


class CharModel(nn.Module):
    """A GPT over characters: int64 [n, length] to [n, length, alphabet] logits."""

    def __init__(self, alphabet: int, length: int = 64, width: int = 128, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.length = length
        self.characters = nn.Embedding(alphabet, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.to_logits = nn.Linear(width, alphabet, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.characters(characters) + self.positions(positions)
        return self.to_logits(self.norm(self.blocks(x)))

    @torch.no_grad()
    def continue_text(self, start: list[int], count: int) -> list[int]:
        """The `count` most likely characters after `start`, one after the other."""
        device = self.to_logits.weight.device
        text = list(start)
        for _ in range(count):
            window = torch.tensor([text[-self.length :]], device=device)
            text.append(int(self(window)[0, -1].argmax()))
        return text[len(start) :]
