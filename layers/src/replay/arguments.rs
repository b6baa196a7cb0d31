//! Rebuilds the arguments of a recorded call for the driver under replay: its own objects and
//! addresses, and new structs. If an argument cannot be rebuilt, the call is skipped; nothing is
//! guessed.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_char, c_void};
use std::ptr::NonNull;

use outrigger_device::{NO_OUTCOME, params, sys};
use parking_lot::Mutex;

use crate::record::Value;

/// The reason why a call is not replayed.
pub(super) type Skip = &'static str;

/// The objects and memory that stand for those of the recording.
#[derive(Default)]
pub(super) struct Things {
    pub(super) objects: HashMap<u32, u64>,
    pub(super) memory: HashMap<u32, u64>,
}

impl Things {
    pub(super) fn object(&self, value: &Value) -> Result<u64, Skip> {
        match value {
            Value::Null => Ok(0),
            Value::Object(id) => self
                .objects
                .get(id)
                .copied()
                .ok_or("an object of it was not made"),
            _ => Err("it has a handle that was none"),
        }
    }

    pub(super) fn address(&self, value: &Value) -> Result<u64, Skip> {
        match value {
            Value::Null => Ok(0),
            Value::Address(id, offset) => self
                .memory
                .get(id)
                .map(|base| base.wrapping_add(*offset))
                .ok_or("memory of it was not made"),
            _ => Err("it has an address that is not in memory of the driver"),
        }
    }
}

/// The values that live as long as a call: places for outputs, and structs.
#[derive(Default)]
pub(super) struct Frame {
    /// No entry has more outputs. They stay where they are while the frame lives.
    slots: Box<[Cell<u64>; 4]>,
    used: usize,
    /// The place for an outcome, if the call writes one.
    outcome: Option<NonNull<sys::otr_outcome>>,
    kept: Vec<Box<dyn Any>>,
}

impl Frame {
    /// A place for an output of at most 8 bytes; NULL if it was NULL.
    fn slot<T>(&mut self, value: &Value) -> *mut T {
        if *value == Value::Null {
            return std::ptr::null_mut();
        }
        let Some(slot) = self.slots.get(self.used) else {
            return std::ptr::null_mut();
        };
        self.used += 1;
        slot.as_ptr().cast()
    }

    /// The values that were written into the places, in their order.
    pub(super) fn written(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().take(self.used).map(Cell::get)
    }

    /// The outcome that a call has written, which succeeded.
    pub(super) fn outcome(&self) -> Option<i32> {
        // SAFETY: kept by this frame, and written to by the call alone.
        self.outcome
            .map(|outcome| unsafe { (*outcome.as_ptr()).code })
    }

    /// Keeps a slice and gives its start; NULL for none.
    fn keep<T: 'static>(&mut self, values: Vec<T>) -> *const T {
        if values.is_empty() {
            return std::ptr::null();
        }
        let pointer = values.as_ptr();
        self.kept.push(Box::new(values));
        pointer
    }

    fn keep_one<T: 'static>(&mut self, value: T) -> *mut T {
        let mut value = Box::new(value);
        let pointer = &raw mut *value;
        self.kept.push(value);
        pointer
    }

    fn text(&mut self, value: &Value) -> *const c_char {
        match value {
            Value::Bytes(bytes) => {
                let text = CString::new(bytes.clone()).unwrap_or_default();
                let pointer = text.as_ptr();
                self.kept.push(Box::new(text));
                pointer
            }
            _ => std::ptr::null(),
        }
    }
}

/// A text that a driver may keep as long as the process lives, as a label: one copy of each.
fn lasting_text(value: &Value) -> *const c_char {
    static TEXTS: Mutex<BTreeSet<CString>> = Mutex::new(BTreeSet::new());
    let Value::Bytes(bytes) = value else {
        return std::ptr::null();
    };
    let text = CString::new(bytes.clone()).unwrap_or_default();
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(&text) {
        return known.as_ptr();
    }
    let pointer = text.as_ptr();
    texts.insert(text);
    pointer
}

