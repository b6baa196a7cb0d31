"""Each way in which a program names CUDA, one function each. Prints which of them failed, and why."""

import collections
import io
import json
import sys
import traceback

import torch
import torch.distributed as dist
import torch.nn as nn

FOLDER = sys.argv[1]
HERE = torch.ones(2, device="cuda").device
checks = {}


def check(function):
    checks[function.__name__] = function
    return function


def on_device(*tensors):
    for tensor in tensors:
        assert tensor.device.type == "cuda" and tensor.is_cuda, tensor.device
        tensor.cpu()


@check
def factories():
    for name in ("empty", "zeros", "ones", "rand", "randn"):
        on_device(getattr(torch, name)(3, device="cuda"))
    on_device(torch.full((2,), 1.0, device="cuda:0"), torch.arange(3, device=torch.device("cuda")))
    on_device(torch.linspace(0, 1, 3, device="cuda"), torch.eye(2, device="cuda"), torch.hann_window(4, device="cuda"))
    on_device(torch.randint(5, (3,), device="cuda"), torch.randperm(4, device="cuda"))
    on_device(torch.tril_indices(3, 3, device="cuda"), torch.triu_indices(3, 3, device="cuda"))
    on_device(torch.empty_strided((2, 2), (2, 1), device="cuda"), torch._efficientzerotensor(3, device="cuda"))
    assert torch.full((2,), 1.0, device="cuda:1").device.index == 1
    assert torch.tensor([1, 2], device="cuda").tolist() == [1, 2]
    on_device(torch.as_tensor([1], device="cuda"), torch.asarray([1], device="cuda"))


@check
def sparse_and_nested():
    assert torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device="cuda").to_dense().tolist() == [1, 2, 0]
    on_device(torch.sparse_coo_tensor((3, 3), device="cuda"))
    on_device(torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device="cuda"))
    on_device(torch.nested.nested_tensor([torch.ones(2)], device="cuda").unbind()[0])


@check
def likes():
    x = torch.ones(3)
    on_device(torch.zeros_like(x, device="cuda"), torch.full_like(x, 2, device="cuda"), torch.rand_like(x, device="cuda"))
    on_device(x.new_zeros(3, device="cuda"), x.new_tensor([3], device="cuda"), x.new_empty(3, device="cuda"))


@check
def moves():
    x = torch.arange(3.0)
    y = x.to("cuda")
    assert y.tolist() == [0, 1, 2] and y.to("cuda") is y and y.cuda() is y and y.to(device="cuda:0") is y
    on_device(x.cuda(), x.cuda(0), x.cuda("cuda:0"), x.cuda(torch.device("cuda")), x.cuda(non_blocking=True))
    assert x.cuda(1).device == torch.device("cuda:1") and x.to("cuda:1", torch.half).dtype == torch.half
    on_device(x.to(y), x.type(torch.float64).to("cuda", copy=True), x.pin_memory("cuda").to("cuda", non_blocking=True))
    try:
        x.cuda("cpu")
    except RuntimeError as error:
        assert "must be cuda device" in str(error)
    else:
        raise AssertionError("the CPU is not CUDA")
    leaf = torch.ones(3, requires_grad=True)
    leaf.cuda().sum().backward()
    assert leaf.grad.device.type == "cpu"


@check
def modules():
    for made in (nn.Linear(2, 2).cuda(), nn.Linear(2, 2).to("cuda"), nn.Linear(2, 2, device="cuda"), nn.Linear(2, 2).cuda(0)):
        on_device(made.weight, made(torch.ones(1, 2, device="cuda")))


@check
def contexts():
    with torch.device("cuda"):
        on_device(torch.ones(2))
    torch.set_default_device("cuda")
    on_device(torch.ones(2))
    torch.set_default_device("cpu")
    with torch.inference_mode():
        on_device(torch.ones(2, device="cuda") + torch.ones(2).to("cuda"))
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1 and torch.ones(1, device="cuda").device.index == 1
    with torch.cuda.device_of(torch.ones(1, device="cuda:1")):
        assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:0")
    assert torch.cuda.current_device() == 0


