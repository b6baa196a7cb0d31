//! The C++ bridge is for C++ that shares a program with Rust through cxx, which Cargo builds together; C++ that is
//! built against an installed library includes `outrigger/outrigger.hpp`.
//!
//! Devices, streams, events, buffers, pools, operators and graphs are C++ classes that own what they stand for. A
//! failure is a `rust::Error` with the text of the runtime. `tests/cpp/scenarios.h` holds both to the same behaviour.

#![allow(
    unreachable_pub,
    reason = "cxx makes the structs that both sides share public"
)]

use std::ffi::CString;
use std::pin::Pin;

use outrigger_hooks as hooks;
use outrigger_hooks::ops;

#[cxx::bridge(namespace = "outrigger")]
mod ffi {
    /// Element types, by the numbers of `base.h`.
    #[repr(u32)]
    enum DType {
        Invalid = 0,
        Bool = 1,
        U8 = 2,
        I8 = 3,
        I16 = 4,
        I32 = 5,
        I64 = 6,
        U16 = 7,
        U32 = 8,
        U64 = 9,
        F16 = 10,
        BF16 = 11,
        F32 = 12,
        F64 = 13,
        C64 = 14,
        C128 = 15,
        F8E4M3 = 16,
        F8E5M2 = 17,
        F8E8M0 = 18,
        F4E2M1x2 = 19,
        I4x2 = 20,
        U4x2 = 21,
        F8E4M3FNUZ = 22,
        F8E5M2FNUZ = 23,
    }

    /// A view of device memory. Strides count elements.
    struct Tensor {
        address: u64,
        dtype: DType,
        sizes: Vec<i64>,
        strides: Vec<i64>,
    }

    /// Bytes of a device's memory.
    struct MemoryUse {
        allocated: u64,
        reserved: u64,
        peak_allocated: u64,
    }

    /// The format in which a graph is written.
    enum GraphFormat {
        Dot,
        Json,
        Svg,
    }