/// Bytes where any pattern, code or block of arguments may begin.
fn aligned(bytes: &[u8]) -> Vec<u128> {
    let word = |bytes: &[u8]| {
        let mut whole = [0; 16];
        whole[..bytes.len()].copy_from_slice(bytes);
        u128::from_ne_bytes(whole)
    };
    let words: Vec<_> = bytes.chunks(16).map(word).collect();
    if words.is_empty() { vec![0] } else { words }
}

/// An argument that can be rebuilt.
pub(super) trait Rebuilt: Sized {
    fn rebuild(value: &Value, name: &str, things: &Things, frame: &mut Frame)
    -> Result<Self, Skip>;
}

pub(super) fn number(value: &Value) -> Result<u64, Skip> {
    match value {
        Value::Number(number) => Ok(*number),
        _ => Err("it has no number where one is due"),
    }
}

pub(super) fn list(value: &Value) -> Result<&[Value], Skip> {
    match value {
        Value::List(values) => Ok(values),
        _ => Err("it has no list where one is due"),
    }
}

fn numbers<T: TryFrom<u64>>(value: &Value) -> Result<Vec<T>, Skip> {
    let one = |value| T::try_from(number(value)?).map_err(|_| "it has a number out of range");
    list(value)?.iter().map(one).collect()
}

impl Rebuilt for u32 {
    fn rebuild(value: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        u32::try_from(number(value)?).map_err(|_| "it has a number out of range")
    }
}

impl Rebuilt for usize {
    fn rebuild(value: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        number(value).map(|number| number as usize)
    }
}

impl Rebuilt for u64 {
    fn rebuild(value: &Value, name: &str, things: &Things, _: &mut Frame) -> Result<Self, Skip> {
        match name {
            "address" | "base" | "workspace" | "send" | "receive" => things.address(value),
            _ => number(value),
        }
    }
}

macro_rules! handles {
    ($($type:ident)*) => {
        $(
            impl Rebuilt for *mut sys::$type {
                fn rebuild(value: &Value, _: &str, things: &Things, _: &mut Frame)
                    -> Result<Self, Skip> {
                    let handle = things.object(value)?;
                    Ok(std::ptr::with_exposed_provenance_mut(handle as usize))
                }
            }

            impl Rebuilt for *mut *mut sys::$type {
                fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame)
                    -> Result<Self, Skip> {
                    Ok(frame.slot(value))
                }
            }
        )*
    };
}

handles! {
    otr_driver otr_queue otr_drv_event otr_drv_module otr_drv_kernel otr_operator otr_drv_graph otr_physical
    otr_drv_comm otr_drv_semaphore
}

macro_rules! slots {
    ($($type:ty)*) => {
        $(
            impl Rebuilt for $type {
                fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame)
                    -> Result<Self, Skip> {
                    Ok(frame.slot(value))
                }
            }
        )*
    };
}

slots! { *mut u32 *mut u64 *mut *mut c_void *mut *const *const c_char }

impl Rebuilt for *mut sys::otr_operator_answer {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null_mut());
        }
        let answer = sys::otr_operator_answer {
            struct_size: size_of::<sys::otr_operator_answer>(),
            next: std::ptr::null(),
            workspace_bytes: 0,
            cost_ns: 0,
        };
        Ok(frame.keep_one(answer))
    }
}

impl Rebuilt for *mut sys::otr_outcome {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null_mut());
        }
        let outcome = frame.keep_one(NO_OUTCOME);
        frame.outcome = NonNull::new(outcome);
        Ok(outcome)
    }
}

impl Rebuilt for *mut c_void {
    fn rebuild(value: &Value, _: &str, things: &Things, _: &mut Frame) -> Result<Self, Skip> {
        let address = things.address(value)?;
        Ok(std::ptr::with_exposed_provenance_mut(address as usize))
    }
}