@check
def names():
    x = torch.ones(2, device="cuda:1")
    assert x.device.type == "cuda" and str(x.device) == "cuda:1" and f"{x.device}" == "cuda:1"
    assert "cuda" in str(x.device) and x.device == torch.device("cuda:1") and x.device != torch.device("cuda", 0)
    handed = next(map(torch.device, ["cuda:1"]))
    assert x.device == handed and handed == x.device and handed.type == "cuda" and x.to(handed) is x
    assert x.type() == "torch.cuda.FloatTensor" and isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor) and not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    on_device(torch.cuda.LongTensor([1, 2]))
    assert not torch.ones(1).is_cuda and torch.ones(1).type(torch.int64).type() == "torch.LongTensor"
    assert isinstance(x.device, torch.device) and isinstance(torch.device("cuda"), torch.device)


@check
def devices():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.is_initialized()
    properties = torch.cuda.get_device_properties("cuda:0")
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability() == (8, 0)
    assert properties.total_memory > 0 and properties.name == torch.cuda.get_device_name(0)
    try:
        properties.warp_size
    except AttributeError as error:
        assert "warp_size" in str(error)
    else:
        raise AssertionError("nobody knows the warp size")
    assert torch.cuda.is_bf16_supported() and not torch.cuda.is_tf32_supported() and torch.cuda.get_arch_list() == []
    assert torch.get_device_module("cuda").device_count() == 2


@check
def memory():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == kept.nbytes
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated(torch.device("cuda:0")) >= kept.nbytes
    assert torch.cuda.memory.memory_reserved("cuda") >= kept.nbytes and torch.cuda.memory_cached() > 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total and "allocated_bytes.all.current" in torch.cuda.memory_stats()
    assert isinstance(torch.cuda.memory_summary(), str)
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory._dump_snapshot(f"{FOLDER}/snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)


@check
def streams_and_events():
    s = torch.cuda.Stream(device="cuda:0", priority=-1)
    assert isinstance(s, torch.cuda.Stream) and isinstance(torch.cuda.current_stream(), torch.cuda.streams.Stream)
    assert not isinstance(torch.Stream(device="cpu"), torch.cuda.Stream)
    e = torch.cuda.Event(enable_timing=True)
    assert isinstance(e, torch.cuda.Event)
    with torch.cuda.stream(s):
        assert torch.cuda.current_stream() == s != torch.cuda.default_stream()
        x = torch.ones(2, device="cuda") + 1
        e.record()
    torch.cuda.current_stream().wait_event(e)
    torch.cuda.current_stream().wait_stream(s)
    x.record_stream(torch.cuda.current_stream())
    e.synchronize()
    assert e.query() and x.tolist() == [2, 2]
    with torch.cuda.StreamContext(None), torch.Stream("cuda"):
        torch.cuda.synchronize()
    assert torch.Event("cuda").device.type == "cuda"


@check
def random_numbers():
    torch.manual_seed(5)
    first = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    assert torch.equal(torch.rand(4, device="cuda"), first)
    torch.cuda.set_rng_state(state, "cuda")
    assert torch.equal(torch.rand(4, device="cuda"), first)
    g = torch.Generator(device="cuda").manual_seed(5)
    assert isinstance(g, torch.Generator) and torch.equal(torch.rand(4, device="cuda", generator=g), first)
    assert len(torch.cuda.default_generators) == 2 and torch.cuda.default_generators[0].device.type == "cuda"
    for forked in (torch.random.fork_rng(devices=[0]), torch.random.fork_rng(device_type="cuda")):
        with forked:
            torch.cuda.seed_all()
    assert torch.cuda.initial_seed() == 5 and len(torch.cuda.get_rng_state_all()) == 2


@check
def mixed_precision():
    x = torch.ones(2, 2, device="cuda")
    for context in (torch.autocast("cuda"), torch.amp.autocast(device_type="cuda"), torch.cuda.amp.autocast()):
        with context:
            assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
            assert (x @ x).dtype == torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype() == torch.float16
        assert not torch.is_autocast_enabled()
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.autocast("cuda", enabled=False):
        assert (x @ x).dtype == torch.float32

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, value):
            return value * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return grad * 2

    class Same(torch.autograd.Function):
        @staticmethod
        @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, value):
            return value.clone()

    with torch.autocast("cuda"):
        assert Double.apply((x @ x).requires_grad_()).dtype == torch.float32
        assert Same.apply(x @ x).dtype == torch.float32
    for scaler in (torch.amp.GradScaler("cuda"), torch.amp.GradScaler(), torch.cuda.amp.GradScaler()):
        assert scaler.is_enabled()
        weight = torch.ones(2, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0, 0]


