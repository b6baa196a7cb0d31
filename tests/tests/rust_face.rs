//! The Rust interface as hosts of version 0.1 use it: every function with its whole type, and every
//! value that they name. A change or a removal does not compile any more; additions do not matter. A
//! change of this file breaks Rust hosts, and needs a new minor version while the major version is 0.

#![expect(
    clippy::type_complexity,
    reason = "the types of functions are what is tested"
)]

use outrigger::runtime::ops::{Call, OperatorId, Scalar, Tensor};
use outrigger::runtime::{self as face};
use outrigger::runtime::{
    CaptureInfo, CaptureMode, Code, ConditionalKind, CopyKind, DType, Device, DeviceProperties,
    DumpFormat, Error, Event, ExecFlags, ExecInfo, ExecMode, FallbackMode, Found, Generator, Graph,
    GraphExec, GraphInfo, HostMemory, LoadReport, Observation, ObservationKinds, PointerInfo, Pool,
    PoolStats, Pressure, Ref, Result, Runtime, Snapshot, Stats, Stream,
};

#[test]
fn functions_have_the_types_of_version_0_1() {
    let _: fn() -> Result<&'static Runtime> = face::runtime;
    let _: fn(&'static Runtime, &str) -> Result<u32> = Runtime::load;
    let _: fn(&'static Runtime) -> LoadReport = Runtime::load_report;
    let _: fn(&'static Runtime) -> u32 = Runtime::device_count;
    let _: fn(&'static Runtime, u32) -> Result<&'static Device> = Runtime::device;
    let _: fn(&'static Runtime, u64) -> Result<&'static Device> = Runtime::find;
    let _: fn(&'static Runtime, u32) -> Result<&'static Found> = Runtime::found;
    let _: fn(&Found) -> Result<DeviceProperties> = Found::properties;
    let _: fn(&Found) -> &Ref<Generator> = Found::default_generator;

    let _: fn(&Device) -> u32 = Device::index;
    let _: fn(&Device) -> &Ref<Stream> = Device::default_stream;
    let _: fn(&'static Device, i32) -> Result<Ref<Stream>> = Device::pool_stream;
    let _: fn(&Device) -> Result<()> = Device::synchronize;
    let _: fn(&Device, u64, u64) -> Result<u64> = Device::alloc;
    let _: fn(&Device, &Pool, u64, u64) -> Result<u64> = Device::alloc_from;
    let _: fn(&Device) -> u64 = Device::empty_cache;
    let _: fn(&Device, u64) -> u64 = Device::trim_cache;
    let _: fn(&Device) -> Result<(u64, u64)> = Device::memory_info;
    let _: fn(&Device) -> Stats = Device::memory_stats;
    let _: fn(&Device) -> String = Device::memory_stats_json;
    let _: fn(&Device) -> Snapshot = Device::memory_snapshot;
    let _: fn(&Device) = Device::reset_peak_memory;
    let _: fn(&Device, u64) -> Result<()> = Device::free;
    let _: fn(&Device, u64, u64) -> Result<()> = Device::record_stream;
    let _: fn(&Device, u64) -> Result<PointerInfo> = Device::pointer_info;
    let _: fn(&Device, u64) -> Result<String> = Device::export_memory;

    let _: fn() -> u32 = face::current_device;
    let _: fn(u32) -> Result<()> = face::set_current_device;
    let _: fn(u32) -> Result<u64> = face::current_stream;
    let _: fn(u64) -> Result<()> = face::set_current_stream;
    let _: fn(u32, i32) -> Result<Ref<Stream>> = face::create_stream;
    let _: fn(u64) -> Result<()> = face::destroy_stream;
    let _: fn(u64) -> Result<Ref<Stream>> = face::stream;
    let _: fn(&Stream) -> u64 = |stream| stream.id();
    let _: fn(&Stream) -> &'static Device = Stream::device;
    let _: fn(&Stream) -> Result<bool> = Stream::query;
    let _: fn(&Stream) -> Result<()> = |stream| stream.synchronize();
    let _: fn(&Stream) -> Result<()> = Stream::flush;
    let _: fn(&Stream, &Event) -> Result<()> = Stream::wait_event;
    let _: unsafe fn(&Stream, u64, u64, u64, CopyKind) -> Result<()> = Stream::copy;
    let _: unsafe fn(&Stream, u64, u64, &[u8]) -> Result<()> = Stream::fill;
    let _: unsafe fn(&Stream, (u32, u64), (u32, u64), u64) -> Result<()> = Stream::copy_peer;
    let _: unsafe fn(&Stream, OperatorId, &Call<'_>) -> Result<()> = Stream::call;
    let _: fn(&Stream, CaptureMode, Option<&Pool>) -> Result<()> = Stream::capture_begin;
    let _: fn(&Stream) -> Result<Ref<Graph>> = Stream::capture_end;
    let _: fn(&Stream, &str) -> Result<()> = |stream, reason| stream.capture_abort(reason);
    let _: fn(&Stream) -> Option<CaptureInfo> = |stream| stream.capture_info();
    let _: fn(&Stream) -> bool = |stream| stream.is_capturing();

    let _: fn(u32, bool) -> Result<&'static Event> = face::create_event;
    let _: fn(u64) -> Result<()> = face::destroy_event;
    let _: fn(&Event, &Event) -> Result<f64> = face::elapsed_ms;
    let _: fn(&Event, &Stream) -> Result<()> = Event::record;
    let _: fn(&Event) -> Result<bool> = Event::query;
    let _: fn(&Event) -> Result<()> = Event::synchronize;

    let _: fn(u32) -> Result<Ref<Pool>> = face::create_pool;
    let _: fn(u64) -> Result<()> = face::destroy_pool;
    let _: fn(u64, u64) -> Result<()> = face::begin_pool_use;
    let _: fn(u64) -> Result<()> = face::end_pool_use;
    let _: fn(&Pool) -> PoolStats = Pool::stats;
    let _: fn(&str) = face::push_label;
    let _: fn() -> Result<&'static HostMemory> = face::host_memory;

    let _: fn(u32, Option<&Pool>) -> Result<Ref<Graph>> = face::create_graph;
    let _: fn(u64) -> Result<()> = face::destroy_graph;
    let _: fn(&Graph) -> GraphInfo = Graph::info;
    let _: fn(&Graph, &str, DumpFormat) -> String = Graph::dump;
    let _: fn(&Graph, &str, u64, u64) -> Result<()> = Graph::name_buffer;
    let _: fn(&Graph, &str, u32, u32) -> Result<()> = Graph::name_scalar;
    let _: fn(&Graph, &[u32], OperatorId, &Call<'_>) -> Result<u32> = Graph::add_operator;
    let _: fn(&Graph, &[u32], u64, u64, &[u8]) -> Result<u32> = Graph::add_fill;
    let _: fn(&Graph, &[u32], u64) -> Result<(u32, u64)> = Graph::add_alloc;
    let _: fn(&Graph, &[u32], u64) -> Result<u32> = Graph::add_free;
    let _: fn(&Graph, ExecFlags) -> Result<GraphExec> = Graph::instantiate;
    let _: fn(&Graph, ExecFlags) -> Result<Ref<GraphExec>> = face::instantiate;
    let _: fn(u64) -> Result<()> = face::destroy_graph_exec;
    let _: fn(&GraphExec, &Stream) -> Result<()> = |exec, stream| exec.replay(stream);
    let _: fn(&GraphExec, &str) -> Result<u32> = GraphExec::slot;
    let _: fn(&GraphExec, u32, u64) -> Result<()> = GraphExec::bind;
    let _: fn(&GraphExec, u32, Scalar) -> Result<()> = GraphExec::bind_scalar;
    let _: fn(&GraphExec) -> ExecInfo = GraphExec::info;

    let _: fn(u32) -> Result<Ref<Generator>> = face::create_generator;
    let _: fn(u64) -> Result<()> = face::remove_observer;
    let _: fn(&str) -> Result<bool> = face::fallback_begin;
    let _: fn(&str, u64, u64) = face::fallback_end;
    let _: fn(FallbackMode) = face::set_fallback_mode;
    let _: fn() -> FallbackMode = face::fallback_mode;
    let _: fn(&std::ffi::CStr) -> Option<OperatorId> = OperatorId::find;

    let _: fn(&Error) -> Code = Error::code;
    let _: fn(&Error) -> &str = Error::message;
    let _: fn(&Error) -> Option<&str> = Error::operator;
    let _: fn(&Error) -> Option<u64> = Error::stream;
    let _: fn(&Error) -> Option<u64> = Error::submission;
}

#[test]
fn values_and_members_are_those_of_version_0_1() {
    let _ = [
        CopyKind::HostToDevice,
        CopyKind::DeviceToHost,
        CopyKind::DeviceToDevice,
        CopyKind::HostToHost,
    ];
    let _ = [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ];
    let _ = [
        ConditionalKind::If,
        ConditionalKind::While,
        ConditionalKind::Switch,
    ];
    let _ = [DumpFormat::Dot, DumpFormat::Json, DumpFormat::Svg];
    let _ = [ExecMode::Launch, ExecMode::Submit, ExecMode::Native];
    let _ = [
        FallbackMode::Silent,
        FallbackMode::Warn,
        FallbackMode::Error,
    ];
    let _ = ExecFlags {
        serial: true,
        submit: false,
        native: false,
    };
    let _ = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::BOOL,
    ];
    let _ = [
        Code::INVALID_ARGUMENT,
        Code::INVALID_HANDLE,
        Code::INVALID_DEVICE,
        Code::OUT_OF_MEMORY,
        Code::UNSUPPORTED,
        Code::NOT_FOUND,
        Code::EXECUTION,
        Code::CAPTURE,
        Code::FORKED,
    ];
    let sizes = [4i64];
    let tensor = Tensor::new(0, DType::F32, &sizes, &[1]);
    let _ = Call {
        inputs: &[tensor],
        outputs: &[tensor],
        scalars: &[Scalar::F64(1.0), Scalar::I64(1)],
        ..Call::default()
    };
    let _: fn(&Observation<'_>) -> (ObservationKinds, u32, u64, u64) =
        |seen| (seen.kind, seen.device, seen.address, seen.size);
    let _: fn(&Pressure) -> (u32, u64) = |pressure| (pressure.device, pressure.needed);
    let _: fn(&Stats) -> (u64, u64) = |stats| {
        (
            stats.all.allocated_bytes.current,
            stats.all.reserved_bytes.peak,
        )
    };
    let _: fn(&PointerInfo) -> u64 = |info| info.base;
}
