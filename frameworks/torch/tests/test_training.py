"""Training on the device takes the same steps as on the CPU."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from support import run_python

pytestmark = pytest.mark.of_driver

OPTIMIZERS = {
    "sgd": lambda p, **o: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3, **o),
    "adam": lambda p, **o: torch.optim.Adam(p, lr=0.01, **o),
    "adamw": lambda p, **o: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, **o),
    "rmsprop": lambda p, **o: torch.optim.RMSprop(p, lr=0.01, **o),
}
STEPS = 12


class Network(torch.nn.Module):
    """A small one of each: embedding, convolution, normalization, attention, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 16)
        self.convolution = torch.nn.Conv1d(16, 16, 3, padding=1)
        self.norm = torch.nn.LayerNorm(16)
        # Without biases: that of the keys has no gradient but rounding, which Adam would make into steps.
        self.attention = torch.nn.MultiheadAttention(16, 2, bias=False, batch_first=True)
        self.head = torch.nn.Linear(16, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + F.gelu(self.convolution(x.transpose(1, 2)).transpose(1, 2))
        y = self.norm(x)
        return self.head(x + self.attention(y, y, y, need_weights=False)[0])


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device) -> list[float]:
    """The losses of a few steps on the same data, which is made on the CPU."""
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 11, (8, 12), generator=generator)
        target = tokens.roll(1, 1).to(device)
        loss = F.cross_entropy(model(tokens.to(device)).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}, {}], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_and_weights_equal_those_of_the_cpu(device, name, options):
    if name == "rmsprop" and "fused" in options:
        pytest.skip("torch has no fused RMSprop")
    torch.manual_seed(0)
    host = Network()
    there = copy.deepcopy(host).to(device)
    expected = train(host, OPTIMIZERS[name](host.parameters(), foreach=False), "cpu")
    actual = train(there, OPTIMIZERS[name](there.parameters(), **options), device)
    assert expected[-1] < expected[0], "the test's model learns"
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    for (label, a), b in zip(there.named_parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-3, atol=1e-4, msg=lambda m, n=label: f"{n}: {m}")


def test_optimizer_state_can_be_saved_and_continued(device):
    torch.manual_seed(0)
    first = Network().to(device)
    optimizer = torch.optim.AdamW(first.parameters())
    train(first, optimizer, device)
    second = Network().to(device)
    second.load_state_dict(first.state_dict())
    again = torch.optim.AdamW(second.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(first, optimizer, device) == train(second, again, device)


def test_data_loader_pins_and_feeds_the_device(device):
    data = torch.utils.data.TensorDataset(torch.arange(64.0).view(32, 2), torch.arange(32))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, pin_memory=True, timeout=60)
    total = torch.zeros(2, device=device)
    for values, labels in loader:
        assert values.is_pinned()
        total += values.to(device, non_blocking=True).sum(0) + labels.to(device, non_blocking=True).sum() * 0
    assert total.tolist() == [992.0, 1024.0]


def test_a_thread_that_pins_leaves_the_number_of_threads(device_type):
    code = f"""
        import threading, torch
        torch.set_num_threads(3)
        # A DataLoader has its thread do this.
        pins = threading.Thread(target=torch.set_num_threads, args=(1,))
        pins.start()
        pins.join()
        x = torch.ones(1 << 20, device="{device_type}")
        # The thread that waits may run what it waits for.
        print((x + x).sum().item(), torch.get_num_threads())
        """
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, f"{2.0 * (1 << 20)} 3\n"), done.stderr


def test_mixed_precision_under_the_devices_own_name(device, module):
    """A training loop that was written for `torch.cuda.amp`."""
    amp = importlib.import_module(f"torch.{device.type}.amp")
    GradScaler, autocast, custom_bwd, custom_fwd = amp.GradScaler, amp.autocast, amp.custom_bwd, amp.custom_fwd
    assert amp is module.amp

    class Twice(torch.autograd.Function):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            assert x.dtype == torch.float32 and not torch.is_autocast_enabled(device.type)
            return x * 2

        @staticmethod
        @custom_bwd
        def backward(ctx, gradient):
            return gradient * 2

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to(device)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), GradScaler()
    x = torch.randn(8, 4, device=device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with autocast(dtype=torch.bfloat16):
            out = model(x)
            assert out.dtype == torch.bfloat16
            loss = Twice.apply(out).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    assert issubclass(module.OutOfMemoryError, RuntimeError)
