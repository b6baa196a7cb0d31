"""`@triton.autotune`: how configurations are measured, what becomes of those that fail, and that choices are kept.

Where kernels are functions of the host, a configuration is measured in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import threading
import warnings

import pytest
import torch
from support import run_python, same, tested_triton

triton = tested_triton()

import triton_kernels as kernels  # noqa: E402
from torch_outrigger.triton import autotune  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles")

N = 100


@pytest.fixture
def apart(device):
    """Whether a configuration has a process of its own."""
    from torch_outrigger.inductor.program import language

    return language(device.index) is None


@pytest.fixture
def is_apart(apart):
    """For what a kernel of another kind cannot do: to fail and harm nobody."""
    if not apart:
        pytest.skip("kernels of this device are measured in the process")


@pytest.fixture
def short(monkeypatch):
    """A configuration that hangs costs a second or two."""
    monkeypatch.setattr(autotune, "_LIMIT", 2)
    monkeypatch.setattr(autotune, "_LONGEST_LIMIT", 2.5)


@pytest.fixture
def fresh_store(monkeypatch):
    """Nothing is known of any choice, and none is kept."""
    from torch_outrigger import _C

    monkeypatch.setattr(_C, "store_get", lambda key, stock=_C.store_get: None if b"triton" in key else stock(key))
    monkeypatch.setattr(_C, "store_put", lambda key, value, stock=_C.store_put: None if b"triton" in key else stock(key, value))


def zeros(device):
    return torch.zeros(N, device=device), torch.zeros(1, dtype=torch.int32, device=device)


def blocks(*sizes, **options):
    return kernels.tuned([triton.Config({"BLOCK": size}) for size in sizes], **options)


def called(kernel, x, count, **options):
    kernel[lambda chosen: (triton.cdiv(N, chosen["BLOCK"]),)](x, count, N, **options)


def failing(*modes, **options):
    """A kernel with a configuration for each mode, and one that works if "" is among them."""
    configs = [triton.Config({"MODE": one, "WORK": 1, "BLOCK": 128}) for one in modes]
    return triton.autotune(configs=configs, key=["n"], **options)(kernels.may_fail)


# ---- choices ----


def test_a_choice_is_kept(device, apart, capsys, monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.autotuning, "print", True)
    configs = [triton.Config({"BLOCK": size}) for size in (64, 128)]
    x, count = zeros(device)

    def run(kernel):
        called(kernel, x, count)
        return count.item()

    first = kernels.tuned(configs)
    launches = run(first)
    # Nothing is written by what has a process of its own.
    assert (launches == 1) == apart
    said = capsys.readouterr().out
    for one in configs:
        assert f"Autotuning kernel count_launches with config {one}\n" in said
    assert "with key as (100, 'torch.float32', 'torch.int32')" in said
    assert f"best config selected: {first.best_config};" in said
    assert first.bench_time > 0.01
    # Another tuner finds it in the store.
    second = kernels.tuned(configs)
    assert run(second) == launches + 1
    assert str(second.best_config) == str(first.best_config)
    assert "Autotuning" not in capsys.readouterr().out
    # The kept choice is for these configurations alone.
    called(kernels.tuned([*configs[:1], triton.Config({"BLOCK": 256})]), x, count)
    assert "Autotuning" in capsys.readouterr().out


def test_another_process_finds_the_choice(device, is_apart):
    code = f"""
        import torch, triton, warnings
        import triton_kernels as kernels
        warnings.simplefilter("error", RuntimeWarning)
        x, count = torch.zeros({N}, device="{device.type}"), torch.zeros(1, dtype=torch.int32, device="{device.type}")
        configs = [triton.Config({{"MODE": one, "WORK": 1, "BLOCK": 128}}) for one in ("crash", "")]
        kernel = triton.autotune(configs=configs, key=["n"])(kernels.may_fail)
        kernel[(1,)](x, count, {N})
        print(repr(kernel.best_config.kwargs["MODE"]), x.sum().item())
    """
    x, count = zeros(device)
    with pytest.warns(RuntimeWarning, match="is left out"):
        failing("crash", "")[(1,)](x, count, N)
    # A second measurement would warn again.
    done = run_python(code, TRITON_PRINT_AUTOTUNING="1")
    assert (done.returncode, done.stdout.strip()) == (0, f"'' {N}.0"), done.stderr


# ---- what fails ----


@pytest.mark.parametrize(
    ("mode", "said"),
    [("crash", "it crashed: Segmentation fault"), ("hang", "it took longer than 2 s"), ("assert", "a check of the kernel failed")],
)
def test_a_configuration_that_fails_costs_itself(device, is_apart, short, fresh_store, mode, said):
    x, count = zeros(device)
    kernel = failing(mode, "", mode + " not")
    with pytest.warns(RuntimeWarning) as given:
        kernel[(1,)](x, count, N, debug=mode == "assert")
    (warning,) = [one for one in given if "is left out" in str(one.message)]
    assert f"a configuration of may_fail is left out: {kernel.configs[0]}: {said}" in str(warning.message)
    assert kernel.best_config in kernel.configs[1:]
    same(x, torch.ones(N))
    assert count.item() == 1
    assert kernel.configs_timings[kernel.configs[0]] == [float("inf")] * 3


def test_what_a_configuration_writes_is_its_own(device, is_apart, fresh_store):
    whole, count = torch.zeros(1024, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.warns(RuntimeWarning, match="is left out"):
        failing("write", "")[(1,)](whole, count, N, debug=True)
    assert whole[:N].eq(1).all() and not whole[N:].any()


def test_where_all_fail_an_error_says_why(device, is_apart, short, monkeypatch, fresh_store):
    from triton.runtime.errors import AutotunerError

    monkeypatch.setattr(autotune, "_LIMIT", 0.1)
    x, count = zeros(device)
    why = "no configuration of may_fail works: MODE: crash.*Segmentation.*MODE: hang.*longer than 2.5 s"
    with pytest.raises(AutotunerError, match=why):
        failing("crash", "hang")[(1,)](x, count, N)
    same(x, torch.zeros(N))
    # The call is wrong, not a configuration.
    with pytest.raises(ValueError, match="cpu tensor"):
        failing("", "no")[(1,)](torch.zeros(N), count, N)


def test_a_long_configuration_gets_more_time_where_none_is_short(device, is_apart, monkeypatch, fresh_store):
    monkeypatch.setattr(autotune, "_LIMIT", 1e-3)
    x, count = zeros(device)
    called(blocks(64, 128), x, count)
    same(x, torch.ones(N))


def test_a_configuration_without_room_is_left_out(device, monkeypatch):
    from triton.runtime.errors import OutOfResources

    backend = triton.compiler.compiler.make_backend(triton.runtime.driver.active.get_current_target())
    stock = type(backend).make_text

    def small(module, metadata, options):
        if "512" in str(module):
            raise OutOfResources(512, 256, "memory of a program's tensors")
        return stock(module, metadata, options)

    monkeypatch.setattr(type(backend), "make_text", staticmethod(small))
    x, count = zeros(device)
    kernel = kernels.tuned([triton.Config({"BLOCK": size}, num_warps=8) for size in (512, 128)])
    with warnings.catch_warnings():
        # Triton itself leaves it out without a word.
        warnings.simplefilter("error", RuntimeWarning)
        called(kernel, x, count)
    assert kernel.best_config.kwargs == {"BLOCK": 128}


# ---- the pipeline ----


def test_one_is_measured_while_the_next_ones_compile(device, is_apart, monkeypatch, fresh_store):
    """A processor for each, and not more; and those that are near to the best once more behind all compilers."""
    compiling, measured = [], []
    tuning = autotune._Tuning
    load, apart = tuning._compile, tuning._apart

    class Turns(autotune._Turns):
        def take(self, first=False):
            super().take(first)
            if not first:
                compiling.append(1)

        def give(self):
            if threading.current_thread() is not threading.main_thread():
                compiling.pop()
            super().give()

    def noting(self, launch, one, limit, alone):
        measured.append((one.config.kwargs["BLOCK"], alone, len(compiling), self._tuner.left))
        return apart(self, launch, one, limit, alone)

    def counted(self, launch):
        load(self, launch)
        self._tuner.left -= 1

    monkeypatch.setattr(autotune, "_Turns", Turns)
    monkeypatch.setattr(tuning, "_apart", noting)
    monkeypatch.setattr(tuning, "_compile", counted)
    monkeypatch.setattr(autotune, "_NEAR", 1e9)
    monkeypatch.setattr(autotune, "_NEAR_ROUGHLY", 1e9)
    sizes = (1 << 12, 1 << 13, 1 << 14, 1 << 15)
    kernel, (x, count) = blocks(*sizes), zeros(device)
    kernel.left = len(sizes)
    called(kernel, x, count)
    first, again = measured[: len(sizes)], measured[len(sizes) :]
    assert sorted(size for size, *_ in first) == list(sizes)
    assert all(alone and beside < len(os.sched_getaffinity(0)) for _, alone, beside, _ in first)
    assert first[0][3] > 0, "the first one was measured when all were compiled"
    assert [one for one, *_ in again] == [one for one, *_ in again[: autotune._FINALISTS]] * autotune._ROUNDS
    assert all((alone, beside, left) == (False, 0, 0) for _, alone, beside, left in again)


def test_a_trial_shares_work_among_threads_of_its_own(device, is_apart, monkeypatch, fresh_store, recwarn):
    monkeypatch.setattr(autotune, "_NEAR_ROUGHLY", 1e9)
    monkeypatch.setattr(autotune, "_LONGEST_LIMIT", 2)
    x, count = zeros(device)
    # The stream's own threads share it first.
    kernels.count_launches[(50,)](x, count, N, BLOCK=2)
    torch.accelerator.synchronize()
    kernel = blocks(2, 4)
    called(kernel, x, count)
    assert not [str(one.message) for one in recwarn if "is left out" in str(one.message)]


def test_nothing_is_compiled_while_a_configuration_is_measured_in_the_process(device, apart, monkeypatch):
    from torch_outrigger.inductor import program

    if apart or program.group_size(device.index) > 1:
        pytest.skip("compilers have other processors than what is measured")
    driver, happened = triton.runtime.driver.active, []
    begin, measure = program.Program.begin, driver.get_benchmarker()

    def noting_begin(self, *given):
        happened.append("compile")
        return begin(self, *given)

    def noting_measure(call, **how):
        happened.append("measure")
        return measure(call, **how)

    monkeypatch.setattr(program.Program, "begin", noting_begin)
    monkeypatch.setattr(type(driver), "get_benchmarker", lambda self: noting_measure)
    called(blocks(1024, 2048, 4096), *zeros(device))
    assert happened[:6] == ["compile"] * 3 + ["measure"] * 3 and "compile" not in happened[6:]


def test_the_choice_is_that_of_a_quiet_machine(device, is_apart, fresh_store):
    """Of configurations that are far from each other, whatever runs beside them."""
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        configs = [triton.Config({"MODE": "", "WORK": work, "BLOCK": 128}) for work in (30000, 1, 3000, 10000)]
        kernel = triton.autotune(configs=configs, key=["n"])(kernels.may_fail)
        kernel[(1,)](*zeros(device), N)
    finally:
        busy.kill()
        busy.wait()
    assert kernel.best_config is configs[1]
    assert sorted(configs, key=kernel.configs_timings.get) == [configs[at] for at in (1, 2, 3, 0)]


# ---- what Triton's own tuner has ----


def test_a_value_is_restored_and_configurations_are_left_out(device):
    x, count = zeros(device)
    seen = []

    def early(configs, named, **_):
        seen.extend(configs)
        return [one for one in configs if one.kwargs["BLOCK"] < 512]

    kernel = blocks(128, 256, 512, restore_value=["x"], reset_to_zero=["count"], prune_configs_by={"early_config_prune": early})
    called(kernel, x, count)
    same(x, torch.ones(N))
    assert count.item() == 1
    assert len(seen) == 3 and len(kernel.configs_timings) == 2


@pytest.mark.parametrize("how", ["reset", "restored", "hook", "pre_hook"])
def test_each_launch_finds_what_the_first_one_found(device, how, fresh_store, recwarn):
    options, hook = {}, None
    if how == "reset":
        options = {"reset_to_zero": ["count"]}
    elif how == "restored":
        options = {"restore_value": ["count"]}
    elif how == "hook":
        options = {"pre_hook": lambda named, reset_only=False: named["count"].zero_()}
    else:
        hook = lambda named: named["count"].zero_()  # noqa: E731
    configs = [triton.Config({"BLOCK": size}, pre_hook=hook) for size in (128, 256)]
    kernel = triton.autotune(configs=configs, key=["n"], **options)(kernels.counted_once)
    x, count = zeros(device)
    kernel[(1,)](x, count, N)
    torch.accelerator.synchronize()
    assert count.item() == 1
    assert not [str(one.message) for one in recwarn if "is left out" in str(one.message)]


def test_hooks_are_called_as_triton_calls_them(device, apart, fresh_store):
    happened = []
    configs = [triton.Config({"BLOCK": size}, pre_hook=lambda named: happened.append(("config", named["BLOCK"]))) for size in (64, 128)]
    kernel = kernels.tuned(
        configs,
        pre_hook=lambda named, reset_only=False: happened.append(("pre", reset_only)),
        post_hook=lambda named, exception: happened.append(("post", exception)),
    )
    called(kernel, *zeros(device))
    tried, chosen = happened[:-2], happened[-2:]
    assert chosen == [("pre", True), ("config", kernel.best_config.kwargs["BLOCK"])]
    assert [name for name, _ in tried] == ["config", "pre", "post"] * (len(tried) // 3)
    assert all(what in (False, None) for name, what in tried if name != "config")
    assert {what for name, what in tried if name == "config"} == {64, 128}


def test_a_model_of_the_time_chooses_what_is_measured(device, fresh_store):
    def model(x, count, n, BLOCK, **_):
        return BLOCK

    kernel = blocks(512, 64, 256, 128, prune_configs_by={"perf_model": model, "top_k": 2})
    called(kernel, *zeros(device))
    assert sorted(one.kwargs["BLOCK"] for one in kernel.configs_timings) == [64, 128]


def test_a_program_measures_by_itself(device, fresh_store):
    asked = []

    def bench(call, quantiles):
        call()
        asked.append(quantiles)
        return [1 + len(asked) / 100, 0, 0]

    x, count = zeros(device)
    kernel = blocks(64, 128, 256, do_bench=bench)
    called(kernel, x, count)
    assert asked == [(0.5, 0.2, 0.8)] * 3
    assert kernel.best_config is kernel.configs[0]
    # In the process, as it is Triton's way.
    assert count.item() == 3 + 1


def test_heuristics_are_asked(device):
    out = torch.empty(64, dtype=torch.int32, device=device)
    for n in (64, 60):
        kernels.told[(1,)](out, n, BLOCK=64)
        same(out[:n], torch.full((n,), int(n == 64), dtype=torch.int32))


def test_heuristics_of_a_configuration_are_asked(device, fresh_store):
    kernel = triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (64, 128)], key=["n"])(kernels.told)
    out = torch.empty(64, dtype=torch.int32, device=device)
    kernel[(1,)](out, 64)
    same(out, torch.full((64,), int(kernel.best_config.kwargs["BLOCK"] == 64), dtype=torch.int32))


def test_the_interpreter_goes_on(device, once):
    code = (
        "import torch, triton\n"
        "import triton_kernels as kernels\n"
        "x, out = torch.arange(100.0), torch.empty(100)\n"
        "kernels.tuned_add[lambda chosen: (triton.cdiv(100, chosen['BLOCK']),)](x, x, out, 100)\n"
        "print(torch.equal(out, 2 * x))\n"
    )
    done = run_python(code, TRITON_INTERPRET="1")
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