impl Rebuilt for *const c_void {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        match value {
            Value::Null => Ok(std::ptr::null()),
            Value::Bytes(bytes) => Ok(frame.keep(aligned(bytes)).cast()),
            _ => Err("it has a pointer of the recorded process"),
        }
    }
}

impl Rebuilt for *const sys::otr_event_params {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [flags] = numbers(value)?[..] else {
            return Err("its event parameters are incomplete");
        };
        Ok(frame.keep_one(params::event(flags)))
    }
}

impl Rebuilt for *const sys::otr_memory_params {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [size, alignment, kind, flags] = numbers::<u64>(value)?[..] else {
            return Err("its memory parameters are incomplete");
        };
        Ok(frame.keep_one(sys::otr_memory_params {
            alignment,
            kind: kind as u32,
            flags: flags as u32,
            ..params::memory(size)
        }))
    }
}

impl Rebuilt for *const sys::otr_reserve_params {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [size, alignment, flags] = numbers::<u64>(value)?[..] else {
            return Err("its range is incomplete");
        };
        Ok(frame.keep_one(sys::otr_reserve_params {
            flags: flags as u32,
            ..params::reserve(size, alignment)
        }))
    }
}

impl Rebuilt for *const sys::otr_map_params {
    fn rebuild(value: &Value, _: &str, things: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [address, objects, flags] = list(value)? else {
            return Err("its mapping is incomplete");
        };
        let handle = |value| {
            let handle = things.object(value)?;
            Ok(std::ptr::with_exposed_provenance_mut(handle as usize))
        };
        let handles: Vec<*mut sys::otr_physical> = list(objects)?
            .iter()
            .map(handle)
            .collect::<Result<_, Skip>>()?;
        let count = handles.len() as u32;
        let physical = frame.keep(handles);
        Ok(frame.keep_one(sys::otr_map_params {
            flags: number(flags)? as u32,
            ..params::map(things.address(address)?, physical, count)
        }))
    }
}

/// The numbers of a copy: its ends, which the player replaces where they are host memory, have none here.
pub(super) fn copy(value: &Value) -> Result<(&Value, &Value, sys::otr_copy), Skip> {
    let [dst, src, rest @ ..] = list(value)? else {
        return Err("its copy is incomplete");
    };
    let rest: Vec<u64> = rest.iter().map(number).collect::<Result<_, Skip>>()?;
    let [
        size,
        kind,
        rows,
        dst_pitch,
        src_pitch,
        dst_device,
        src_device,
    ] = rest[..]
    else {
        return Err("its copy is incomplete");
    };
    let copy = sys::otr_copy {
        rows: rows as u32,
        dst_pitch,
        src_pitch,
        dst_device: dst_device as u32,
        src_device: src_device as u32,
        ..params::copy(0, 0, size, kind as u32)
    };
    Ok((dst, src, copy))
}

impl Rebuilt for *const sys::otr_copy {
    fn rebuild(value: &Value, _: &str, things: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let (dst, src, copy) = copy(value)?;
        Ok(frame.keep_one(sys::otr_copy {
            dst: things.address(dst)?,
            src: things.address(src)?,
            ..copy
        }))
    }
}

impl Rebuilt for *const sys::otr_fill {
    fn rebuild(value: &Value, _: &str, things: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [dst, size, pattern, pattern_size] = list(value)? else {
            return Err("its fill is incomplete");
        };
        let pattern = match pattern {
            Value::Null => std::ptr::null(),
            Value::Bytes(bytes) => frame.keep(aligned(bytes)).cast(),
            _ => return Err("it has a pointer of the recorded process"),
        };
        let fill = params::fill(
            things.address(dst)?,
            number(size)?,
            pattern,
            number(pattern_size)? as u32,
        );
        Ok(frame.keep_one(fill))
    }
}

impl Rebuilt for *const sys::otr_host_call {
    fn rebuild(value: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        match value {
            Value::Null => Ok(std::ptr::null()),
            _ => Err("it has a function of the recorded process"),
        }
    }
}

