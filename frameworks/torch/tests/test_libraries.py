"""Libraries that know devices by name: each is used as its users do, and gives on the device what it gives on the CPU."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import types
import warnings
import zlib
from typing import Any

import pytest
import torch
from support import run_python, same
from torch import nn
from torch.nn.attention import flex_attention as flex

# Libraries ask for the device's type, not its driver.
pytestmark = pytest.mark.usefixtures("once")


def test_import_of_torch_imports_no_library():
    finished = run_python(
        """
        import sys
        import torch

        assert torch.get_device_module().__name__ and "torch_outrigger.integrations" in sys.modules
        libraries = {"accelerate", "safetensors", "torchvision", "transformers", "torch.nn.attention.flex_attention"}
        assert not libraries & set(sys.modules), libraries & set(sys.modules)
        """
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


# ---- torch.nn.DataParallel -------------------------------------------------------------------------


def test_data_parallel_is_refused_and_names_what_to_use(device):
    model = nn.Linear(2, 2).to(device)
    x = torch.ones(4, 2, device=device)
    with pytest.raises(NotImplementedError, match=rf"{device.type}.*DistributedDataParallel"):
        nn.DataParallel(model, device_ids=[0])(x)
    with pytest.raises(NotImplementedError, match=rf"{device.type}.*DistributedDataParallel"):
        nn.parallel.data_parallel(model, x, device_ids=[0])


def test_data_parallel_is_made_and_taken_off_again(device, module):
    model = nn.Linear(2, 2).to(device)
    wrapped = nn.DataParallel(model)
    assert wrapped.module is model and wrapped.device_ids == list(range(module.device_count()))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]


def test_data_parallel_without_the_device_is_torchs_own():
    finished = run_python(
        """
        import torch

        torch._utils._get_available_device_type = lambda: None
        torch.nn.parallel.data_parallel.__wrapped__.__globals__["_get_available_device_type"] = lambda: None
        model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
        assert model(torch.ones(1, 2)).shape == (1, 2) and model.device_ids == []
        """
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


# ---- torch.nn.attention.flex_attention -------------------------------------------------------------


def _causal(batch, head, query, key):
    return query >= key


def _biased(score, batch, head, query, key):
    return score + 0.5 * (query - key)


def test_flex_attention_is_attention(device):
    leaves = [torch.randn(2, 2, 128, 16) for _ in range(3)]
    ours = [leaf.to(device).requires_grad_() for leaf in leaves]
    cpu = [leaf.clone().requires_grad_() for leaf in leaves]
    mask = flex.create_block_mask(_causal, None, None, 128, 128, device=device)
    with warnings.catch_warnings():
        # Not compiled on purpose.
        warnings.simplefilter("ignore")
        result = flex.flex_attention(*ours, score_mod=_biased, block_mask=mask)
    at = torch.arange(128)
    bias = 0.5 * (at[:, None] - at[None, :]).float()
    bias.masked_fill_(at[:, None] < at[None, :], float("-inf"))
    expected = nn.functional.scaled_dot_product_attention(*cpu, attn_mask=bias)
    same(result, expected, rtol=1e-4, atol=1e-5)
    result.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(ours, cpu, strict=True):
        same(one.grad, other.grad, rtol=1e-4, atol=1e-4)


# ---- safetensors -----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A file of safetensors, and the tensors in it."""
    from safetensors.torch import save_file

    tensors = {"a": torch.arange(12.0).view(3, 4), "b": torch.tensor([1, 2], dtype=torch.int64)}
    path = tmp_path / "tensors.safetensors"
    save_file(tensors, path, metadata={"made": "here"})
    return path, tensors


@pytest.mark.of_the_accelerator
def test_safetensors_load_file(device, saved):
    from safetensors.torch import load_file

    path, tensors = saved
    for given in (str(device), device.type, device.index):
        loaded = load_file(path, device=given)
        assert set(loaded) == set(tensors)
        for name, tensor in loaded.items():
            assert tensor.device == device
            same(tensor, tensors[name])
    assert all(tensor.device.type == "cpu" for tensor in load_file(path).values())


