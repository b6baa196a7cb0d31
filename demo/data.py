"""The data of the two models: scikit-learn's handwritten digits, and a text that this machine has.

Nothing is downloaded. Every batch is made on the CPU from a seeded generator, so that all runs of a
model see the same numbers.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]

TEST_SHARE = 5  # every fifth image is a test image
MINIMUM_TEXT = 10_000  # characters; less than this teaches nothing
MAXIMUM_TEXT = 400_000  # characters


@dataclass(frozen=True)
class Digits:
    """The 1,797 digits, split. Images are float32 [n, 1, 8, 8] in 0..1, labels int64 [n]."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batches(self, size: int, seed: int) -> Iterator[Batch]:
        """Endless shuffled training batches of `size` images."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.train_labels), generator=generator)
            for chosen in order.split(size):
                if len(chosen) == size:
                    yield self.train_images[chosen], self.train_labels[chosen]


def load_digits() -> Digits:
    """The digits that ship with scikit-learn; a fixed fifth of them, of every writer, is for testing."""
    from sklearn.datasets import load_digits as sklearn_digits

    raw = sklearn_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target, dtype=torch.int64)
    is_test = torch.arange(len(labels)) % TEST_SHARE == 0
    return Digits(images[~is_test], labels[~is_test], images[is_test], labels[is_test])


@dataclass(frozen=True)
class Text:
    """A text as character numbers, and where it came from."""

    path: Path
    alphabet: str
    encoded: Tensor

    def batches(self, size: int, length: int, seed: int) -> Iterator[Batch]:
        """Endless random windows of `length` characters, with the same windows one character later."""
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.arange(length)
        while True:
            starts = torch.randint(len(self.encoded) - length - 1, (size, 1), generator=generator)
            windows = starts + offsets
            yield self.encoded[windows], self.encoded[windows + 1]

    def decode(self, numbers: list[int]) -> str:
        """The characters behind `numbers`."""
        return "".join(self.alphabet[number] for number in numbers)


def load_text() -> Text:
    """The first text of `text_candidates` that is there and long enough."""
    tried = []
    for path, text in text_candidates():
        if len(text) >= MINIMUM_TEXT:
            return encode(path, text[:MAXIMUM_TEXT])
        tried.append(f"{path} ({len(text)} characters)")
    raise FileNotFoundError(
        f"no text of at least {MINIMUM_TEXT} characters on this machine; looked at: {', '.join(tried)}. "
        "Set OUTRIGGER_DEMO_TEXT to the path of one"
    )


def text_candidates() -> Iterator[tuple[Path, str]]:
    """Texts to learn from, best first: the user's own, Python's language reference, licences."""
    if chosen := os.environ.get("OUTRIGGER_DEMO_TEXT"):
        yield Path(chosen), read_text(Path(chosen))
        return
    try:
        from pydoc_data import topics
    except ImportError:  # some distributions split it off
        pass
    else:
        yield Path(topics.__file__), "\n\n".join(topics.topics.values())
    yield from ((path, read_text(path)) for path in licence_files())


def licence_files() -> list[Path]:
    """Licence texts that Debian, Python and the torch wheel install."""
    site = Path(sysconfig.get_paths()["purelib"])
    return [
        Path("/usr/share/common-licenses/GPL-3"),
        Path(sysconfig.get_paths()["stdlib"], "LICENSE.txt"),
        *sorted(site.glob("torch-*.dist-info/**/LICENSE*")),
    ]


def read_text(path: Path) -> str:
    """The file's text, or nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def encode(path: Path, text: str) -> Text:
    """Numbers the characters of `text` in the order of their code points."""
    alphabet = "".join(sorted(set(text)))
    number = {character: index for index, character in enumerate(alphabet)}
    return Text(path, alphabet, torch.tensor([number[character] for character in text]))