impl Rebuilt for *mut sys::otr_imported {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("memory of other processes is not replayed")
    }
}

impl Rebuilt for *const c_char {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        Ok(frame.text(value))
    }
}

impl Rebuilt for *mut sys::otr_device_properties {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null_mut());
        }
        // SAFETY: integers and pointers only, for all of which zero is valid.
        let mut properties: sys::otr_device_properties = unsafe { std::mem::zeroed() };
        properties.struct_size = size_of::<sys::otr_device_properties>();
        Ok(frame.keep_one(properties))
    }
}

impl Rebuilt for *mut sys::otr_ipc_handle {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("memory of other processes is not replayed")
    }
}

impl Rebuilt for *const sys::otr_ipc_handle {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("memory of other processes is not replayed")
    }
}

impl Rebuilt for *mut sys::otr_fd {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("what is shared by file descriptor is not replayed")
    }
}

impl Rebuilt for *const sys::otr_fd {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("what is shared by file descriptor is not replayed")
    }
}

// The other side, which signals, is not there.
impl Rebuilt for *const sys::otr_semaphore_params {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("what is shared by file descriptor is not replayed")
    }
}

impl Rebuilt for *const sys::otr_comm_params {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("work with other ranks is not replayed")
    }
}

impl Rebuilt for *const sys::otr_exchange {
    fn rebuild(_: &Value, _: &str, _: &Things, _: &mut Frame) -> Result<Self, Skip> {
        Err("work with other ranks is not replayed")
    }
}

impl Rebuilt for *const sys::otr_device_params {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [flags] = numbers::<u32>(value)?[..] else {
            return Err("its device parameters are incomplete");
        };
        Ok(frame.keep_one(sys::otr_device_params {
            struct_size: size_of::<sys::otr_device_params>(),
            next: std::ptr::null(),
            flags,
            reserved: 0,
        }))
    }
}

impl Rebuilt for *const sys::otr_queue_params {
    fn rebuild(value: &Value, _: &str, _: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [priority, flags] = numbers::<u32>(value)?[..] else {
            return Err("its queue parameters are incomplete");
        };
        Ok(frame.keep_one(sys::otr_queue_params {
            struct_size: size_of::<sys::otr_queue_params>(),
            next: std::ptr::null(),
            priority: priority as i32,
            flags,
        }))
    }
}

impl Rebuilt for *const sys::otr_launch {
    fn rebuild(value: &Value, _: &str, things: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [
            grid,
            block,
            shared,
            Value::Bytes(arguments),
            parts,
            cost,
            label,
            addresses,
            _,
        ] = list(value)?
        else {
            return Err("its launch is incomplete");
        };
        let three = |value| {
            <[u32; 3]>::try_from(numbers::<u32>(value)?).map_err(|_| "its grid is incomplete")
        };
        let mut bytes = arguments.clone();
        for pair in list(addresses)? {
            let [at, address] = list(pair)? else {
                return Err("its addresses are incomplete");
            };
            let (at, address) = (number(at)? as usize, things.address(address)?);
            bytes
                .get_mut(at..)
                .and_then(|rest| rest.first_chunk_mut())
                .ok_or("its addresses lie outside of its arguments")
                .map(|place| *place = address.to_ne_bytes())?;
        }
        let parts = numbers::<u32>(parts)?;
        let (parts, []) = parts.as_chunks() else {
            return Err("its parts are incomplete");
        };
        let parts =
            parts
                .iter()
                .map(|&[offset, size, kind]| sys::otr_argument { offset, size, kind });
        let parts: Vec<_> = parts.collect();
        let too_many = |_| "it has too many arguments";
        let launch = sys::otr_launch {
            struct_size: size_of::<sys::otr_launch>(),
            next: std::ptr::null(),
            grid: three(grid)?,
            block: three(block)?,
            shared_bytes: number(shared)? as u32,
            args_size: u32::try_from(arguments.len()).map_err(too_many)?,
            args: frame.keep(aligned(&bytes)).cast(),
            argument_count: u32::try_from(parts.len()).map_err(too_many)?,
            arguments: frame.keep(parts),
            cost_ns: number(cost)? as u32,
            label: lasting_text(label),
        };
        Ok(frame.keep_one(launch))
    }
}