@check
def graphs():
    x = torch.ones(2, device="cuda")
    g = torch.cuda.CUDAGraph()
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(g, stream=torch.cuda.Stream()):
        assert torch.cuda.is_current_stream_capturing()
        y = x + 1
    x.fill_(4)
    g.replay()
    assert y.tolist() == [5, 5]
    g.debug_dump(f"{FOLDER}/graph.svg")
    g.reset()
    graphed = torch.cuda.make_graphed_callables(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),))
    graphed(torch.ones(1, 2, device="cuda")).sum().backward()


@check
def ranges_and_profiles():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p, torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
        torch.ones(2, device="cuda").add(1).cpu()
        torch.cuda.nvtx.range_pop()
    assert any(event.device_type == torch.autograd.DeviceType.PrivateUse1 for event in p.events())


@check
def storages():
    assert torch.UntypedStorage(4, device="cuda").device.type == "cuda"
    assert torch.ones(2).untyped_storage().cuda().device.type == "cuda"
    assert torch.ones(2).storage().cuda(0).device.type == "cuda"


def from_cuda(what):
    """A checkpoint as a machine with CUDA writes it, of tensors of the CPU."""
    taggers = torch.serialization._package_registry
    taggers.insert(0, (0, lambda storage: "cuda:1", lambda storage, location: None))
    file = io.BytesIO()
    torch.save(what, file)
    taggers.pop(0)
    return file


@check
def checkpoints():
    file = from_cuda({"a": torch.arange(3.0)})
    for location, device in ((None, "cuda:1"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), (torch.device("cuda:0"), "cuda:0"),
                             ({"cuda:1": "cuda:0"}, "cuda:0"), ("cpu", "cpu"), (lambda s, l: s, "cpu")):  # fmt: skip
        file.seek(0)
        loaded = torch.load(file, map_location=location)["a"]
        assert loaded.device == torch.device(device) and loaded.tolist() == [0, 1, 2], location
    file.seek(0)
    try:
        torch.load(io.BytesIO(file.getvalue().replace(b"cuda:1", b"cuda:7")))
    except RuntimeError as error:
        assert "tensors of cuda:7" in str(error) and "map_location" in str(error), error
    else:
        raise AssertionError("there is no eighth device")
    model = nn.Linear(2, 2).cuda()
    again = io.BytesIO()
    torch.save(collections.OrderedDict(model.state_dict()), again)
    assert b"cuda:0" in again.getvalue() and b"outrigger" not in again.getvalue()


@check
def switches():
    for name, value in (("benchmark", True), ("deterministic", True), ("enabled", True), ("allow_tf32", True)):
        setattr(torch.backends.cudnn, name, value)
    torch.backends.cudnn.deterministic = False
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_float32_matmul_precision("high")
    assert torch.backends.cuda.flash_sdp_enabled()
    with torch.backends.cudnn.flags(enabled=False), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        pass


