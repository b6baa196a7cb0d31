//! Arguments as they are written: handles and addresses by name, the targets of pointers by value. This
//! module reads only what the contract lets a driver read.

use std::ffi::{CStr, c_char, c_void};

use outrigger_device::{Code, sys};

use super::format::Value;
use super::names::Names;

/// An argument of an entry.
pub(super) trait Argument: Copy {
    /// The value that is written when the call begins. `name` is that of the argument.
    ///
    /// # Safety
    /// What it points to is as the contract says.
    unsafe fn input(self, names: &Names, name: &str) -> Value;

    /// The bits, to tell handles and addresses apart.
    fn word(self) -> u64 {
        0
    }

    /// The value that the call has written, after it succeeded; `size` is that of memory which it made.
    ///
    /// # Safety
    /// The call succeeded with this argument.
    unsafe fn output(self, _names: &mut Names, _name: &str, _size: u64) -> Option<Value> {
        None
    }
}

fn is_address(name: &str) -> bool {
    matches!(name, "address" | "base" | "workspace" | "send" | "receive")
}

fn place(is_null: bool) -> Value {
    if is_null {
        Value::Null
    } else {
        Value::Number(0)
    }
}

impl Argument for u32 {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        Value::Number(u64::from(self))
    }
}

impl Argument for usize {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        Value::Number(self as u64)
    }
}

impl Argument for u64 {
    unsafe fn input(self, names: &Names, name: &str) -> Value {
        if is_address(name) {
            names.address(self)
        } else {
            Value::Number(self)
        }
    }

    fn word(self) -> u64 {
        self
    }
}

macro_rules! handles {
    ($($type:ident)*) => {
        $(
            impl Argument for *mut sys::$type {
                unsafe fn input(self, names: &Names, _: &str) -> Value {
                    names.object(self.addr())
                }

                fn word(self) -> u64 {
                    self.addr() as u64
                }
            }

            impl Argument for *mut *mut sys::$type {
                unsafe fn input(self, _: &Names, _: &str) -> Value {
                    place(self.is_null())
                }

                unsafe fn output(self, names: &mut Names, _: &str, _: u64) -> Option<Value> {
                    // SAFETY: the call succeeded, so it was writable and was written.
                    (!self.is_null()).then(|| names.add_object(unsafe { *self }.addr()))
                }
            }
        )*
    };
}

handles! {
    otr_driver otr_queue otr_drv_event otr_drv_module otr_drv_kernel otr_operator otr_drv_graph otr_physical
    otr_drv_comm otr_drv_semaphore
}

impl Argument for *mut u32 {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }

    unsafe fn output(self, _: &mut Names, _: &str, _: u64) -> Option<Value> {
        // SAFETY: as for handles.
        (!self.is_null()).then(|| Value::Number(u64::from(unsafe { *self })))
    }
}

impl Argument for *mut u64 {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }

    unsafe fn output(self, names: &mut Names, name: &str, size: u64) -> Option<Value> {
        if self.is_null() {
            return None;
        }
        // SAFETY: as for handles.
        let value = unsafe { *self };
        Some(if is_address(name) {
            names.add_memory(value, size)
        } else {
            Value::Number(value)
        })
    }
}

impl Argument for *mut *mut c_void {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }

    unsafe fn output(self, names: &mut Names, _: &str, size: u64) -> Option<Value> {
        // SAFETY: as for handles.
        (!self.is_null()).then(|| names.add_memory(unsafe { *self }.addr() as u64, size))
    }
}

/// The list is the driver's, and the same whenever it is asked for.
impl Argument for *mut *const *const c_char {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }
}

impl Argument for *mut sys::otr_operator_answer {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }

    unsafe fn output(self, _: &mut Names, _: &str, _: u64) -> Option<Value> {
        // SAFETY: NULL, or a struct that the call has written.
        unsafe { self.as_ref() }.map(|answer| Value::Number(answer.workspace_bytes))
    }
}

/// The code, and of a failure the number, the label and the message.
impl Argument for *mut sys::otr_outcome {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }

    unsafe fn output(self, _: &mut Names, _: &str, _: u64) -> Option<Value> {
        if self.is_null() {
            return None;
        }
        // SAFETY: the call succeeded, so the code was written.
        let code = Code(unsafe { (*self).code });
        let mut fields = vec![Value::Number(u64::from(code.0 as u32))];
        if !matches!(code, Code::OK | Code::NOT_READY) {
            // SAFETY: a failure, so that the rest was written too, with a NUL behind each text.
            unsafe {
                fields.push(Value::Number((*self).submission));
                fields.push(text((&raw const (*self).label).cast()));
                fields.push(text((&raw const (*self).message).cast()));
            }
        }
        Some(Value::List(fields))
    }
}