impl Rebuilt for *const sys::otr_operator_call {
    fn rebuild(value: &Value, _: &str, things: &Things, frame: &mut Frame) -> Result<Self, Skip> {
        if *value == Value::Null {
            return Ok(std::ptr::null());
        }
        let [name, inputs, outputs, scalars, arguments] = list(value)? else {
            return Err("its operator is incomplete");
        };
        let mut tensors = |value| {
            let mut tensors = Vec::new();
            for tensor in list(value)? {
                let [address, dtype, sizes, strides] = list(tensor)? else {
                    return Err("a tensor of it is incomplete");
                };
                let extents = |value| {
                    let numbers = numbers::<u64>(value)?;
                    Ok(numbers.into_iter().map(|n| n as i64).collect::<Vec<_>>())
                };
                let (sizes, strides) = (extents(sizes)?, extents(strides)?);
                if sizes.len() != strides.len() {
                    return Err("a tensor of it is incomplete");
                }
                tensors.push(sys::otr_tensor {
                    address: match address {
                        // Asked for by signature only: `prepare` ignores it.
                        Value::Pointer(_) => 0,
                        address => things.address(address)?,
                    },
                    dtype: number(dtype)? as u32,
                    rank: sizes.len() as u32,
                    sizes: frame.keep(sizes),
                    strides: frame.keep(strides),
                });
            }
            Ok(tensors)
        };
        let (inputs, outputs) = (tensors(inputs)?, tensors(outputs)?);
        let mut values = Vec::new();
        for scalar in list(scalars)? {
            let [dtype, bits] = numbers::<u64>(scalar)?[..] else {
                return Err("a scalar of it is incomplete");
            };
            values.push(sys::otr_scalar {
                dtype: dtype as u32,
                reserved: 0,
                value: sys::otr_scalar__bindgen_ty_1 { i64_: bits as i64 },
            });
        }
        let mut raw = Vec::new();
        for argument in list(arguments)? {
            let [kind, count, what] = list(argument)? else {
                return Err("an argument of it is incomplete");
            };
            let of = match what {
                Value::List(_) => {
                    let integers: Vec<i64> =
                        numbers::<u64>(what)?.iter().map(|&n| n as i64).collect();
                    let integers = frame.keep(integers);
                    sys::otr_value__bindgen_ty_1 { integers }
                }
                Value::Number(index) => sys::otr_value__bindgen_ty_1 { index: *index },
                text => sys::otr_value__bindgen_ty_1 {
                    string: frame.text(text),
                },
            };
            raw.push(sys::otr_value {
                kind: number(kind)? as u32,
                count: number(count)? as u32,
                of,
            });
        }
        let next = if raw.is_empty() {
            std::ptr::null()
        } else {
            let count = raw.len() as u32;
            let args = sys::otr_operator_args {
                ext: sys::otr_ext {
                    struct_size: size_of::<sys::otr_operator_args>(),
                    type_: sys::OTR_EXT_OPERATOR_ARGS,
                    reserved: 0,
                    next: std::ptr::null(),
                },
                values: frame.keep(raw),
                count,
                reserved: 0,
            };
            frame.keep_one(args).cast_const().cast()
        };
        let call = sys::otr_operator_call {
            struct_size: size_of::<sys::otr_operator_call>(),
            next,
            name: frame.text(name),
            input_count: inputs.len() as u32,
            output_count: outputs.len() as u32,
            scalar_count: values.len() as u32,
            inputs: frame.keep(inputs),
            outputs: frame.keep(outputs),
            scalars: frame.keep(values),
            flags: 0,
        };
        Ok(frame.keep_one(call))
    }
}
