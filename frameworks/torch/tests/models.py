"""Small models of public libraries with random weights: how each is made, what it is fed, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 2
CLASSES = 5
WORDS = 64
LENGTH = 12
PICTURE = 64

Feed = dict[str, Any]


@dataclass(frozen=True)
class Zoo:
    """A model. `loss` gives the loss of what it is fed, and its output."""

    make: Callable[[], nn.Module]
    feed: Callable[[], Feed]
    loss: Callable[[nn.Module, Feed], tuple[Tensor, Tensor]]
    generates: bool = False


def _text() -> Feed:
    words = torch.randint(3, WORDS, (BATCH, LENGTH))
    mask = torch.ones_like(words)
    mask[1, :3] = 0  # padded on the left, as for generation
    return {"input_ids": words, "attention_mask": mask, "labels": words.roll(-1, 1)}


def _pictures() -> Feed:
    return {"pictures": torch.randn(BATCH, 3, PICTURE, PICTURE), "labels": torch.randint(0, CLASSES, (BATCH,))}


def _of_transformers(model: nn.Module, feed: Feed) -> tuple[Tensor, Tensor]:
    out = model(**feed)
    return out.loss, out.logits


def _of_classes(model: nn.Module, feed: Feed) -> tuple[Tensor, Tensor]:
    logits = model(feed["pictures"])
    return F.cross_entropy(logits.float(), feed["labels"]), logits


# ---- transformers ------------------------------------------------------------------------------------


def _transformers(kind: str, **config: Any) -> Callable[[], nn.Module]:
    """A model of the class `kind`, with the configuration that belongs to it."""

    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, kind)
        return made(made.config_class(**config))

    return make


_TOKENS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_DECODER = {
    **_TOKENS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}
_ENCODER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_FRAMES = 30
_MELS = 16


def _translation() -> Feed:
    words = torch.randint(3, WORDS, (BATCH, LENGTH))
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.flip(1)}


def _speech() -> Feed:
    sounds = torch.randn(BATCH, _MELS, 2 * _FRAMES)
    return {"input_features": sounds, "labels": torch.randint(3, WORDS, (BATCH, LENGTH))}


def _captions() -> Feed:
    words = torch.randint(3, WORDS, (BATCH, LENGTH))
    return {"input_ids": words, "pixel_values": torch.randn(BATCH, 3, 32, 32), "return_loss": True}


def _of_clip(model: nn.Module, feed: Feed) -> tuple[Tensor, Tensor]:
    out = model(**feed)
    return out.loss, out.logits_per_image


def _vit_pictures() -> Feed:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(0, CLASSES, (BATCH,))}


# ---- torchvision, timm, diffusers ------------------------------------------------------------------------


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=CLASSES)

    return make


def _timm(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=CLASSES)

    return make


def _detector() -> nn.Module:
    from torchvision.models import detection

    # All anchors and boxes are used: the usual samples of them are drawn at random.
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=CLASSES, min_size=PICTURE, max_size=PICTURE,
        trainable_backbone_layers=6, rpn_batch_size_per_image=1 << 20, box_batch_size_per_image=1 << 20,
    )


def _scenes() -> Feed:
    boxes = torch.tensor([[4.0, 6.0, 30.0, 40.0], [20.0, 10.0, 60.0, 50.0]])
    labels = torch.tensor([1, 3])
    return {
        "pictures": list(torch.rand(BATCH, 3, PICTURE, PICTURE)),
        "targets": [{"boxes": boxes + at, "labels": labels} for at in range(BATCH)],
    }


def _of_detection(model: nn.Module, feed: Feed) -> tuple[Tensor, Tensor]:
    model.train()  # the losses exist in training alone
    losses = model(feed["pictures"], feed["targets"])
    return sum(losses.values()), torch.stack([losses[name] for name in sorted(losses)])


def _unet() -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=16, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def _noise() -> Feed:
    noisy, noise = torch.randn(2, BATCH, 3, 16, 16)
    return {"noisy": noisy, "steps": torch.tensor([3, 400]), "noise": noise}


def _of_diffusion(model: nn.Module, feed: Feed) -> tuple[Tensor, Tensor]:
    out = model(feed["noisy"], feed["steps"]).sample
    return F.mse_loss(out.float(), feed["noise"]), out


# ---- no library ----------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Tags of words by an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(48, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.tags(self.lstm(self.words(words))[0])


def _sentences() -> Feed:
    return {"words": torch.randint(0, WORDS, (BATCH, LENGTH)), "tags": torch.randint(0, CLASSES, (BATCH, LENGTH))}


def _of_tags(model: nn.Module, feed: Feed) -> tuple[Tensor, Tensor]:
    out = model(feed["words"])
    return F.cross_entropy(out.flatten(0, 1).float(), feed["tags"].flatten()), out


def _text_model(kind: str, generates: bool = True, **config: Any) -> Zoo:
    return Zoo(_transformers(kind, **config), _text, _of_transformers, generates)


MODELS = {
    "gpt2": _text_model(
        "GPT2LMHeadModel", **_TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "resnet50": Zoo(_torchvision("resnet50"), _pictures, _of_classes),
    "tagger": Zoo(Tagger, _sentences, _of_tags),
    "qwen3": _text_model("Qwen3ForCausalLM", **_DECODER),
    "llama": _text_model("LlamaForCausalLM", **_DECODER),
    "mamba": _text_model("MambaForCausalLM", **_TOKENS, hidden_size=32, num_hidden_layers=2, state_size=8),
    "bert": _text_model("BertForMaskedLM", generates=False, **_TOKENS, **_ENCODER, **_STILL, max_position_embeddings=64),
    "t5": Zoo(
        _transformers(
            "T5ForConditionalGeneration", vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
            dropout_rate=0.0, pad_token_id=0, decoder_start_token_id=0, eos_token_id=2,
        ),
        _translation, _of_transformers, generates=True,
    ),
    "whisper": Zoo(
        _transformers(
            "WhisperForConditionalGeneration", **_TOKENS, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0,
            num_mel_bins=_MELS, max_source_positions=_FRAMES, max_target_positions=64, decoder_start_token_id=1,
            suppress_tokens=None, begin_suppress_tokens=None,
        ),
        _speech, _of_transformers, generates=True,
    ),
    "vit": Zoo(
        _transformers(
            "ViTForImageClassification", **_ENCODER, **_STILL, image_size=32, patch_size=8, num_labels=CLASSES,
        ),
        _vit_pictures, _of_transformers,
    ),
    "clip": Zoo(
        _transformers(
            "CLIPModel", projection_dim=16, text_config={**_TOKENS, **_ENCODER, "max_position_embeddings": 64},
            vision_config={**_ENCODER, "image_size": 32, "patch_size": 8},
        ),
        _captions, _of_clip,
    ),
    "efficientnet": Zoo(_torchvision("efficientnet_b0"), _pictures, _of_classes),
    "faster rcnn": Zoo(_detector, _scenes, _of_detection),
    "convnext": Zoo(_timm("convnext_atto"), _pictures, _of_classes),
    "unet": Zoo(_unet, _noise, _of_diffusion),
}

ALWAYS = ("gpt2", "resnet50", "tagger")
"""Models of every run."""


def make(name: str) -> nn.Module:
    """A model without dropout, whose steps are then the same on every device."""
    torch.manual_seed(1)
    model = MODELS[name].make()
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        elif type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    return model
