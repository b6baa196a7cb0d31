"""The cases of ranks in test_library_ranks.py: programs that leave ranks and devices to a library, as users write them.

The answers are compared with those of one process, which has the same rows in each step.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

import rank_models
import torch
from torch import nn

STEPS = 3
ROWS = 4
"""Rows of a step, over all ranks."""


def _rows() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The rows of all steps, as a data set."""
    return [(x, y) for xs, ys in rank_models.batches() for x, y in zip(xs, ys, strict=True)]


def accelerated() -> dict[str, Any]:
    """Accelerate prepares model, optimizer and rows. RANK_PLUGIN chooses how weights are kept, RANK_PRECISION in what is computed."""
    import accelerate

    plugin = None
    kind = os.environ.get("RANK_PLUGIN", "")
    if kind:
        plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=2 if kind == "fsdp2" else 1, auto_wrap_policy="size_based_wrap", min_num_params=1,
            sync_module_states=True if kind == "fsdp1" else None,
        )  # fmt: skip
    accelerator = accelerate.Accelerator(fsdp_plugin=plugin, mixed_precision=os.environ.get("RANK_PRECISION", "no"))
    loader = torch.utils.data.DataLoader(_rows(), batch_size=rank_models.BATCH // accelerator.num_processes)
    net = rank_models.model()
    if kind == "fsdp1":
        # The model of FSDP 1 has other parameters once it is prepared.
        net = accelerator.prepare(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    if kind == "fsdp1":
        optimizer, loader = accelerator.prepare(optimizer, loader)
    else:
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    losses = []
    for x, y in loader:
        assert x.device.type == accelerator.device.type, (x.device, accelerator.device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x).float(), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    accelerator.wait_for_everyone()
    state = accelerator.get_state_dict(net)
    return {
        "rank": (accelerator.process_index, accelerator.num_processes),
        "device": str(accelerator.device),
        "backend": torch.distributed.get_backend() if torch.distributed.is_initialized() else None,
        "scales on": accelerator.scaler._device if accelerator.scaler is not None and accelerator.scaler.is_enabled() else None,
        "losses": losses,
        # Rank 0 has the weights of all shards.
        "weights": {name: tensor.cpu().tolist() for name, tensor in state.items()} if state else None,
    }


def rows_of_tokens() -> list[dict[str, torch.Tensor]]:
    """Rows of tokens for a language model to learn."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 17, (6,), generator=generator) for _ in range(STEPS * ROWS)]
    return [{"input_ids": row, "labels": row} for row in rows]


def language_model(dropout: float = 0.0) -> nn.Module:
    """A small one of transformers, the same in every process."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=17, n_embd=8, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def trained(**options: Any) -> dict[str, Any]:
    """Trainer of transformers. RANK_FSDP=1 shards the weights."""
    from transformers import Trainer, TrainingArguments

    if os.environ.get("RANK_FSDP"):
        options |= {"fsdp": "full_shard", "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"]}}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=STEPS, report_to=[], save_strategy="no", disable_tqdm=True, learning_rate=0.01,
            per_device_train_batch_size=ROWS // int(os.environ.get("WORLD_SIZE", "1")), dataloader_pin_memory=False, **options,
        )  # fmt: skip
        trainer = Trainer(model=language_model(), args=arguments, train_dataset=rows_of_tokens())
        trainer.train()
        state = trainer.accelerator.get_state_dict(trainer.model)
    return {
        "rank": (arguments.process_index, arguments.world_size),
        "device": str(arguments.device),
        "weights": {name: tensor.cpu().tolist() for name, tensor in state.items()} if state else None,
    }


def resumed() -> bool:
    """Two ranks stop and go on, each with its own random numbers: Accelerate's save_state and load_state."""
    import accelerate

    accelerator = accelerate.Accelerator()
    folder = Path(os.environ["RANK_FOLDER"])
    torch.manual_seed(7 + accelerator.process_index)
    ones = torch.ones(1000, device=accelerator.device)
    accelerator.save_state(folder)
    expected = nn.functional.dropout(ones)
    torch.manual_seed(99)
    accelerator.load_state(folder)
    return torch.equal(nn.functional.dropout(ones), expected)


def synchronized() -> list[float]:
    """Accelerate gives all ranks the random state of the first one, of the device as of the CPU."""
    import accelerate
    from accelerate.utils import synchronize_rng_states

    accelerator = accelerate.Accelerator()
    torch.manual_seed(7 + accelerator.process_index)
    synchronize_rng_states(["torch", os.environ["RANK_GENERATOR"]])
    return [*torch.rand(2).tolist(), *torch.rand(2, device=accelerator.device).tolist()]


def private() -> dict[str, Any]:
    """opacus clips the gradient of each row, and the ranks add them up. Without noise, so that one process has the same."""
    import opacus
    from torch.utils.data import DataLoader, DistributedSampler

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    net, device = rank_models.model(), torch.device("cpu")
    if size > 1:
        device = torch.device(os.environ["RANK_DEVICE"], rank)
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        net = opacus.distributed.DifferentiallyPrivateDistributedDataParallel(net.to(device))
    sampler = DistributedSampler(_rows(), size, rank, shuffle=False)
    net, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.5), noise_multiplier=0.0, max_grad_norm=0.1,
        data_loader=DataLoader(_rows(), rank_models.BATCH // size, sampler=sampler), poisson_sampling=False,
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return {
        "rank": (rank, size),
        "device": str(device),
        "weights": {name.split("module.")[-1]: tensor.cpu().tolist() for name, tensor in net.state_dict().items()},
    }


def lightning_model(package: str = "lightning") -> Any:
    """A model of Lightning that knows on which devices and in what it was computed."""

    class Model(importlib.import_module(package).LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(8, 8)
            self.seen = set()

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            x, y = batch
            result = self.layer(x.to(self.layer.weight.dtype))
            self.seen.add((str(result.device), result.dtype))
            return nn.functional.mse_loss(result.float(), y.float())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    return Model()


def lightning_rows() -> torch.utils.data.DataLoader:
    """The rows of all steps."""
    return torch.utils.data.DataLoader(_rows(), batch_size=rank_models.BATCH)


def of_lightning() -> dict[str, Any]:
    """Lightning's Trainer, with DistributedDataParallel."""
    import lightning
    from torch.utils.data import DataLoader, DistributedSampler

    model = lightning_model()
    size = int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="auto", devices=size, strategy="ddp" if size > 1 else "auto", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    sampler = DistributedSampler(_rows(), size, int(os.environ["RANK"]), shuffle=False) if size > 1 else None
    trainer.fit(model, DataLoader(_rows(), batch_size=rank_models.BATCH // size, sampler=sampler))
    return {
        "rank": (trainer.global_rank, trainer.world_size),
        "device": str(trainer.strategy.root_device),
        "weights": {name: tensor.cpu().tolist() for name, tensor in model.state_dict().items()},
    }