    extern "Rust" {
        type Stream;
        type Event;
        type Buffer;
        type Pool;
        type PoolUse;
        type Label;
        type Capture;
        type Graph;
        type GraphExec;

        /// Loads one more driver; returns how many devices it brought.
        fn load_driver(spec: &str) -> Result<u32>;
        fn device_count() -> Result<u32>;
        fn device_name(device: u32) -> Result<String>;
        fn memory_use(device: u32) -> Result<MemoryUse>;

        fn default_stream(device: u32) -> Result<Box<Stream>>;
        fn create_stream(device: u32, priority: i32) -> Result<Box<Stream>>;
        fn id(self: &Stream) -> u64;
        fn query(self: &Stream) -> Result<bool>;
        fn synchronize(self: &Stream) -> Result<()>;
        fn wait(self: &Stream, event: &Event) -> Result<()>;
        /// Runs an operator (docs/operators.md) in stream order.
        ///
        /// # Safety
        /// The operands lie in live memory of the stream's device.
        unsafe fn call(
            self: &Stream,
            operator_name: &str,
            inputs: &[Tensor],
            outputs: &[Tensor],
            scalars: &[f64],
        ) -> Result<()>;

        fn create_event(device: u32, timing: bool) -> Result<Box<Event>>;
        fn record(self: &Event, stream: &Stream) -> Result<()>;
        fn query(self: &Event) -> Result<bool>;
        fn synchronize(self: &Event) -> Result<()>;
        fn milliseconds_since(self: &Event, start: &Event) -> Result<f64>;

        /// Device memory, in the order of a stream.
        fn allocate(device: u32, size: u64, stream: &Stream) -> Result<Box<Buffer>>;
        fn address(self: &Buffer) -> u64;
        fn size(self: &Buffer) -> u64;
        /// Copies bytes to the start of the buffer, in stream order, and waits.
        fn upload(self: Pin<&mut Buffer>, bytes: &[u8], stream: &Stream) -> Result<()>;
        /// Copies bytes from the start of the buffer, in stream order, and waits.
        fn download(self: &Buffer, bytes: &mut [u8], stream: &Stream) -> Result<()>;
        /// Fills the buffer with one byte, in stream order.
        fn fill(self: Pin<&mut Buffer>, byte: u8, stream: &Stream) -> Result<()>;

        /// A pool: memory of a device that serves only those who name it. It is given back when the
        /// object and all buffers from it are gone.
        fn create_pool(device: u32) -> Result<Box<Pool>>;
        fn allocate(self: &Pool, size: u64, stream: &Stream) -> Result<Box<Buffer>>;
        /// Bytes that the pool holds and bytes in use.
        fn memory_use(self: &Pool) -> Result<MemoryUse>;
        /// Until the object is destroyed, on this thread, what the thread allocates on the pool's device
        /// comes from the pool. Uses nest.
        fn use_on_this_thread(self: &Pool) -> Result<Box<PoolUse>>;
        /// Moves what is in use to the host and gives the memory back to the device, until `wake`. Gives
        /// the bytes that the device has got back.
        fn sleep(self: &Pool) -> Result<u64>;
        /// Brings memory and contents back to their addresses.
        fn wake(self: &Pool) -> Result<()>;

        /// Until the object is destroyed, on this thread, what the thread allocates has this label, in
        /// snapshots and in the text of errors. Labels nest.
        fn label_on_this_thread(name: &str) -> Result<Box<Label>>;
        /// Gives cached memory that is not in use back to the driver; returns how many bytes.
        fn empty_cache(device: u32) -> Result<u64>;
        /// Limits the bytes that the cache may take from the device; the largest number lifts the limit.
        fn set_memory_limit(device: u32, bytes: u64) -> Result<()>;
        /// Statistics as JSON, under the names of PyTorch's memory_stats.
        fn memory_stats(device: u32) -> Result<String>;
        /// Segments, blocks and kept events as JSON, under the names of PyTorch's memory snapshots.
        fn memory_snapshot(device: u32) -> Result<String>;
        /// Keeps the last events of the device's memory, for its snapshots; 0 keeps none.
        fn record_memory_history(device: u32, entries: u64) -> Result<()>;
        /// Writes what is allocated and freed from now on to a file, for `outrigger replay` and
        /// `outrigger memory`.
        fn start_memory_trace(device: u32, path: &str) -> Result<()>;
        fn stop_memory_trace(device: u32) -> Result<()>;

        /// Records the work of a stream, and of those that wait for its events, instead of running it.
        /// A capture that is destroyed before `end_capture` is given up.
        fn begin_capture(stream: &Stream) -> Result<Box<Capture>>;
        /// The graph of what was recorded; fails with the first failure of a call in the capture.
        fn end_capture(capture: Box<Capture>) -> Result<Box<Graph>>;

        /// Replays may put other memory in place of this buffer.
        fn name_buffer(self: &Graph, name: &str, buffer: &Buffer) -> Result<()>;
        /// Replays may put another number in place of this scalar of an operator's node.
        fn name_scalar(self: &Graph, name: &str, node: u32, index: u32) -> Result<()>;
        fn node_count(self: &Graph) -> Result<u32>;
        fn dump(self: &Graph, format: GraphFormat) -> Result<String>;
        fn instantiate(self: &Graph) -> Result<Box<GraphExec>>;

        /// Replays in stream order and returns at once.
        fn replay(self: &GraphExec, stream: &Stream) -> Result<()>;
        /// Uses this buffer in place of the named one from the next replay on.
        fn bind(self: &GraphExec, name: &str, buffer: &Buffer) -> Result<()>;
        /// Uses this number in place of the named one from the next replay on.
        fn bind_scalar(self: &GraphExec, name: &str, value: f64) -> Result<()>;
        /// Takes over another graph of the same shape.
        fn update(self: &GraphExec, graph: &Graph) -> Result<()>;
        /// Compares a replay with running the nodes one after the other, and waits.
        fn check(self: &GraphExec, stream: &Stream) -> Result<()>;
        /// The time of each node as JSON, from one replay that is waited for.
        fn profile(self: &GraphExec, stream: &Stream) -> Result<String>;
    }
}

