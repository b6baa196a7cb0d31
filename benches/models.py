"""Models of public libraries with random weights in PyTorch: device tensors, eager and replayed, against CPU tensors, eager
and compiled. `cargo xtask bench models`.

All weights are float32. `gpt2` and `bert` have 4 layers of 256 with 4 heads, on 4 texts of 64 words; `decode` is `gpt2` on
one text of 16 words, as it is when a text is generated without a cache; `vit` has 4 layers of 256 on 4 pictures of 64 x 64 in
patches of 8; `resnet18` has 4 pictures of 64 x 64, and `resnet18_1` one; `tagger` is an LSTM of 2 layers of 64 in both
directions on one text of 24 words; `unet` has 2 levels of 64 and 128 with attention, on 2 pictures of 32 x 32.

`forward/...` is without gradients. `step/...` is forward, loss, backward and a step of AdamW. `replay/...` is the same as the
metric behind it, captured in a graph. `allocated/...` and `reserved/...` are the peaks of memory in tensors and from the
driver, over the most bytes that the program's tensors have at a time: in a step, or a forward pass where there is none.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.device import open_device

from .compiled import compiled
from .eager import CPU, repeated, repeated_here
from .harness import US, Bar, Metric, Missing, Parts

WORDS = 1000
CLASSES = 10
WARM_UP = 3  # calls in eager mode: everything that is made on first use has been made then


class Tagger(nn.Module):
    """Tags of words by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.lstm = nn.LSTM(64, 64, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(128, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.tags(self.lstm(self.words(words))[0])


class Denoiser(nn.Module):
    """The noise of pictures, all at one step of its schedule."""

    def __init__(self) -> None:
        from diffusers import UNet2DModel

        super().__init__()
        self.net = UNet2DModel(
            sample_size=32, layers_per_block=1, block_out_channels=(64, 128), norm_num_groups=16,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        return self.net(pictures, 10).sample


def _text(batch: int, length: int) -> Tensor:
    return torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(2))


def _pictures(batch: int, size: int = 64) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(2))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )
    return GPT2LMHeadModel(config)


_LAYERS = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=WORDS, **_LAYERS, **_STILL))


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(image_size=64, patch_size=8, num_labels=CLASSES, **_LAYERS, **_STILL))


def _resnet() -> nn.Module:
    import torchvision

    return torchvision.models.resnet18(weights=None, num_classes=CLASSES)


@dataclass(frozen=True)
class Case:
    """A model and what it is fed. One that `is_small` is bound by launches, so that a replay has to beat the CPU."""

    make: Callable[[], nn.Module]
    given: Tensor
    is_small: bool = False
    trains: bool = True


CASES = {
    "gpt2": Case(_gpt2, _text(4, 64)),
    "decode": Case(_gpt2, _text(1, 16), is_small=True, trains=False),
    "bert": Case(_bert, _text(4, 64)),
    "vit": Case(_vit, _pictures(4)),
    "resnet18": Case(_resnet, _pictures(4)),
    "resnet18_1": Case(_resnet, _pictures(1), is_small=True, trains=False),
    "tagger": Case(Tagger, _text(1, 24), is_small=True),
    "unet": Case(Denoiser, _pictures(2, 32)),
}


@cache
def _model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return CASES[name].make()


def _logits(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out.logits


def forward(name: str) -> Callable[[torch.device], Callable[[], Tensor]]:
    """The output of a model."""

    def make(device: torch.device) -> Callable[[], Tensor]:
        model, given = copy.deepcopy(_model(name)).eval().to(device), CASES[name].given.to(device)

        @torch.no_grad()
        def call() -> Tensor:
            return _logits(model(given))

        return call

    return make


def training(name: str, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model that trains, and its loss."""
    model, given = copy.deepcopy(_model(name)).train().to(device), CASES[name].given.to(device)
    with torch.no_grad():
        classes = _logits(model(given)).shape
    labels = (torch.arange(classes[:-1].numel()) % classes[-1]).to(device)
    return model, lambda: F.cross_entropy(_logits(model(given)).flatten(0, -2), labels)


def step(name: str, capturable: bool = False) -> Callable[[torch.device], Callable[[], Tensor]]:
    """The loss of a training step, which a graph can have if the number of the step lies on the device."""

    def make(device: torch.device) -> Callable[[], Tensor]:
        model, loss_of = training(name, device)
        captured = capturable and device.type != "cpu"
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, capturable=captured, foreach=False)

        def call() -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = loss_of()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return call

    return make


def replayed(make: Callable[[torch.device], Callable[[], Tensor]], device: torch.device) -> tuple[Callable[[], Tensor], ...]:
    """Replays of the call, and the call itself, both warm."""
    call, eager = make(device), make(device)
    for _ in range(WARM_UP):
        call()
        eager()
    graph = torch.outrigger.Graph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch speaks of the streams of gradients, which are the capture's here
        with torch.outrigger.graph(graph):
            result = call()

    def replay() -> Tensor:
        graph.replay()
        # While somebody has the result, the graph computes it.
        return result

    # The replay and the call have models of their own, since a step changes them.
    torch.testing.assert_close(replay(), eager(), rtol=1e-3, atol=1e-3)
    return replay, eager


def memory(name: str, counter: str) -> Metric:
    """A peak of memory, relative to the bytes of live tensors."""

    def contest() -> dict[str, Parts | Missing]:
        device = open_device("outrigger")
        call = (step if CASES[name].trains else forward)(name)(device)
        for _ in range(WARM_UP):
            call()
        torch.outrigger.synchronize()
        torch.outrigger.empty_cache()
        torch.outrigger.reset_peak_memory_stats()
        for _ in range(WARM_UP):
            call()
        peaks = torch.outrigger.memory_stats()
        ratio = peaks[f"{counter}_bytes.all.peak"] / peaks["requested_bytes.all.peak"]
        return {US: {"ratio": lambda repetitions: ratio * repetitions}}

    return Metric(
        f"{counter}/{name}", contest, (Bar(1.03),), unit="x", figure=lambda parts: parts["ratio"], most_rounds=1
    )


def metrics() -> list[Metric]:
    """The suite."""

    Maker = Callable[[torch.device], Callable[[], Tensor]]

    def pair(name: str, make: Maker, to_capture: Maker, is_small: bool) -> list[Metric]:
        def cpu() -> dict[str, Parts | Missing]:
            fast = compiled(lambda: make(CPU))
            return {
                "cpu": repeated_here(make(CPU)),
                "torch_compile": fast if isinstance(fast, Missing) else repeated_here(fast),
            }

        def eager() -> dict[str, Parts | Missing]:
            return {US: repeated(make(open_device("outrigger"))), **cpu()}

        def graph() -> dict[str, Parts | Missing]:
            device = open_device("outrigger")
            replay, eager = replayed(to_capture, device)
            return {US: repeated(replay), "eager": repeated(eager), **cpu()}

        bar = Bar(0.85, "cpu") if is_small else Bar(1.0, "eager")
        return [
            Metric(name, eager, (Bar(1.05, "cpu"),)),
            Metric(f"replay/{name}", graph, (bar,)),
        ]

    all_ = []
    for name, case in CASES.items():
        all_ += pair(f"forward/{name}", forward(name), forward(name), case.is_small)
        if case.trains:
            all_ += pair(f"step/{name}", step(name), step(name, capturable=True), case.is_small)
        all_ += [memory(name, "allocated"), memory(name, "reserved")]
    return all_