/// Host memory.
impl Argument for *mut c_void {
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        names.address(self.addr() as u64)
    }

    fn word(self) -> u64 {
        self.addr() as u64
    }
}

/// Told by the entry, which knows the size.
impl Argument for *const c_void {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        if self.is_null() {
            Value::Null
        } else {
            Value::Pointer(self.addr() as u64)
        }
    }
}

impl Argument for *const sys::otr_event_params {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |params| {
            Value::List(vec![Value::Number(params.flags.into())])
        })
    }
}

impl Argument for *const sys::otr_memory_params {
    /// Size, alignment, kind and flags.
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |params| {
            let (kind, flags) = (params.kind.into(), params.flags.into());
            let numbers = [params.size, params.alignment, kind, flags];
            Value::List(numbers.map(Value::Number).to_vec())
        })
    }
}

impl Argument for *const sys::otr_reserve_params {
    /// Size, alignment and flags.
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |params| {
            let numbers = [params.size, params.alignment, params.flags.into()];
            Value::List(numbers.map(Value::Number).to_vec())
        })
    }
}

impl Argument for *const sys::otr_map_params {
    /// Address, objects and flags.
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        let Some(params) = (unsafe { self.as_ref() }) else {
            return Value::Null;
        };
        // SAFETY: as many handles as are counted.
        let objects = unsafe { slice(params.physical, params.count) };
        let objects = objects.iter().map(|object| names.object(object.addr()));
        Value::List(vec![
            names.address(params.address),
            Value::List(objects.collect()),
            Value::Number(params.flags.into()),
        ])
    }
}

impl Argument for *const sys::otr_copy {
    /// Destination, source, size, kind, rows, the pitch of each end, and the device of each. Host memory is written row by
    /// row without what lies between.
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        let Some(copy) = (unsafe { self.as_ref() }) else {
            return Value::Null;
        };
        let (host_dst, host_src) = host_ends(copy);
        let bytes = copy.size.saturating_mul(copy.rows.max(1).into());
        let end = |address: u64, host: bool| match host && address != 0 {
            true => Value::Host(bytes),
            false => names.address(address),
        };
        let (kind, rows) = (copy.kind.into(), copy.rows.into());
        let (to, from) = (copy.dst_device.into(), copy.src_device.into());
        let ends = [end(copy.dst, host_dst), end(copy.src, host_src)];
        let numbers = [
            copy.size,
            kind,
            rows,
            copy.dst_pitch,
            copy.src_pitch,
            to,
            from,
        ];
        Value::List(ends.into_iter().chain(numbers.map(Value::Number)).collect())
    }
}

/// Whether the destination is host memory, and whether the source is.
pub(super) fn host_ends(copy: &sys::otr_copy) -> (bool, bool) {
    match copy.kind {
        sys::OTR_COPY_HOST_TO_DEVICE => (false, true),
        sys::OTR_COPY_DEVICE_TO_HOST => (true, false),
        sys::OTR_COPY_HOST_TO_HOST => (true, true),
        _ => (false, false),
    }
}

impl Argument for *const sys::otr_fill {
    /// Destination, size, pattern, and the length of the pattern.
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        let Some(fill) = (unsafe { self.as_ref() }) else {
            return Value::Null;
        };
        let pattern = match fill.pattern_size {
            _ if fill.pattern.is_null() => Value::Null,
            // SAFETY: not NULL, so as many bytes.
            0..=16 => Value::Bytes(
                unsafe { slice(fill.pattern.cast::<u8>(), fill.pattern_size) }.to_vec(),
            ),
            _ => Value::Pointer(fill.pattern.addr() as u64),
        };
        Value::List(vec![
            names.address(fill.dst),
            Value::Number(fill.size),
            pattern,
            Value::Number(fill.pattern_size.into()),
        ])
    }
}

impl Argument for *const sys::otr_host_call {
    /// Function, data and flags.
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |call| {
            let function = call.function.map_or(Value::Null, |function| {
                Value::Pointer((function as *const c_void).addr() as u64)
            });
            let user = names.address(call.user.addr() as u64);
            Value::List(vec![function, user, Value::Number(call.flags.into())])
        })
    }
}

/// The address of memory, or the size of an object, which has none.
impl Argument for *mut sys::otr_imported {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }

    unsafe fn output(self, names: &mut Names, _: &str, _: u64) -> Option<Value> {
        // SAFETY: NULL, or a struct that the call has written.
        unsafe { self.as_ref() }.map(|found| match found.address {
            0 => Value::Number(found.size),
            address => names.add_memory(address, found.size),
        })
    }
}

impl Argument for *const c_char {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL or NUL-terminated.
        unsafe { text(self) }
    }
}