use crate::bridge_graph::{Capture, Graph, GraphExec, begin_capture, end_capture};
use crate::bridge_memory::{
    Label, Pool, PoolUse, create_pool, empty_cache, label_on_this_thread, memory_snapshot,
    memory_stats, record_memory_history, set_memory_limit, start_memory_trace, stop_memory_trace,
};
use ffi::{DType, Tensor};

// The bridge's enumerators are literals: its macro takes no constants.
const _: () = {
    assert!(DType::Invalid.repr == ops::DType::INVALID.0);
    let ours = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::C64,
        DType::C128,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F8E8M0,
        DType::F4E2M1x2,
        DType::I4x2,
        DType::U4x2,
        DType::F8E4M3FNUZ,
        DType::F8E5M2FNUZ,
    ];
    let theirs = [
        ops::DType::BOOL,
        ops::DType::U8,
        ops::DType::I8,
        ops::DType::I16,
        ops::DType::I32,
        ops::DType::I64,
        ops::DType::U16,
        ops::DType::U32,
        ops::DType::U64,
        ops::DType::F16,
        ops::DType::BF16,
        ops::DType::F32,
        ops::DType::F64,
        ops::DType::C64,
        ops::DType::C128,
        ops::DType::F8E4M3,
        ops::DType::F8E5M2,
        ops::DType::F8E8M0,
        ops::DType::F4E2M1X2,
        ops::DType::I4X2,
        ops::DType::U4X2,
        ops::DType::F8E4M3FNUZ,
        ops::DType::F8E5M2FNUZ,
    ];
    assert!(ours.len() == ops::DType::ALL.len());
    let mut at = 0;
    while at < ours.len() {
        assert!(ours[at].repr == theirs[at].0);
        at += 1;
    }
};

pub(crate) use ffi::{GraphFormat, MemoryUse};

/// A value that a forked child must not touch: every use asks first (H17). Functions that have no object ask by
/// `hooks::runtime`, or themselves.
pub(crate) struct Guarded<T>(T);

impl<T> Guarded<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self(inner)
    }

    pub(crate) fn get(&self) -> Result<&T> {
        hooks::refuse_fork()?;
        Ok(&self.0)
    }
}

/// A stream; one that `create_stream` made is destroyed with its object.
pub(crate) struct Stream {
    pub(crate) inner: Guarded<hooks::Ref<hooks::Stream>>,
    id: u64,
    owned: bool,
}

