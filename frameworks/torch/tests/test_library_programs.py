"""Programs with libraries that take the device of their tensors, and parts of others that know devices by name.

Each computes on the device what it computes on the CPU. All run with --all alone: in an environment that has these libraries.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import same
from torch import nn

# Libraries ask for the device's type, not its driver.
pytestmark = [pytest.mark.only_with_all, pytest.mark.of_the_accelerator, pytest.mark.usefixtures("once")]


# ---- torchao ---------------------------------------------------------------------------------------


def _configs() -> dict[str, Callable[[], Any]]:
    from torchao import quantization as ao
    from torchao.quantization.granularity import PerGroup

    return {
        "int8": ao.Int8WeightOnlyConfig,
        "int8, with activations": ao.Int8DynamicActivationInt8WeightConfig,
        "int4": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "int4, with activations of int8": lambda: ao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
        "float8": ao.Float8WeightOnlyConfig,
    }


QUANTIZED = ("int8", "int8, with activations", "int4", "int4, with activations of int8", "float8")


def _parts(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(weight).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchao_quantizes_as_on_the_cpu(device, name, dtype):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32)).to(dtype).eval()
    x = torch.randn(4, 128, dtype=dtype)
    cpu, ours = copy.deepcopy(plain), copy.deepcopy(plain).to(device)
    quantization.quantize_(cpu, _configs()[name]())
    quantization.quantize_(ours, _configs()[name]())
    parts, expected = _parts(ours[0].weight), _parts(cpu[0].weight)
    assert parts.keys() == expected.keys() and "qdata" in parts
    for key, part in parts.items():
        assert part.device == device
        assert torch.equal(part.cpu().float(), expected[key].float()), key
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.01}
    result = cpu(x)
    assert not torch.equal(result, plain(x))
    same(ours(x.to(device)), result, **tolerance)
    same(copy.deepcopy(cpu).to(device)(x.to(device)), result, **tolerance)


def test_torchao_quantizes_for_torch_compile(device):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    torch.manual_seed(0)
    # Of two layers the second may round to a neighbour: for a device torch.compile divides by a constant as it multiplies.
    model, x = nn.Sequential(nn.Linear(128, 64)).eval(), torch.randn(4, 128)
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    expected = model(x)
    same(torch.compile(model.to(device), fullgraph=True)(x.to(device)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_optimizers_of_torchao_step_as_on_the_cpu(device, name):
    optim = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    weights = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        # From 4096 elements on the state is quantized.
        model, x = nn.Linear(128, 64), torch.randn(8, 128)
        before = model.weight.detach().clone()
        model.to(where)
        optimizer = getattr(optim, name)(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(x.to(where)).square().mean().backward()
            optimizer.step()
        state = optimizer.state[model.weight]["exp_avg"]
        assert type(state) is not torch.Tensor and state.device == torch.device(where)
        assert (model.weight.detach().cpu() - before).abs().max() > 0.01
        weights.append(model.weight)
    same(weights[1], weights[0].detach(), rtol=1e-4, atol=1e-5)


# ---- opacus ----------------------------------------------------------------------------------------


def _private(where: Any, mode: str, noise: float = 0.0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights after a step with differential privacy, and the gradient of each sample."""
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Tanh(), nn.Linear(8, 3)
    ).to(where)
    rows = torch.utils.data.TensorDataset(torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,)))
    keywords = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
    made = opacus.PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), data_loader=torch.utils.data.DataLoader(rows, 8),
        noise_multiplier=noise, max_grad_norm=0.5, poisson_sampling=False, grad_sample_mode=mode, **keywords,
    )  # fmt: skip
    model, optimizer = made[:2]
    loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    for x, y in made[-1]:
        optimizer.zero_grad()
        loss(model(x.to(where)), y.to(where)).backward()
        samples = [] if mode == "ghost" else [parameter.grad_sample for parameter in model.parameters()]
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], samples


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_opacus_has_the_gradient_of_each_sample(device, mode):
    weights, samples = _private(device, mode)
    expected_weights, expected_samples = _private("cpu", mode)
    for one, other in zip(samples, expected_samples, strict=True):
        assert one.shape[0] == 8 and one.device == device
        same(one, other, rtol=1e-4, atol=1e-5)
    for one, other in zip(weights, expected_weights, strict=True):
        same(one, other, rtol=1e-4, atol=1e-5)