/// # Safety
/// NULL or NUL-terminated.
unsafe fn text(text: *const c_char) -> Value {
    if text.is_null() {
        return Value::Null;
    }
    // SAFETY: not NULL, and terminated.
    Value::Bytes(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec())
}

impl Argument for *mut sys::otr_device_properties {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }
}

impl Argument for *mut sys::otr_ipc_handle {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }
}

impl Argument for *const sys::otr_ipc_handle {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL or a handle.
        unsafe { self.as_ref() }.map_or(Value::Null, |handle| Value::Bytes(handle.bytes.to_vec()))
    }
}

impl Argument for *mut sys::otr_fd {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        place(self.is_null())
    }
}

/// The kind, and where the memory lies: the number of a descriptor says nothing in another process.
impl Argument for *const sys::otr_fd {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |fd| {
            let numbers = [fd.kind.into(), fd.offset, fd.size];
            Value::List(numbers.map(Value::Number).to_vec())
        })
    }
}

impl Argument for *const sys::otr_semaphore_params {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |params| {
            let numbers = [params.initial, params.flags.into()];
            Value::List(numbers.map(Value::Number).to_vec())
        })
    }
}

/// The number of ranks, and the own rank, are what a recording says of a communicator.
impl Argument for *const sys::otr_comm_params {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        unsafe { self.as_ref() }.map_or(Value::Null, |params| {
            let numbers = [
                params.rank_count.into(),
                params.rank.into(),
                params.timeout_ms,
            ];
            Value::List(numbers.map(Value::Number).to_vec())
        })
    }
}

/// A transfer is its address, size, peer and direction.
impl Argument for *const sys::otr_exchange {
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL, or the struct.
        let Some(exchange) = (unsafe { self.as_ref() }) else {
            return Value::Null;
        };
        // SAFETY: as many transfers as are counted.
        let transfers = unsafe { slice(exchange.transfers, exchange.count) };
        let transfer = |one: &sys::otr_transfer| {
            let numbers = [one.size, one.peer.into(), one.direction.into()];
            let address = std::iter::once(names.address(one.address));
            Value::List(address.chain(numbers.map(Value::Number)).collect())
        };
        Value::List(transfers.iter().map(transfer).collect())
    }
}

impl Argument for *const sys::otr_device_params {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or a struct that begins with its size.
        let Some(size) = (unsafe { self.cast::<usize>().as_ref() }) else {
            return Value::Null;
        };
        if *size < size_of::<sys::otr_device_params>() {
            // Of a smaller struct the driver reads what it holds (R1): nothing that stands here.
            return Value::List(vec![Value::Number(0)]);
        }
        // SAFETY: it has that size.
        Value::List(vec![Value::Number(u64::from(unsafe { (*self).flags }))])
    }
}

impl Argument for *const sys::otr_queue_params {
    unsafe fn input(self, _: &Names, _: &str) -> Value {
        // SAFETY: NULL, or a struct that begins with its size.
        let Some(size) = (unsafe { self.cast::<usize>().as_ref() }) else {
            return Value::Null;
        };
        if *size < size_of::<sys::otr_queue_params>() {
            // Of a smaller struct the driver reads what it holds (R1): nothing that stands here.
            return Value::List(vec![Value::Number(0), Value::Number(0)]);
        }
        // SAFETY: it has that size.
        let params = unsafe { &*self };
        Value::List(vec![
            Value::Number(u64::from(params.priority as u32)),
            Value::Number(u64::from(params.flags)),
        ])
    }
}

impl Argument for *const sys::otr_launch {
    /// Grid, block, shared bytes, arguments, their offsets, sizes and kinds, cost, label, the addresses among the arguments as
    /// pairs of offset and address, and whether pointers of this process are among them.
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL or the struct.
        let Some(launch) = (unsafe { self.as_ref() }) else {
            return Value::Null;
        };
        // SAFETY: as many bytes and arguments as are counted.
        let (arguments, parts) = unsafe {
            (
                slice(launch.args.cast::<u8>(), launch.args_size),
                slice(launch.arguments, launch.argument_count),
            )
        };
        let mut addresses = Vec::new();
        let mut pointers = false;
        let mut at = 0;
        while let Some(word) = arguments.get(at..).and_then(|rest| rest.first_chunk()) {
            let word = u64::from_ne_bytes(*word);
            if let address @ Value::Address(..) = names.address(word) {
                addresses.push(Value::List(vec![Value::Number(at as u64), address]));
                at += 8;
                continue;
            }
            pointers |= at % 8 == 0 && is_mapped(word);
            at += 4;
        }
        let number = |n: u32| Value::Number(u64::from(n));
        Value::List(vec![
            Value::List(launch.grid.map(number).to_vec()),
            Value::List(launch.block.map(number).to_vec()),
            number(launch.shared_bytes),
            Value::Bytes(arguments.to_vec()),
            Value::List(
                parts
                    .iter()
                    .flat_map(|one| [one.offset, one.size, one.kind])
                    .map(number)
                    .collect(),
            ),
            number(launch.cost_ns),
            // SAFETY: NULL or a string that lives as long as the process.
            unsafe { text(launch.label) },
            Value::List(addresses),
            Value::Number(u64::from(pointers)),
        ])
    }
}