@check
def one_process_of_nccl():
    assert dist.is_nccl_available()
    dist.init_process_group("nccl", init_method=f"file://{FOLDER}/alone", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    assert dist.get_backend() == "nccl"
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x, group=dist.new_group(backend="nccl"))
    mesh = dist.init_device_mesh("cuda", (1,))
    assert mesh.get_group() is not None and x.tolist() == [1, 1]
    dist.destroy_process_group()
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{FOLDER}/both", rank=0, world_size=1)
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(x)
    dist.destroy_process_group()


@check
def compiled():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x):
        assert torch.cuda.is_available() and x.is_cuda and x.device.type == "cuda"
        y = torch.zeros(2, device="cuda") + torch.arange(2, device=torch.device("cuda:0")) + torch.ones(2).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            z = x @ x
        return y.to("cuda") + z.sum(), z.dtype

    x = torch.ones(2, 2, device="cuda", requires_grad=True)
    y, dtype = function(x)
    y.sum().backward()
    assert y.tolist() == [9, 10] and dtype == torch.bfloat16
    on_device(x.grad)
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        on_device(torch.ones(2, device="cuda"))
    traced = make_fx(lambda value: value + torch.ones(2, device="cuda"))(x.detach())
    assert "cuda" not in traced.code.replace(HERE.type, ""), traced.code


@check
def scripted():
    @torch.jit.script
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(2, device="cuda")

    on_device(function(torch.ones(2, device="cuda")))
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), file)
    for location in ("cuda", torch.device("cuda:0")):
        file.seek(0)
        on_device(torch.jit.load(file, map_location=location).weight)


@check
def torch_is_told_the_truth():
    from torch._dynamo import device_interface
    from torch.utils._triton import has_triton

    assert not device_interface.get_interface_for_device("cuda").is_available()
    assert has_triton(), "our device runs kernels of Triton"


@check
def refusals():
    for name in ("cudart", "current_blas_handle", "GreenContext", "list_gpu_processes"):
        try:
            getattr(torch.cuda, name)()
        except NotImplementedError as error:
            assert f"torch.cuda.{name} on " in str(error)
        else:
            raise AssertionError(f"{name} is not refused")
    from torch.utils import cpp_extension

    for build in (
        lambda: cpp_extension.CUDAExtension("fused_norm", ["norm.cu"]),
        lambda: cpp_extension.load("fused_norm", ["norm.cpp", "norm.cu"]),
        lambda: cpp_extension.load_inline("fused_norm", "", cuda_sources="__global__ void f() {}"),
    ):
        try:
            build()
        except RuntimeError as error:
            assert "fused_norm is an extension for CUDA" in str(error), error
        else:
            raise AssertionError("an extension for CUDA is built")
    sys.path.append(FOLDER)
    try:
        import needs_cudart  # noqa: F401
    except ImportError as error:
        assert "needs_cudart is an extension for CUDA" in str(error) and "libcudart.so.99" in str(error)
    else:
        raise AssertionError("an extension for CUDA is imported")


@check
def operators_without_a_door():
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
        if not any("Device" in str(argument.type) for argument in schema.arguments):
            continue
        kinds = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
        is_operator = name.startswith("aten::") and torch._C._dispatch_has_kernel(name)
        if is_operator and not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, kind) for kind in kinds):
            found.add(name.removeprefix("aten::"))
    doors = {"empty.memory_format", "empty_strided", "_efficientzerotensor", "tril_indices", "triu_indices",
             "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"}  # fmt: skip
    # Of CUDA's libraries, of files, of quantized tensors, which are made on the CPU, and a check of torch's own.
    others = {"_resize_output_", "_cudnn_init_dropout_state", "from_file", "_make_dep_token", "_empty_affine_quantized",
              "_empty_per_channel_affine_quantized", "empty_quantized"}  # fmt: skip
    assert doors <= found and found <= doors | others, found ^ (doors | others)


if __name__ == "__main__":
    failed = {}
    for name, function in checks.items():
        try:
            function()
        except Exception:
            failed[name] = traceback.format_exc()
    print(json.dumps({"checked": len(checks), "failed": failed}))