def test_safetensors_safe_open(device, saved):
    from safetensors import safe_open

    path, tensors = saved
    with safe_open(path, framework="pt", device=str(device)) as file:
        assert set(file.keys()) == set(tensors) and file.metadata() == {"made": "here"}
        same(file.get_tensor("b"), tensors["b"])
        part = file.get_slice("a")
        assert part.get_shape() == [3, 4]
        same(part[1:, ::2], tensors["a"][1:, ::2])
    with pytest.raises(Exception, match="nonsense"):
        safe_open(path, framework="pt", device="nonsense")


def test_safetensors_load_model(device, tmp_path):
    from safetensors.torch import load_model, save_model

    model = nn.Linear(3, 2)
    save_model(model, str(tmp_path / "model"))
    other = nn.Linear(3, 2).to(device)
    load_model(other, tmp_path / "model", device=str(device))
    same(other.weight, model.weight)


# ---- torchvision -----------------------------------------------------------------------------------


def test_torchvision_operators_under_autocast(device):
    from torchvision import ops

    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3.9], [5, 5, 8, 8]])
    scores = torch.tensor([0.5, 1.0, 0.25])
    image = torch.arange(64.0).view(1, 1, 8, 8)
    rois = torch.cat([torch.zeros(3, 1), boxes], 1)
    leaf = image.to(device).requires_grad_()
    with torch.autocast(device.type, torch.bfloat16):
        kept = ops.nms(boxes.to(device), scores.to(device).bfloat16(), 0.5)
        aligned = ops.roi_align(leaf.bfloat16(), rois.to(device), 2)
        pooled = ops.roi_pool(leaf, rois.to(device).bfloat16(), 2)
    same(kept, ops.nms(boxes, scores, 0.5))
    assert aligned.dtype is torch.bfloat16
    same(aligned, ops.roi_align(image, rois, 2).bfloat16())
    same(pooled, ops.roi_pool(image, rois, 2), rtol=0.02, atol=0)
    aligned.sum().backward()
    image.requires_grad_()
    ops.roi_align(image, rois, 2).sum().backward()
    same(leaf.grad, image.grad, rtol=0.02, atol=0.02)


def test_a_library_that_was_looked_for_before_its_import_is_changed(device):
    finished = run_python(
        f"""
        import importlib.util
        import torch

        assert importlib.util.find_spec("torchvision")  # as transformers does, to see what there is
        from torchvision import ops

        boxes, scores = torch.rand(3, 4, device="{device.type}"), torch.rand(3, device="{device.type}")
        with torch.autocast("{device.type}", torch.bfloat16):
            ops.nms(boxes, scores.bfloat16(), 0.5)
        """
    )
    assert finished.returncode == 0, finished.stderr


def test_a_library_that_imports_torch_is_changed(device):
    finished = run_python(
        f"""
        from accelerate import Accelerator  # imports torch in the middle of its own code

        assert Accelerator(mixed_precision="fp16").scaler._device == "{device.type}"
        """
    )
    assert finished.returncode == 0 and "could not be loaded" not in finished.stderr, finished.stderr


# ---- transformers and Accelerate -------------------------------------------------------------------