impl Argument for *const sys::otr_operator_call {
    /// Name, inputs, outputs, scalars, arguments. A tensor is its address, dtype, sizes and strides; an argument is its
    /// kind and count, and a number, a list or a text.
    unsafe fn input(self, names: &Names, _: &str) -> Value {
        // SAFETY: NULL or the struct, with as many operands as are counted.
        let Some(call) = (unsafe { self.as_ref() }) else {
            return Value::Null;
        };
        // SAFETY: as above.
        let (inputs, outputs, scalars) = unsafe {
            (
                slice(call.inputs, call.input_count),
                slice(call.outputs, call.output_count),
                slice(call.scalars, call.scalar_count),
            )
        };
        let tensors = |tensors: &[sys::otr_tensor]| {
            let numbers = |numbers: &[i64]| {
                Value::List(numbers.iter().map(|n| Value::Number(*n as u64)).collect())
            };
            Value::List(
                tensors
                    .iter()
                    .map(|tensor| {
                        // SAFETY: as many as the rank says.
                        let (sizes, strides) = unsafe {
                            (
                                slice(tensor.sizes, tensor.rank),
                                slice(tensor.strides, tensor.rank),
                            )
                        };
                        Value::List(vec![
                            names.address(tensor.address),
                            Value::Number(u64::from(tensor.dtype)),
                            numbers(sizes),
                            numbers(strides),
                        ])
                    })
                    .collect(),
            )
        };
        let scalar = |scalar: &sys::otr_scalar| {
            Value::List(vec![
                Value::Number(u64::from(scalar.dtype)),
                // SAFETY: all bits are valid for either member.
                Value::Number(unsafe { scalar.value.i64_ } as u64),
            ])
        };
        Value::List(vec![
            // SAFETY: NUL-terminated.
            unsafe { text(call.name) },
            tensors(inputs),
            tensors(outputs),
            Value::List(scalars.iter().map(scalar).collect()),
            // SAFETY: NULL or a chain (R3).
            Value::List(unsafe { arguments(call.next) }),
        ])
    }
}

/// The arguments in the extension chain of a call.
///
/// # Safety
/// NULL, or a chain whose records are as large as they say, with lists as long as they say.
unsafe fn arguments(mut next: *const sys::otr_ext) -> Vec<Value> {
    // SAFETY: NULL or a record of the chain.
    while let Some(record) = unsafe { next.as_ref() } {
        if record.type_ == sys::OTR_EXT_OPERATOR_ARGS {
            // SAFETY: a record of this type is of this struct, with as many values as are counted.
            let values = unsafe {
                let args = &*next.cast::<sys::otr_operator_args>();
                slice(args.values, args.count)
            };
            return values.iter().map(argument).collect();
        }
        next = record.next;
    }
    Vec::new()
}

fn argument(value: &sys::otr_value) -> Value {
    // SAFETY: the member of the value's kind, with as many elements as are counted.
    let what = unsafe {
        match value.kind {
            sys::OTR_VALUE_STRING => text(value.of.string),
            sys::OTR_VALUE_INTS | sys::OTR_VALUE_BOOLS => {
                let list = slice(value.of.integers, value.count);
                Value::List(list.iter().map(|n| Value::Number(*n as u64)).collect())
            }
            _ => Value::Number(value.of.index),
        }
    };
    let (kind, count) = (u64::from(value.kind), u64::from(value.count));
    Value::List(vec![Value::Number(kind), Value::Number(count), what])
}

/// # Safety
/// NULL, or as many elements as are counted, which live as long as the result is used.
pub(super) unsafe fn slice<'a, T>(start: *const T, count: u32) -> &'a [T] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: not NULL, so there are as many elements as are counted.
    unsafe { std::slice::from_raw_parts(start, count as usize) }
}

/// Whether a number is an address of this process's memory, and so may be a pointer.
fn is_mapped(word: u64) -> bool {
    const PAGE: u64 = 4096;
    if !(1 << 16..1 << 47).contains(&word) {
        return false;
    }
    let mut resident = 0u8;
    let page = std::ptr::without_provenance_mut((word & !(PAGE - 1)) as usize);
    // SAFETY: mincore looks at no memory; it answers for any page, and writes one byte.
    unsafe { libc::mincore(page, 1, &mut resident) == 0 }
}
