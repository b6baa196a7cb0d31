"""Modules of the program, which ask what a device is called."""

from torch import nn


class MLP(nn.Module):
    def __init__(self, width, hidden, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        if x.is_cuda:
            assert x.device.type == "cuda"
        return self.layers(x)


def describe(model):
    return f"{next(model.parameters()).device}"
