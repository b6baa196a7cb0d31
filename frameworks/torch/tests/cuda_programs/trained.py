"""Trainer of transformers in one process, on a machine with several devices: python trained.py"""

import json
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=17, n_embd=8, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)  # fmt: skip
model = GPT2LMHeadModel(config)
rows = [{"input_ids": [at, at + 1, at + 2], "labels": [at, at + 1, at + 2]} for at in range(8)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=3, per_device_train_batch_size=2, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps({"device": str(next(model.parameters()).device), "devices": devices, "used": arguments.n_gpu, "losses": losses}))