def test_noise_of_opacus_is_drawn_on_the_device(device, module):
    plain, noisy, again = (_private(device, "hooks", noise)[0] for noise in (0.0, 2.0, 2.0))
    differences = torch.cat([(one - other).flatten() for one, other in zip(noisy, plain, strict=True)]).cpu()
    # The rate, the norm and the noise, over the samples of a batch.
    assert differences.std().item() == pytest.approx(0.5 * 0.5 * 2.0 / 8, rel=0.1)
    assert all(torch.equal(one, other) for one, other in zip(noisy, again, strict=True))


# ---- PyTorch Geometric -----------------------------------------------------------------------------

LAYERS = {
    "GCN": lambda nn, a, b: nn.GCNConv(a, b),
    "SAGE": lambda nn, a, b: nn.SAGEConv(a, b),
    "SAGE, the greatest": lambda nn, a, b: nn.SAGEConv(a, b, aggr="max"),
    "GAT": lambda nn, a, b: nn.GATConv(a, b, heads=2, concat=False),
}


@pytest.fixture
def geometric():
    return pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")


def _graph() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(20, 6), torch.randint(0, 20, (2, 60)), torch.randint(0, 3, (20,))


@pytest.mark.parametrize("name", LAYERS)
def test_graph_networks_train_as_on_the_cpu(device, geometric, name):
    x, edges, y = _graph()
    plain = nn.ModuleList([LAYERS[name](geometric.nn, 6, 8), LAYERS[name](geometric.nn, 8, 3)])
    found = []
    for where in ("cpu", device):
        model = copy.deepcopy(plain).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            out = model[1](model[0](x.to(where), edges.to(where)).relu(), edges.to(where))
            nn.functional.cross_entropy(out, y.to(where)).backward()
            optimizer.step()
        found.append([parameter.detach() for parameter in model.parameters()])
    assert not torch.equal(found[0][0], next(plain.parameters()))
    for ours, expected in zip(found[1], found[0], strict=True):
        same(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "mul"])
def test_scatter_of_graphs(device, geometric, reduce, dtype):
    torch.manual_seed(0)
    source, index = torch.randint(-4, 5, (20, 3)).to(dtype), torch.randint(0, 7, (20,))
    scatter = geometric.utils.scatter
    same(scatter(source.to(device), index.to(device), 0, 7, reduce), scatter(source, index, 0, 7, reduce))


def test_data_of_graphs_is_on_the_device(device, geometric):
    from torch_geometric.data import Batch, Data
    from torch_geometric.loader import DataLoader, PrefetchLoader

    x, edges, _ = _graph()
    graphs = [Data(x=x + at, edge_index=edges, y=torch.tensor([at])) for at in range(3)]
    expected = geometric.nn.global_mean_pool(torch.cat([graph.x for graph in graphs]), torch.arange(3).repeat_interleave(20))
    batch = Batch.from_data_list([graph.clone().to(device) for graph in graphs], follow_batch=["y"])
    assert {batch.batch.device, batch.ptr.device, batch.y_batch.device, batch.y_ptr.device} == {device}
    same(geometric.nn.global_mean_pool(batch.x, batch.batch), expected)
    assert Batch.from_data_list(graphs).batch.device == torch.device("cpu")
    assert geometric.device("auto") == torch.device(device.type) and geometric.device("cpu") == torch.device("cpu")
    for given, where in ((None, device), (device, device), (device.type, device), ("cpu", torch.device("cpu"))):
        found = list(PrefetchLoader(DataLoader(graphs, batch_size=1), device=given))
        assert [batch.x.device for batch in found] == [where] * 3, given
        assert torch.equal(torch.cat([batch.x for batch in found]).cpu(), torch.cat([graph.x for graph in graphs]))


# ---- diffusers -------------------------------------------------------------------------------------