@pytest.fixture
def tiny():
    """A language model of transformers, on the CPU."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=17, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@pytest.fixture
def accelerate():
    """Accelerate, whose choice of a device is forgotten before and after."""
    import accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_transformers_with_a_mask_is_captured(device, tiny):
    from torch_outrigger import graphs

    tokens = torch.tensor([[3, 5, 7, 0], [2, 4, 6, 8]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    model = copy.deepcopy(tiny).to(device)
    ours, mask_of_graph = tokens.to(device), mask.to(device)
    graph = graphs.Graph()
    with torch.no_grad():
        expected = tiny(tokens, attention_mask=mask).logits
        with graphs.graph(graph):
            result = model(ours, attention_mask=mask_of_graph).logits
    graph.replay()
    real = mask.bool()
    same(result[real.to(device)], expected[real], rtol=1e-4, atol=1e-5)


@pytest.mark.of_the_accelerator
def test_accelerate_trains_on_the_device(device, accelerate):
    accelerator = accelerate.Accelerator()
    assert accelerator.device.type == device.type
    plain = nn.Linear(4, 1)
    model = copy.deepcopy(plain)
    data = [(torch.randn(4), torch.randn(1)) for _ in range(6)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model)]
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, ours = accelerator.prepare(model, optimizers[1], loader)
    for (x, y), (other_x, other_y) in zip(loader, ours, strict=True):
        assert other_x.device.type == device.type
        optimizers[0].zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizers[0].step()
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(other_x), other_y))
        optimizer.step()
    same(model.weight, plain.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.of_the_accelerator
def test_accelerate_scales_gradients_of_float16(device, accelerate):
    accelerator = accelerate.Accelerator(mixed_precision="fp16")
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.ones(2, 4, device=device)
    for infinite in (False, True):
        result = model(x)
        loss = result.mean() * (float("inf") if infinite else 0.25)
        accelerator.backward(loss)
        optimizer.step()
        assert optimizer.step_was_skipped is infinite
        optimizer.zero_grad()
    # Accelerate converts results back.
    assert accelerator.scaler._device == device.type and result.dtype is torch.float32
    same(model.weight, before - 0.1 * 0.25, rtol=1e-3, atol=1e-3)


@pytest.mark.of_the_accelerator
def test_a_training_step_on_the_cpu_is_a_warning(device, accelerate):
    finished = run_python(
        """
        import sys
        import warnings
        import torch
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        said = []
        for chosen in (True, False):
            AcceleratorState._reset_state(reset_partial_state=True)
            accelerator = Accelerator(cpu=chosen)
            model = torch.nn.Linear(2, 1)  # which the program has forgotten to prepare
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    accelerator.backward(model(torch.ones(1, 2)).sum())
            said.append([str(each.message) for each in caught])
        assert said[0] == [] and len(said[1]) == 1, said
        assert "Accelerator.prepare" in said[1][0] and "Accelerator(cpu=True)" in said[1][0], said
        """
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.of_the_accelerator
def test_diagnose_tells_the_devices_of_libraries(device, accelerate, monkeypatch):
    import torch_outrigger
    import transformers

    def line(name: str) -> str:
        section = torch_outrigger.diagnose().split("\nLibraries\n")[1].split("\n\n")[0]
        (found,) = (each.strip() for each in section.splitlines() if each.strip().startswith(f"{name} "))
        return found

    assert line("accelerate") == f"accelerate {accelerate.__version__}: has not chosen yet, would choose {device.type}"
    accelerate.Accelerator()
    assert line("accelerate").endswith(f": process 0 of 1 on {device.type}")
    assert line("transformers") == f"transformers {transformers.__version__}: chooses {device.type}"
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.Accelerator(cpu=True)
    assert line("accelerate").endswith(": process 0 of 1 on cpu, as the program or ACCELERATE_USE_CPU says")
    monkeypatch.setattr(accelerate, "__version__", "0.99.0")
    assert line("accelerate").startswith("accelerate 0.99.0 (not tried; 1.15 was): ")


@pytest.mark.of_the_accelerator
def test_a_state_of_accelerate_has_the_random_numbers(device, accelerate, tmp_path):
    accelerator = accelerate.Accelerator()
    ones = torch.ones(1000, device=device)
    torch.manual_seed(5)
    torch.rand(3, device=device)
    accelerator.save_state(tmp_path)
    expected = nn.functional.dropout(ones)
    torch.manual_seed(99)
    accelerator.load_state(tmp_path)
    same(nn.functional.dropout(ones), expected.cpu())
    (tmp_path / "random_states_0_outrigger.pt").unlink()
    with pytest.warns(UserWarning, match="has no random states of"):
        accelerator.load_state(tmp_path)


@pytest.mark.of_the_accelerator
def test_accelerate_knows_the_memory_of_the_devices(device, module, accelerate, caplog):
    from accelerate.utils import get_max_memory

    found = get_max_memory()
    assert list(found) == [*range(module.device_count()), "cpu"] and all(found.values())
    assert get_max_memory({"cpu": "1MB", 0: "2MB"}) == {0: 2 * 10**6, "cpu": 10**6}
    assert not caplog.records
    # As with other devices: a map may be made for another machine.
    assert get_max_memory({99: "1MB", 0: "2MB"}) == {0: 2 * 10**6, 99: 10**6}
    assert f"Device 99 is not available, available devices are {list(range(module.device_count()))}" in caplog.text


@pytest.mark.of_the_accelerator
def test_accelerate_empties_the_cache_of_the_device(device, module, accelerate):
    from accelerate.utils.memory import clear_device_cache

    size = 2**26
    torch.empty(size, dtype=torch.int8, device=device)
    before = module.memory_reserved()
    clear_device_cache()
    assert module.memory_reserved() <= before - size


@pytest.mark.of_the_accelerator
def test_accelerate_tries_smaller_batches_when_memory_is_out(device, module, accelerate):
    from accelerate.utils import find_executable_batch_size

    tried = []

    @find_executable_batch_size(starting_batch_size=4, reduce_batch_size_fn=lambda: tried[-1] // 2)
    def step(size: int) -> int:
        tried.append(size)
        rows = module.mem_get_info()[1] // 2
        return torch.empty(size, rows, dtype=torch.int8, device=device).shape[0]

    pool = module.MemPool()
    pool.set_limit(2**20)
    with module.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**21, dtype=torch.int8, device=device)
    assert accelerate.utils.memory.should_reduce_batch_size(caught.value)
    assert step() == 1 and tried == [4, 2, 1]


@pytest.mark.of_the_accelerator
def test_device_map_auto_puts_a_model_on_the_device(device, tiny, accelerate, tmp_path):
    from transformers import GPT2LMHeadModel

    tiny.save_pretrained(tmp_path)
    model = GPT2LMHeadModel.from_pretrained(tmp_path, device_map="auto")
    assert {parameter.device.type for parameter in model.parameters()} == {device.type}
    tokens = torch.tensor([[3, 5, 7]])
    with torch.no_grad():
        same(model(tokens.to(device)).logits, tiny(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.of_the_accelerator
def test_trainer_trains_on_the_device(device, tiny, accelerate, tmp_path):
    from transformers import Trainer, TrainingArguments

    weights = []
    for on_cpu in (False, True):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        arguments = TrainingArguments(
            output_dir=str(tmp_path), use_cpu=on_cpu, max_steps=2, per_device_train_batch_size=2, report_to=[],
            save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        assert arguments.device.type == ("cpu" if on_cpu else device.type)
        rows = [{"input_ids": [i, i + 1, i + 2], "labels": [i, i + 1, i + 2]} for i in range(4)]
        trainer = Trainer(model=copy.deepcopy(tiny), args=arguments, train_dataset=rows)
        trainer.train()
        weights.append(trainer.model.lm_head.weight)
    assert not torch.equal(weights[1], tiny.lm_head.weight)
    same(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def _row(at: int) -> dict[str, list[int]]:
    return {"input_ids": [at, at + 1, at + 2], "labels": [at, at + 1, at + 2]}


@pytest.mark.of_the_accelerator
def test_trainer_trains_in_bfloat16(device, tiny, accelerate, tmp_path):
    from transformers import Trainer, TrainingArguments

    seen, weights = set(), {}
    for precise in (True, False):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), bf16=not precise, max_steps=2, per_device_train_batch_size=2, report_to=[],
            save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, learning_rate=0.01,
        )  # fmt: skip
        model = copy.deepcopy(tiny)
        model.transformer.h[0].mlp.c_fc.register_forward_hook(
            lambda _module, _given, result, precise=precise: seen.add((precise, result.device.type, result.dtype))
        )
        Trainer(model=model, args=arguments, train_dataset=[_row(at) for at in range(4)]).train()
        weights[precise] = model.transformer.wte.weight.detach().cpu()
    assert seen == {(True, device.type, torch.float32), (False, device.type, torch.bfloat16)}
    assert not torch.equal(weights[True], weights[False])
    torch.testing.assert_close(weights[True], weights[False], rtol=0.1, atol=0.02)


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
def test_trainer_goes_on_with_the_random_numbers(device, accelerate, tmp_path):
    import rank_libraries
    from transformers import Trainer, TrainingArguments

    def trained(seed: int, resume: str | None = None) -> torch.Tensor:
        torch.manual_seed(seed)
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=2, report_to=[],
            disable_tqdm=True, dataloader_pin_memory=False, learning_rate=0.01, seed=3,
        )  # fmt: skip
        trainer = Trainer(
            model=rank_libraries.language_model(dropout=0.5), args=arguments, train_dataset=[_row(at) for at in range(12)]
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.transformer.wte.weight.detach().cpu()

    expected = trained(1)
    actual = trained(99, str(tmp_path / "checkpoint-2"))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.of_the_accelerator
def test_pipelines_run_on_the_device(device, other_device):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "good": 2, "bad": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ).eval()
    found = []
    for given, where in (({}, device), ({"device": 0}, device), ({"device": 1}, other_device), ({"device": -1}, None)):
        made = pipeline("text-classification", model=copy.deepcopy(model), tokenizer=tokenizer, **given)
        assert made.model.device == (where or torch.device("cpu")), given
        found.append(made("good bad good")[0]["score"])
    assert found == pytest.approx(found[-1:] * 4, rel=1e-4)


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
def test_continuous_batching_gives_the_tokens_of_the_cpu(device):
    from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    texts = [[1, 5, 3], [1, 4, 4, 4, 6]]
    expected = []
    for text in texts:
        tokens = torch.tensor([text])
        result = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False)
        expected.append(result[0, len(text) :].tolist())
    model.to(device)
    for sizes in ({"num_blocks": 64, "max_batch_tokens": 64}, {"max_memory_percent": 0.05}):
        results = model.generate_batch(
            inputs=texts,
            generation_config=GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=2, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(**sizes),
            progress_bar=False,
        )
        assert [result.generated_tokens for result in results.values()] == expected, sizes


# ---- peft ------------------------------------------------------------------------------------------


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
def test_peft_chooses_the_device(device):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    assert peft.utils.infer_device() == device.type


# ---- Lightning -------------------------------------------------------------------------------------


@pytest.fixture
def lightning():
    """Lightning, without its advice."""
    found = pytest.importorskip("lightning", reason="lightning is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield found


QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
PRECISIONS = {
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
    "16-mixed": torch.float16,
}


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
@pytest.mark.parametrize("chosen", ["auto", "by name"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_lightning_trains_on_the_device(device, lightning, precision, chosen):
    import rank_libraries

    model = rank_libraries.lightning_model()
    before = model.layer.weight.detach().clone()
    trainer = lightning.Trainer(
        max_steps=2, accelerator="auto" if chosen == "auto" else device.type, devices=1, precision=precision, **QUIET
    )
    trainer.fit(model, rank_libraries.lightning_rows())
    assert model.seen == {(str(device), PRECISIONS[precision])}
    assert not torch.equal(model.layer.weight.detach().cpu().float(), before)


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
def test_lightning_of_several_packages_trains_on_the_device(device, lightning):
    import rank_libraries

    packages = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    model = rank_libraries.lightning_model("pytorch_lightning")
    packages.Trainer(max_steps=2, devices=1, precision="bf16-mixed", **QUIET).fit(model, rank_libraries.lightning_rows())
    assert model.seen == {(str(device), torch.bfloat16)}


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fabric_of_lightning_runs_on_the_device(device, lightning, precision):
    fabric = lightning.Fabric(accelerator="auto", devices=1, precision=precision)
    fabric.launch()
    model = nn.Linear(4, 1)
    seen = []
    model.register_forward_hook(lambda _module, _given, result: seen.append((result.device, result.dtype)))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(2, 4, device=fabric.device)).float().mean())
    optimizer.step()
    assert seen == [(device, PRECISIONS[precision])]


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
def test_lightning_tries_smaller_batches_when_memory_is_out(device, module, lightning, tmp_path):
    import rank_libraries
    from lightning.pytorch.tuner import Tuner

    kind, tried = type(rank_libraries.lightning_model()), []

    class Large(kind):
        batch_size = 2

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader(rank_libraries.lightning_rows().dataset, self.batch_size)

        def training_step(self, batch, number):
            tried.append(len(batch[0]))
            torch.empty(tried[-1], module.mem_get_info()[1] // 5, dtype=torch.int8, device=device)
            return super().training_step(batch, number)

    trainer = lightning.Trainer(max_steps=1, accelerator="auto", devices=1, default_root_dir=tmp_path, **QUIET)
    assert Tuner(trainer).scale_batch_size(Large(), steps_per_trial=1) == 4
    assert set(tried) == {2, 4, 8}


@pytest.mark.only_with_all
@pytest.mark.of_the_accelerator
def test_lightning_keeps_random_numbers_and_counts_devices(device, module, lightning):
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.utilities.seed import isolate_rng

    with isolate_rng():
        expected = torch.rand(3, device=device).cpu()
    same(torch.rand(3, device=device), expected)
    accelerator = AcceleratorRegistry.get(device.type)
    everything = list(range(module.device_count()))
    assert [accelerator.parse_devices(each) for each in (1, "1", [0], "0,", -1, "-1")] == [[0]] * 4 + [everything] * 2
    with pytest.raises(ValueError, match=f"names device 99, but {device.type} has {module.device_count()}"):
        accelerator.parse_devices([99])


# ---- what is changed in libraries ------------------------------------------------------------------

PLACES = {
    "accelerate.accelerator:Accelerator.__init__": 2938987536,
    "accelerate.accelerator:Accelerator.backward": 818842931,
    "accelerate.accelerator:Accelerator.prepare_model": 3170974549,
    "accelerate.checkpointing:load_accelerator_state": 1133159573,
    "accelerate.checkpointing:save_accelerator_state": 1144891476,
    "accelerate.commands.launch:_validate_launch_command": 3310355400,
    "accelerate.state:PartialState._prepare_backend": 157634923,
    "accelerate.state:PartialState.default_device": 1358987804,
    "accelerate.state:PartialState.set_device": 1106529139,
    "accelerate.state:PartialState.wait_for_everyone": 1404008190,
    "accelerate.utils.dataclasses:FullyShardedDataParallelPlugin.__post_init__": 3351052797,
    "accelerate.utils.environment:get_current_device_type": 3511040221,
    "accelerate.utils.launch:prepare_simple_launcher_cmd_env": 1818593554,
    "accelerate.utils.memory:clear_device_cache": 141823215,
    "accelerate.utils.modeling:get_grad_scaler": 1592852661,
    "accelerate.utils.modeling:get_max_memory": 3874119051,
    "accelerate.utils.random:synchronize_rng_states": 3077336716,
    "lightning.fabric.connector:_Connector._check_and_init_precision": 3253420814,
    "lightning.fabric.connector:_Connector._choose_auto_accelerator": 4240503391,
    "lightning.fabric.connector:_Connector._choose_strategy": 1438560649,
    "lightning.fabric.strategies.ddp:DDPStrategy._determine_ddp_device_ids": 2668182046,
    "lightning.pytorch.strategies.ddp:DDPStrategy.determine_ddp_device_ids": 1247626254,
    "lightning.fabric.utilities.seed:_collect_rng_states": 3676715524,
    "lightning.fabric.utilities.seed:_set_rng_states": 2709318544,
    "lightning.pytorch.utilities.memory:is_oom_error": 2533122025,
    "lightning.pytorch.trainer.connectors.accelerator_connector:_AcceleratorConnector._check_and_init_precision": 3185379846,
    "lightning.pytorch.trainer.connectors.accelerator_connector:_AcceleratorConnector._choose_auto_accelerator": 2691265871,
    "lightning.pytorch.trainer.connectors.accelerator_connector:_AcceleratorConnector._choose_strategy": 2333174084,
    "peft.utils.other:infer_device": 4284417615,
    "torch_geometric.data.collate:collate": 1796329665,
    "torch_geometric.device:device": 3431578166,
    "torch_geometric.loader.prefetch:DeviceHelper.__init__": 3256789152,
    "transformers.generation.continuous_batching.utils:create_device_stream": 4159509575,
    "transformers.generation.continuous_batching.utils:get_device_and_memory_breakdown": 2712142574,
    "transformers.generation.utils:GenerationMixin._valid_auto_compile_criteria": 2281925477,
    "transformers.pipelines.base:Pipeline.__init__": 642176746,
    "transformers.trainer:Trainer._load_rng_state": 86033744,
    "transformers.trainer:Trainer._save_rng_state": 972556161,
    "transformers.trainer_utils:TrainerMemoryTracker.derive_stage": 1139570337,
    "transformers.trainer_utils:TrainerMemoryTracker.start": 403320348,
    "transformers.trainer_utils:TrainerMemoryTracker.stop": 1424696693,
    "transformers.trainer_utils:TrainerMemoryTracker.update_metrics": 315751825,
    "transformers.training_args:TrainingArguments._setup_devices": 3764926730,
    "transformers.utils.import_utils:is_cuda_stream_capturing": 1862874418,
    "transformers.utils.import_utils:is_torch_bf16_gpu_available": 3019972061,
}
"""Changed functions, in the versions that were seen: sums of the original texts. Another sum means that somebody has to
look whether the change still does what it should; the tests above say so for the most part."""


def _mark(place: str) -> Any:
    """The default environment has only some of the libraries."""
    is_there = place.startswith(("accelerate", "transformers"))
    return pytest.param(place, marks=[] if is_there else pytest.mark.only_with_all)


@pytest.mark.parametrize("place", map(_mark, PLACES))
def test_what_is_changed_is_what_was_seen(device, place):
    module, name = place.split(":")
    pytest.importorskip(module.split(".")[0])
    found = functools.reduce(getattr, name.split(".")[:-1], importlib.import_module(module))
    last = name.split(".")[-1]
    found = vars(found)[last]
    found = getattr(found, "fget", getattr(found, "func", getattr(found, "__func__", found)))
    # Of the one that is not wrapped, a constant is changed.
    assert inspect.unwrap(found) is not found or any(
        isinstance(each, tuple) and device.type in each for each in found.__code__.co_consts
    )
    assert zlib.crc32(inspect.getsource(inspect.unwrap(found)).encode()) == PLACES[place]


def test_a_version_that_was_not_seen_is_a_warning():
    from torch_outrigger import integrations

    library = types.ModuleType("peft")
    library.__version__ = "0.99.1"
    with pytest.warns(UserWarning, match=r"peft 0.99.1 was not tried with torch_outrigger, but 0.21: .*docs/torch.md"):
        integrations._warn_of_version(library, ("0.21",))
    library.__version__ = "0.21.7"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrations._warn_of_version(library, ("0.21",))
