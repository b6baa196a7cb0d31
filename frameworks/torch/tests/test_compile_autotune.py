"""`mode="max-autotune"`: kernels of this backend for products, and how one of them is chosen.

What kernels compute is tested with given answers, one for each kind of kernel. Choosing is tested with the process that measures.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid

import pytest
import torch
import torch.nn.functional as F
from support import same
from torch import nn
from torch._inductor.utils import run_and_get_code

M, N, K = 70, 90, 200


@pytest.fixture(autouse=True)
def fresh(device, compiles):
    """No graph of another test is used, and no answer."""
    import torch._functorch.config
    import torch._inductor.config
    from torch_outrigger.inductor import choices, register

    register(device.type)
    torch._dynamo.reset()
    choices._asked.clear()
    no_caches = torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False)
    with no_caches[0], no_caches[1]:
        yield
    choices._asked.clear()


@pytest.fixture
def answer(monkeypatch):
    """Gives questions an answer: the first variant whose name has a text in it, else the operator. Returns the questions."""
    from torch_outrigger.inductor import choices

    wanted, asked = ["tile"], []

    def give(question):
        asked.append(question)
        fits = [one.name for one in question.variants if wanted[0] in one.name]
        question.answer.set_result(fits[0] if fits else choices.LIBRARY)

    def set_wanted(text):
        wanted[0] = text
        choices._asked.clear()
        return asked

    monkeypatch.setattr(choices.Question, "ask", give)
    monkeypatch.setattr(choices.Question, "compile", lambda self: None)
    monkeypatch.setattr(choices, "_LEAST_TUNED", 1)
    return set_wanted


def tuned(function, **options):
    return torch.compile(function, options={"max_autotune": True, **options})


def moved(value, device):
    """A tensor on the device with the strides that it has."""
    held = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    return held.copy_(value)


def agree(function, *arguments, device, rtol=1e-4, atol=1e-4, **options):
    """Asserts that a function gives the same, compiled, as on the CPU. Returns the code that was written."""
    compiled = tuned(function, **options)
    result, (code,) = run_and_get_code(compiled, *(moved(one, device) for one in arguments))
    expected = function(*arguments)
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected)), strict=True):
        same(one, other, rtol=rtol, atol=atol)
    return code


def kernels(code):
    return code.count("outrigger_program.kernel(")


def laid_out(sizes, layout, dtype):
    """A random matrix, or batches, of a layout."""
    *batch, rows, columns = sizes
    if layout == "rows":
        value = torch.randn(sizes)
    elif layout == "columns":
        value = torch.randn(*batch, columns, rows).mT
    elif layout == "apart":
        value = torch.randn(*batch, rows, 2 * columns)[..., ::2]
    else:
        value = torch.randn(*batch, rows + 3, columns + 5)[..., 2:-1, 3:-2]
    return value.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.takes_turns
def test_kernels_compute_products(dtype, device, answer):
    from torch_outrigger.inductor import product

    torch.manual_seed(0)
    count = len(product.tiles(device, dtype, M))
    if not count:
        assert dtype == torch.float64
        pytest.skip("the device has no f64")
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-9}.get(dtype, 0.1)
    tiles = {one.name for m in (3, M) for one in product.tiles(device, dtype, m)}
    for number, tile in enumerate(sorted(tiles)):
        asked = answer(tile)
        layouts = ("rows", "columns", "apart", "inner")
        a_layout, b_layout = layouts[number % 4], layouts[(number // 4 + number + 1) % 4]
        for batch, m in (((), M), ((3,), M), ((), 3)):
            a, b = laid_out((*batch, m, K), a_layout, dtype), laid_out((*batch, K, N), b_layout, dtype)
            before = len(asked)
            code = agree(torch.matmul, a, b, device=device, rtol=tolerance, atol=tolerance)
            torch._dynamo.reset()
            fits = any(tile in one.name for one in asked[before].variants)
            assert ("extern_kernels." in code) != fits, f"{tile}: {a_layout} {b_layout} {batch} {m}"
            assert kernels(code) == 1 or not fits


@pytest.mark.parametrize("group", [64, 256])
def test_kernels_of_groups(group, device, answer, monkeypatch):
    """Groups of many items, as on a GPU, run on a CPU too, if it is told so."""
    from torch_outrigger.inductor import kernel, product, program

    if program.language(device.index) is None:
        pytest.skip("a thread runs a group where kernels are functions of the host")
    for module in (kernel, product, program):
        monkeypatch.setattr(module, "group_size", lambda index: group)
    torch.manual_seed(9)
    cases = (
        (lambda x, w, b: F.gelu(F.linear(x, w, b)) + 1, (M, K), (N, K), (N,)),
        (lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2).relu(), (2, 8, 21, 20), (12, 8, 3, 3), (12,)),
        (lambda x, w, b: torch.bmm(x.mT, w) * b, (3, 50, M), (3, 50, 33), (33,)),
    )
    tiles = product.tiles(device, torch.float32, M)
    assert tiles
    for tile in tiles:
        for function, *shapes in cases:
            answer(tile.name)
            code = agree(function, *map(torch.randn, shapes), device=device, rtol=1e-3, atol=1e-3)
            assert kernels(code) == 1
            torch._dynamo.reset()


def test_what_follows_is_a_part_of_the_kernel(device, answer):
    answer("tile")
    torch.manual_seed(1)
    x, w, bias, other = torch.randn(M, K), torch.randn(N, K), torch.randn(N), torch.randn(M, N)

    def layer(x, w, bias, other):
        return F.gelu(F.linear(x, w, bias)) * 2 + other

    def added(x, w, bias, other):
        return torch.addmm(bias, x, w.t(), alpha=0.5, beta=3).sigmoid(), torch.addmm(other, x, w.t(), beta=0)

    def viewed(x, w, bias, other):
        return F.linear(x, w, bias).view(7, 10, 3, 30).transpose(1, 2).relu()

    def batched(x, w, bias, other):
        x = x.view(7, 10, K)
        return torch.baddbmm(other.view(7, 10, N), x, w.t().expand(7, K, N), alpha=2).tanh()

    def used_twice(x, w, bias, other):
        product = x @ w.t()
        return product, product.relu() + bias, product.sum(1)

    for function, count in ((layer, 1), (added, 2), (viewed, 1), (batched, 1), (used_twice, 2)):
        code = agree(function, x, w, bias, other, device=device)
        assert kernels(code) == count, function.__name__
        assert "extern_kernels." not in code
        torch._dynamo.reset()
    # A result that nothing else reads is not stored.
    assert kernels(agree(layer, x, w, bias, other, device=device)) == 1
    code = agree(layer, x, w, bias, other, device=device, epilogue_fusion=False)
    assert kernels(code) == 2


CONVOLUTIONS = {
    "plain": ((2, 8, 19, 17), (12, 8, 3, 3), {"padding": 1}),
    "with steps": ((2, 3, 31, 26), (16, 3, 7, 5), {"stride": (2, 3), "padding": (3, 0), "dilation": (1, 2)}),
    "in groups": ((3, 8, 20, 9), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    "of one place": ((2, 24, 14, 14), (40, 24, 1, 1), {}),
    "of a line": ((2, 8, 100), (12, 8, 5), {"padding": 2}),
    "of a volume": ((2, 4, 6, 7, 8), (6, 4, 3, 3, 3), {"stride": 2, "padding": 1}),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(kind, device, answer):
    asked = answer("tile")
    torch.manual_seed(6)
    x_sizes, w_sizes, how = CONVOLUTIONS[kind]
    apply = (F.conv1d, F.conv2d, F.conv3d)[len(x_sizes) - 3]
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, bias = (torch.randn(one).to(dtype) for one in (x_sizes, w_sizes, w_sizes[:1]))
        if kind == "plain":
            # A view, as a slice of a larger image is.
            x = torch.randn(2, 8, 21, 20).to(dtype)[..., 1:-1, 3:]
        tolerance = 1e-4 if dtype == torch.float32 else 0.1

        def function(x, weight, bias):
            return apply(x, weight, bias, **how).relu() * 2

        code = agree(function, x, weight, bias, device=device, rtol=tolerance, atol=tolerance)
        assert kernels(code) == 1
        assert "extern_kernels." not in code
        assert asked[-1].variants[0].kernel.gathers == (kind != "of one place")
        torch._dynamo.reset()


def test_convolutions_that_are_the_devices(device, answer):
    asked = answer("tile")
    torch.manual_seed(7)
    x, weight = torch.randn(2, 8, 12, 12), torch.randn(8, 8, 3, 3)
    last = x.to(memory_format=torch.channels_last)
    for function, given in ((F.conv2d, last), (F.conv_transpose2d, x)):
        agree(lambda x, weight, function=function: function(x, weight).relu(), given, weight, device=device)
        torch._dynamo.reset()
    assert not asked
    agree(lambda x, weight: F.conv2d(x, weight), x, weight, device=device, max_autotune_conv_backends="ATEN")
    assert not asked


@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_attention_as_products(is_causal, device, answer):
    asked = answer("tile")
    torch.manual_seed(8)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        # As projections give it: heads behind positions.
        q, k, v = (torch.randn(2, 50, 3, 32).to(dtype).transpose(1, 2) for _ in range(3))

        def function(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3).transpose(1, 2).reshape(2, 50, 96)

        code = agree(function, q, k, v, device=device, rtol=tolerance, atol=tolerance)
        assert asked[-1].operation == "attention"
        assert "torch.ops.aten" not in code[code.index("def call(") :]
        assert kernels(code) == 3
        torch._dynamo.reset()
    # Weights that drop out, a bias, and gradients need the operator.
    before = len(asked)
    mask = torch.randn(50, 50).to(dtype)
    code = agree(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, mask, device=device, rtol=0.05, atol=0.05)
    q, k, v = (moved(one, device).requires_grad_() for one in (q, k, v))
    tuned(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))(q, k, v).sum().backward()
    assert not any(one.operation == "attention" for one in asked[before:])


def test_a_candidate_by_its_name(device, monkeypatch):
    from torch_outrigger.inductor import choices, product

    def fail(question):
        raise AssertionError("nothing is to be asked")

    monkeypatch.setattr(choices.Question, "ask", fail)
    name = f"tile {product.tiles(device, torch.float32, 192)[1].name}"
    a, b = torch.randn(192, 256), torch.randn(256, 160)
    code = agree(torch.mm, a, b, device=device, **{f"{device.type}.candidate": name})
    assert kernels(code) == 1


def test_sizes_that_move(device, answer):
    asked = answer("tile")
    torch.manual_seed(2)
    weight = torch.randn(K, N)

    def function(x, w):
        return (x @ w).relu() + x.shape[0]

    compiled = torch.compile(function, options={"max_autotune": True}, dynamic=True)
    for rows in (70, 3, 129, 1000):
        x = torch.randn(rows, K)
        same(compiled(x.to(device), weight.to(device)), (x @ weight).relu() + rows, rtol=1e-4, atol=1e-4)
    assert len(asked) == 1


def test_images_whose_number_moves(device, answer):
    asked = answer("tile")
    torch.manual_seed(10)
    weight = torch.randn(12, 8, 3, 3)
    compiled = torch.compile(lambda x, w: F.conv2d(x, w).relu(), options={"max_autotune": True})
    for count in (3, 5, 7):
        x = torch.randn(count, 8, 12, 10)
        there = x.to(device)
        torch._dynamo.mark_dynamic(there, 0)
        same(compiled(there, weight.to(device)), F.conv2d(x, weight).relu(), rtol=1e-4, atol=1e-4)
    assert len(asked) == 1


def test_a_sum_is_split(device, answer):
    asked = answer("4 parts")
    torch.manual_seed(3)
    a, b, bias = torch.randn(20, 4096), torch.randn(4096, 24), torch.randn(24)

    def function(a, b, bias):
        return (a @ b + bias).relu()

    # One kernel for the parts, one that adds them up with what follows.
    code = agree(function, a, b, bias, device=device, atol=1e-3)
    assert kernels(code) == 2
    names = [one.name for one in asked[-1].variants]
    assert any("16 parts" in one for one in names)
    torch._dynamo.reset()
    for options in ({"outrigger.split_k": False}, {"outrigger.templates": False}, {"max_autotune_gemm_backends": "ATEN"}):
        named = {key.replace("outrigger", device.type): value for key, value in options.items()}
        before = len(asked)
        code = agree(function, a, b, bias, device=device, atol=1e-3, **named)
        assert "extern_kernels." in code
        assert not any("parts" in one.name for question in asked[before:] for one in question.variants)
        torch._dynamo.reset()
    # A sum whose length moves is not.
    compiled = torch.compile(function, options={"max_autotune": True}, dynamic=True)
    same(compiled(a.to(device), b.to(device), bias.to(device)), function(a, b, bias), rtol=1e-4, atol=1e-3)
    assert not any("parts" in one.name for one in asked[-1].variants)


def test_limits_hold_for_products(device, answer):
    answer("tile")
    torch.manual_seed(4)
    a, b = torch.randn(M, K), torch.randn(K, N)
    others = [torch.randn(M, N) for _ in range(6)]

    def function(a, b, *others):
        total = a @ b
        for one in others:
            total = (total + one).sin()
        return total

    assert kernels(agree(function, a, b, *others, device=device)) == 1
    torch._dynamo.reset()
    code = agree(function, a, b, *others, device=device, **{f"{device.type}.max_kernel_buffers": 5})
    assert kernels(code) > 1
    for kinds in re.findall(r"outrigger_program\.kernel\('\w+', '(\w+)'", code):
        assert kinds.count("a") <= 5


def test_training_with_graphs(device, answer):
    answer("tile")
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(K, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))
    twin = nn.Sequential(nn.Linear(K, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))
    twin.load_state_dict(model.state_dict())
    twin = twin.to(device)
    compiled = torch.compile(twin, mode="max-autotune")
    for step in range(4):
        x = torch.randn(M, K)
        for run, given in ((model, x), (compiled, x.to(device))):
            run.zero_grad()
            run(given).square().mean().backward()
        for one, other in zip(twin.parameters(), model.parameters(), strict=True):
            same(one.grad, other.grad, rtol=1e-3, atol=1e-5)


def test_a_guard_names_the_kernel_of_a_product(device, answer):
    answer("tile")
    compiled = tuned(lambda a, b: (a @ b).relu() + 1, nan_asserts=True)
    a, b = torch.ones(M, K, device=device), torch.ones(K, N, device=device)
    compiled(a, b)
    a[3, 5] = float("inf")
    b[5, :] = -1.0
    b[:, 4] = float("nan")
    with pytest.raises(RuntimeError, match="NaN|finite|infinit"):
        compiled(a, b)
        torch.accelerator.synchronize()


def test_an_index_behind_a_product_is_checked(device, answer):
    answer("tile")
    a, b, rows, places = torch.randn(M, K), torch.randn(K, N), torch.randn(9, N), torch.randint(0, 9, (M,))

    def picked(a, b, rows, places):
        return a @ b + rows[places]

    assert kernels(agree(picked, a, b, rows, places, device=device)) == 1
    places[3] = 9
    with pytest.raises(IndexError):
        tuned(picked)(*(one.to(device) for one in (a, b, rows, places)))
        torch.accelerator.synchronize()


# ---- choosing ----


@pytest.fixture
def choose(device, monkeypatch, caplog):
    """Asks for a product of which nothing is kept. Returns what is logged of the choice, and how many were measured."""
    from torch_outrigger.inductor import choices, product

    code, tiles, worker = str(uuid.uuid4()), product.tiles, choices._worker
    monkeypatch.setattr(choices, "_code", lambda: code)
    monkeypatch.setattr(product, "tiles", lambda *given: tiles(*given)[:2])

    def ask(in_worker="pass", **options):
        program, flag, text = worker()
        text = text.replace("import main; main()", f"import main; {in_worker}; main()")
        monkeypatch.setattr(choices, "_worker", lambda: [program, flag, text])
        choices._asked.clear()
        torch._dynamo.reset()
        caplog.clear()
        a, b = torch.randn(192, 256), torch.randn(256, 160)
        with caplog.at_level(logging.INFO, logger=choices.__name__):
            agree(lambda a, b: (a @ b).relu(), a, b, device=device, atol=1e-3, **options)
        (said,) = (one.getMessage() for one in caplog.records if one.name == choices.__name__)
        assert said.startswith("mm [192, 256] by [256, 1]; [256, 160] by [160, 1], followed: ")
        chosen, times = said.split(": ", 1)[1].split(" of ", 1)
        return chosen, times.count(" us'")

    return ask


def test_a_choice_is_measured_once_and_kept(choose):
    chosen, measured = choose()
    assert measured == 3
    # A worker that cannot start is not missed.
    assert choose("raise SystemExit")[0] == chosen


def test_candidates_compile_while_the_worker_starts(choose, device, monkeypatch):
    from torch_outrigger.inductor import choices, program

    if program.language(device.index) is not None:
        pytest.skip("the library itself compiles, and keeps what it has compiled")
    compiled, ask, compile_one = threading.Event(), choices.Question.ask, choices.Question.compile

    def noting_compile(self):
        compile_one(self)
        compiled.set()

    def late_ask(self):
        assert compiled.wait(60)
        ask(self)

    monkeypatch.setattr(choices.Question, "compile", noting_compile)
    monkeypatch.setattr(choices.Question, "ask", late_ask)

    def fresh_flags():
        # No other test has compiled with them.
        monkeypatch.setattr(program, "_FLAGS", [*program._FLAGS, f"-DOTR_{uuid.uuid4().hex}"])
        return len(program._parts)

    fresh_flags()
    only_stored = (
        f"import torch_outrigger.inductor.program as p; p._FLAGS = {program._FLAGS}; s = p._part; "
        "p._part = lambda text, *_: s(text, False, False)"
    )
    assert choose(only_stored)[1] == 3
    # Nothing is compiled for a question whose answer is known.
    before = fresh_flags()
    compiled.clear()
    answer = []
    monkeypatch.setattr(choices.Question, "ask", lambda self: (late_ask(self), answer.append(len(program._parts))))
    choose(only_stored)
    assert answer == [before]


PATCH = (
    "import os, time; import torch_outrigger.inductor.measure as m; stock = m.Bench._program; "
    "m.Bench._program = lambda self, name, *about: ({}) if '96x128' in name else stock(self, name, *about)"
)


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("fault", "measured"),
    [
        (PATCH.format("os.abort"), 2),
        (PATCH.format("lambda: time.sleep(600)"), 2),
        (PATCH.format("lambda: None"), 2),
        ("raise SystemExit(3)", 0),
    ],
    ids=["crashes", "hangs", "computes nothing", "has no process"],
)
def test_a_candidate_that_fails_is_not_chosen(once, fault, measured, device, choose):
    chosen, count = choose(fault, **{f"{device.type}.candidate_seconds": 15})
    assert count == measured
    if measured == 0:
        assert chosen == "library"