/// An event, destroyed with its object.
struct Event(Guarded<&'static hooks::Event>);

/// Device memory, freed with its object.
pub(crate) struct Buffer {
    pub(crate) device: Guarded<&'static hooks::Device>,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

pub(crate) type Result<T> = hooks::Result<T>;

fn load_driver(spec: &str) -> Result<u32> {
    hooks::runtime()?.load(spec)
}

fn device_count() -> Result<u32> {
    Ok(hooks::runtime()?.device_count())
}

fn device_name(device: u32) -> Result<String> {
    Ok(hooks::runtime()?.found(device)?.properties()?.name)
}

fn memory_use(device: u32) -> Result<MemoryUse> {
    let stats = hooks::runtime()?.device(device)?.memory_stats();
    Ok(MemoryUse {
        allocated: stats.all.allocated_bytes.current,
        reserved: stats.all.reserved_bytes.current,
        peak_allocated: stats.all.allocated_bytes.peak,
    })
}

fn default_stream(device: u32) -> Result<Box<Stream>> {
    let inner = hooks::runtime()?.device(device)?.default_stream().clone();
    Ok(Box::new(Stream::new(inner, false)))
}

fn create_stream(device: u32, priority: i32) -> Result<Box<Stream>> {
    let inner = hooks::create_stream(device, priority)?;
    Ok(Box::new(Stream::new(inner, true)))
}

impl Stream {
    fn new(inner: hooks::Ref<hooks::Stream>, owned: bool) -> Self {
        Self {
            id: inner.id(),
            inner: Guarded::new(inner),
            owned,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn query(&self) -> Result<bool> {
        self.inner.get()?.query()
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.get()?.synchronize()
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.inner.get()?.wait_event(event.0.get()?)
    }

    /// # Safety
    /// The operands lie in live memory of the stream's device.
    unsafe fn call(
        &self,
        operator_name: &str,
        inputs: &[Tensor],
        outputs: &[Tensor],
        scalars: &[f64],
    ) -> Result<()> {
        let stream = self.inner.get()?;
        let operator = CString::new(operator_name)
            .ok()
            .and_then(|name| ops::OperatorId::find(&name))
            .ok_or_else(|| {
                hooks::Error::new(
                    hooks::Code::NOT_FOUND,
                    format!("there is no operator named '{operator_name}'"),
                )
            })?;
        let scalars: Vec<_> = scalars
            .iter()
            .map(|value| ops::Scalar::F64(*value))
            .collect();
        let (inputs, outputs) = (view(inputs)?, view(outputs)?);
        let call = ops::Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars: &scalars,
            ..ops::Call::default()
        };
        // SAFETY: the operands lie in live memory of the stream's device, by this function's contract.
        unsafe { stream.call(operator, &call) }
    }
}

fn view(tensors: &[Tensor]) -> Result<Vec<ops::Tensor<'_>>> {
    let one = |tensor| {
        let Tensor {
            address,
            dtype,
            sizes,
            strides,
        }: &Tensor = tensor;
        if sizes.len() != strides.len() {
            let text = format!(
                "a tensor of {} sizes and {} strides: there must be as many of each",
                sizes.len(),
                strides.len()
            );
            return Err(hooks::Error::new(hooks::Code::INVALID_ARGUMENT, text));
        }
        Ok(ops::Tensor::new(
            *address,
            ops::DType(dtype.repr),
            sizes,
            strides,
        ))
    };
    tensors.iter().map(one).collect()
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned && self.inner.get().is_ok() {
            // The stream was this object's alone; a handle that somebody destroyed by its id is gone already.
            let _ = hooks::destroy_stream(self.id);
        }
    }
}

fn create_event(device: u32, timing: bool) -> Result<Box<Event>> {
    let event = hooks::create_event(device, timing)?;
    Ok(Box::new(Event(Guarded::new(event))))
}

impl Event {
    fn record(&self, stream: &Stream) -> Result<()> {
        self.0.get()?.record(stream.inner.get()?)
    }

    fn query(&self) -> Result<bool> {
        self.0.get()?.query()
    }

    fn synchronize(&self) -> Result<()> {
        self.0.get()?.synchronize()
    }

    fn milliseconds_since(&self, start: &Event) -> Result<f64> {
        hooks::elapsed_ms(start.0.get()?, self.0.get()?)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(event) = self.0.get() {
            let _ = hooks::destroy_event(event.id());
        }
    }
}

fn allocate(device: u32, size: u64, stream: &Stream) -> Result<Box<Buffer>> {
    let device = hooks::runtime()?.device(device)?;
    let address = device.alloc(size, stream.id())?;
    Ok(Box::new(Buffer {
        device: Guarded::new(device),
        address,
        size,
    }))
}

impl Buffer {
    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn upload(self: Pin<&mut Self>, bytes: &[u8], stream: &Stream) -> Result<()> {
        let (host, size) = (bytes.as_ptr() as u64, bytes.len() as u64);
        // SAFETY: `bytes` outlives the copy, which is waited for.
        unsafe {
            stream
                .inner
                .get()?
                .copy(self.address, host, size, hooks::CopyKind::HostToDevice)
        }?;
        stream.synchronize()
    }

    fn download(&self, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        let (host, size) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
        // SAFETY: `bytes` outlives the copy, which is waited for.
        unsafe {
            stream
                .inner
                .get()?
                .copy(host, self.address, size, hooks::CopyKind::DeviceToHost)
        }?;
        stream.synchronize()
    }

    fn fill(self: Pin<&mut Self>, byte: u8, stream: &Stream) -> Result<()> {
        // SAFETY: the order of uses and frees is the host's to see to (H23).
        unsafe { stream.inner.get()?.fill(self.address, self.size, &[byte]) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(device) = self.device.get() {
            let _ = device.free(self.address);
        }
    }
}