def _pipeline() -> Any:
    """One that makes pictures of texts, small and with random weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(4, 8), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4, cross_attention_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=2,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(4, 8), in_channels=3, out_channels=3, latent_channels=4, norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    text = CLIPTextModel(
        CLIPTextConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2, num_hidden_layers=2, vocab_size=100)
    )
    pipeline = StableDiffusionPipeline(
        unet=unet.eval(), vae=vae.eval(), text_encoder=text.eval(), tokenizer=None, scheduler=DDIMScheduler(), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


OFFLOADS = {
    "none": (lambda pipeline, device: pipeline.to(device), "device"),
    "models": (lambda pipeline, device: pipeline.enable_model_cpu_offload(), "cpu"),
    "modules": (lambda pipeline, device: pipeline.enable_sequential_cpu_offload(), "meta"),
    "groups, with a stream": (
        lambda pipeline, device: pipeline.enable_group_offload(onload_device=device, offload_type="leaf_level", use_stream=True),
        "cpu",
    ),
}


@pytest.mark.parametrize("name", OFFLOADS)
def test_diffusers_offloads_and_computes_on_the_device(device, name):
    torch.manual_seed(3)
    text, noise = torch.randn(1, 7, 8), torch.randn(1, 4, 8, 8)

    def picture(pipeline: Any) -> Any:
        return pipeline(
            prompt_embeds=text, negative_prompt_embeds=torch.zeros_like(text), latents=noise, num_inference_steps=3, output_type="np"
        ).images

    pipeline, seen = _pipeline(), set()
    for part in (pipeline.unet.conv_out, pipeline.vae.decoder):
        part.register_forward_hook(lambda _module, _given, result: seen.add(result.device))
    offload, rests = OFFLOADS[name]
    offload(pipeline, device)
    result = picture(pipeline)
    assert seen == {device}
    assert {each.device.type for each in pipeline.unet.parameters()} == {device.type if rests == "device" else rests}
    torch.testing.assert_close(torch.from_numpy(result), torch.from_numpy(picture(_pipeline())), rtol=1e-4, atol=1e-4)


# ---- peft ------------------------------------------------------------------------------------------


def test_peft_trains_and_merges(device, tmp_path):
    import rank_libraries

    peft = pytest.importorskip("peft", reason="peft is not installed")
    tokens = torch.stack([row["input_ids"] for row in rank_libraries.rows_of_tokens()[:4]])
    found = {}
    for where in (torch.device("cpu"), device):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights="gaussian", fan_in_fan_out=True)
        model = peft.get_peft_model(rank_libraries.language_model(), config).to(where)
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            model(input_ids=tokens.to(where), labels=tokens.to(where)).loss.backward()
            optimizer.step()
        model.save_pretrained(tmp_path / where.type)
        trained = model(input_ids=tokens.to(where)).logits.detach()
        plain = rank_libraries.language_model().to(where)
        assert not torch.allclose(plain(input_ids=tokens.to(where)).logits, trained, atol=1e-4)
        loaded = peft.PeftModel.from_pretrained(plain, tmp_path / where.type)
        assert {each.device for each in loaded.parameters()} == {where}
        torch.testing.assert_close(loaded(input_ids=tokens.to(where)).logits, trained)
        found[where.type] = loaded.merge_and_unload()(input_ids=tokens.to(where)).logits.detach()
        torch.testing.assert_close(found[where.type], trained, rtol=1e-4, atol=1e-5)
    same(found[device.type], found["cpu"], rtol=1e-4, atol=1e-4)


# ---- transformers ----------------------------------------------------------------------------------


def test_generation_compiles_by_itself(device, monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    tokens, mask = torch.tensor([[1, 5, 3, 7], [0, 0, 4, 9]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(tokens, attention_mask=mask, **how)
    model.to(device)
    asked, compile = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda *arguments, **named: asked.append(named.get("mode")) or compile(*arguments, **named))
    for _ in range(2):
        found = model.generate(tokens.to(device), attention_mask=mask.to(device), **how)
        assert torch.equal(found.cpu(), expected)
    assert asked == ["reduce-overhead"]
    found = model.generate(tokens.to(device), attention_mask=mask.to(device), disable_compile=True, **how)
    assert torch.equal(found.cpu(), expected) and len(asked) == 1


def test_trainer_measures_the_memory_of_the_device(device, module, tmp_path):
    import rank_libraries
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], save_strategy="no", disable_tqdm=True,
        skip_memory_metrics=False, dataloader_pin_memory=False,
    )  # fmt: skip
    assert arguments.n_gpu == 1
    gc.collect()
    before = module.memory_allocated()
    trainer = Trainer(model=rank_libraries.language_model(), args=arguments, train_dataset=rank_libraries.rows_of_tokens())
    metrics = trainer.train().metrics
    weights = sum(parameter.numel() * 4 for parameter in trainer.model.parameters())
    assert metrics["before_init_mem_gpu"] == before
    assert metrics["init_mem_gpu_alloc_delta"] >= weights
    # Two moments of the optimizer stay, and what the step computes goes again.
    assert metrics["train_mem_gpu_alloc_delta"] >= 2 * weights and metrics["train_mem_gpu_peaked_delta"] > 0
    assert "train_mem_cpu_alloc_delta" in metrics
