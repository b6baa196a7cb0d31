//! Calls of operators as blocks of words: the structs of the driver contract, and the lists that they point to.
//!
//! A stored block has offsets in place of pointers, so that it can be copied. [`fix`] turns them into pointers where the
//! block stays. From then on a driver is given the block as it is: an address or a number that a replay binds is one
//! word of it.

use std::mem::offset_of;

use outrigger_device::DType;
use outrigger_device::sys::{
    OTR_EXT_OPERATOR_ARGS, OTR_VALUE_BOOLS, OTR_VALUE_INTS, OTR_VALUE_STRING, otr_ext,
    otr_operator_args, otr_operator_call, otr_scalar, otr_tensor, otr_value,
    otr_value__bindgen_ty_1,
};

use crate::call::{Argument, Call, Scalar, Tensor, Value};
use crate::registry::OperatorId;

const fn words_of<T>() -> usize {
    size_of::<T>().div_ceil(8)
}

// The block: the call, its arguments, the operator's number, inputs, outputs, scalars, values; then sizes, strides,
// lists of integers, and strings.
const ARGS: usize = words_of::<otr_operator_call>();
const ID: usize = ARGS + words_of::<otr_operator_args>();
const TENSORS: usize = ID + 1;
const TENSOR: usize = words_of::<otr_tensor>();
const SCALAR: usize = words_of::<otr_scalar>();
const VALUE: usize = words_of::<otr_value>();
const _: () = assert!(offset_of!(otr_tensor, address) == 0);

/// The word of a block that is the address of a tensor; outputs count on from inputs.
pub fn address_word(tensor: usize) -> u32 {
    (TENSORS + tensor * TENSOR) as u32
}

/// The words of a block that are the type and the value of a scalar of a call of so many tensors.
pub fn scalar_words(tensors: usize, scalar: usize) -> [u32; 2] {
    let first = TENSORS + tensors * TENSOR + scalar * SCALAR;
    [first as u32, first as u32 + 1]
}

/// The type and the value of a scalar as words of a block.
pub fn scalar_as_words(scalar: Scalar) -> [u64; 2] {
    let (dtype, bits) = match scalar {
        Scalar::F64(value) => (DType::F64, value.to_bits()),
        Scalar::I64(value) => (DType::I64, value as u64),
    };
    // The second half of the first word is `reserved`.
    let mut head = [0; 8];
    head[..4].copy_from_slice(&dtype.0.to_ne_bytes());
    [u64::from_ne_bytes(head), bits]
}

/// A call as a block with offsets in place of pointers.
pub fn pack(id: OperatorId, call: &Call<'_>) -> Vec<u64> {
    let tensors = call.inputs.len() + call.outputs.len();
    let scalars = TENSORS + tensors * TENSOR;
    let values = scalars + call.scalars.len() * SCALAR;
    let mut block = vec![0u64; values + call.args.len() * VALUE];
    block[ID] = u64::from(id.index());
    let offset = |word: usize| word * 8;
    let head = otr_operator_call {
        struct_size: size_of::<otr_operator_call>(),
        next: std::ptr::without_provenance(if call.args.is_empty() {
            0
        } else {
            offset(ARGS)
        }),
        name: id.name().as_ptr(),
        inputs: std::ptr::without_provenance(offset(TENSORS)),
        outputs: std::ptr::without_provenance(offset(TENSORS + call.inputs.len() * TENSOR)),
        scalars: std::ptr::without_provenance(offset(scalars)),
        input_count: call.inputs.len() as u32,
        output_count: call.outputs.len() as u32,
        scalar_count: call.scalars.len() as u32,
        flags: 0,
    };
    put(&mut block, 0, head);
    let args = otr_operator_args {
        ext: otr_ext {
            struct_size: size_of::<otr_operator_args>(),
            type_: OTR_EXT_OPERATOR_ARGS,
            reserved: 0,
            next: std::ptr::null(),
        },
        values: std::ptr::without_provenance(offset(values)),
        count: call.args.len() as u32,
        reserved: 0,
    };
    put(&mut block, ARGS, args);
    for (at, tensor) in call.inputs.iter().chain(call.outputs).enumerate() {
        let mut list = |numbers: &[i64]| {
            let start = block.len();
            block.extend(numbers.iter().map(|&number| number as u64));
            std::ptr::without_provenance(offset(start))
        };
        let raw = otr_tensor {
            address: tensor.address(),
            dtype: tensor.dtype().0,
            rank: tensor.rank() as u32,
            sizes: list(tensor.sizes()),
            strides: list(tensor.strides()),
        };
        put(&mut block, TENSORS + at * TENSOR, raw);
    }
    for (at, &scalar) in call.scalars.iter().enumerate() {
        block[scalars + at * SCALAR..][..SCALAR].copy_from_slice(&scalar_as_words(scalar));
    }
    for (at, value) in call.args.iter().enumerate() {
        let mut raw = value.raw();
        let start = offset(block.len());
        match value.get() {
            Argument::Ints(list) | Argument::Bools(list) => {
                block.extend(list.iter().map(|&number| number as u64));
                raw.of = otr_value__bindgen_ty_1 {
                    integers: std::ptr::without_provenance(start),
                };
            }
            Argument::String(text) => {
                for bytes in text.to_bytes_with_nul().chunks(8) {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    block.push(u64::from_ne_bytes(word));
                }
                raw.of = otr_value__bindgen_ty_1 {
                    string: std::ptr::without_provenance(start),
                };
            }
            _ => {}
        }
        put(&mut block, values + at * VALUE, raw);
    }
    block
}

/// Puts a struct at a word of a block.
fn put<T: Copy>(block: &mut [u64], at: usize, what: T) {
    let place = block[at..at + words_of::<T>()].as_mut_ptr().cast::<T>();
    const { assert!(align_of::<T>() <= 8 && size_of::<T>().is_multiple_of(8)) };
    // SAFETY: the words that were just sliced are as many as the struct needs, and aligned as it needs.
    unsafe { place.write(what) };
}

/// Turns the offsets of a block into pointers, where the block stays.
///
/// # Safety
/// `block` leads to a block that [`pack`] made, which nobody else uses meanwhile. It is fixed once.
pub unsafe fn fix(block: *mut u64) {
    fn lead<T>(block: *mut u64, pointer: &mut *const T) {
        *pointer = block.cast_const().wrapping_byte_add(pointer.addr()).cast();
    }
    // SAFETY: this function's contract: `pack` has put these structs and lists there, one behind the other, and all
    // offsets are within the block.
    unsafe {
        let call = &mut *block.cast::<otr_operator_call>();
        let args = &mut *block.add(ARGS).cast::<otr_operator_args>();
        let tensors = (call.input_count + call.output_count) as usize;
        let first = block.add(TENSORS).cast::<otr_tensor>();
        for tensor in std::slice::from_raw_parts_mut(first, tensors) {
            lead(block, &mut tensor.sizes);
            lead(block, &mut tensor.strides);
        }
        let first = block.byte_add(args.values.addr()).cast::<otr_value>();
        for value in std::slice::from_raw_parts_mut(first, args.count as usize) {
            match value.kind {
                OTR_VALUE_INTS | OTR_VALUE_BOOLS => lead(block, &mut value.of.integers),
                OTR_VALUE_STRING => lead(block, &mut value.of.string),
                _ => {}
            }
        }
        lead(block, &mut args.values);
        if !call.next.is_null() {
            lead(block, &mut call.next);
        }
        lead(block, &mut call.inputs);
        lead(block, &mut call.outputs);
        lead(block, &mut call.scalars);
    }
}

/// The operator of a block.
pub fn operator(block: &[u64]) -> OperatorId {
    OperatorId::from_index(block[ID] as u32)
        .unwrap_or_else(|| unreachable!("packed from an operator"))
}

/// The call of a block whose pointers are right, in the form of the driver contract.
///
/// # Safety
/// The block was [`fix`]ed where it is, and nobody writes to it while the result is used.
pub unsafe fn raw(block: &[u64]) -> &otr_operator_call {
    // SAFETY: this function's contract: such a block begins with the call.
    unsafe { &*block.as_ptr().cast() }
}

/// Runs `with` on the call of a block that [`pack`] made, which is fixed for this.
pub fn unpack<R>(mut block: Vec<u64>, with: impl FnOnce(&Call<'_>) -> R) -> R {
    // SAFETY: a block of `pack`, which stays where it is until the end of this function.
    let (inputs, outputs, scalars, args) = unsafe {
        fix(block.as_mut_ptr());
        let call = raw(&block);
        let list = |first: *const otr_tensor, count: u32| {
            Tensor::of_raw(std::slice::from_raw_parts(first, count as usize))
        };
        let values = &*block[ARGS..].as_ptr().cast::<otr_operator_args>();
        let values = std::slice::from_raw_parts(values.values, values.count as usize);
        let scalars = std::slice::from_raw_parts(call.scalars, call.scalar_count as usize);
        (
            list(call.inputs, call.input_count),
            list(call.outputs, call.output_count),
            scalars,
            Value::of_raw(values, call),
        )
    };
    let (Some(inputs), Some(outputs), Ok(args)) = (inputs, outputs, args) else {
        unreachable!("a packed call is one that was right");
    };
    let scalar = |scalar: &otr_scalar| match DType(scalar.dtype) {
        // SAFETY: both members are 8 bytes for which every bit pattern is a value.
        DType::F64 => Scalar::F64(unsafe { scalar.value.f64_ }),
        // SAFETY: as above.
        _ => Scalar::I64(unsafe { scalar.value.i64_ }),
    };
    let scalars: Vec<Scalar> = scalars.iter().map(scalar).collect();
    with(&Call {
        inputs,
        outputs,
        scalars: &scalars,
        args,
        device_only: false,
        whole: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_back_as_it_was() {
        let id = OperatorId::find(c"aten::anything").unwrap();
        let (sizes, strides) = ([2, 3, 4], [12, 4, 1]);
        let full = Tensor::new(0x1000, DType::F32, &sizes, &strides);
        let number = Tensor::new(0x2000, DType::I64, &[], &[]);
        let numbers = [7, -8, i64::MAX];
        let args = [
            Argument::None,
            Argument::Input(0),
            Argument::Inputs(1..3),
            Argument::Outputs(0..1),
            Argument::Scalar(1),
            Argument::Int(-5),
            Argument::Bool(true),
            Argument::DType(DType::BF16),
            Argument::String(c"amax and more than eight"),
            Argument::String(c""),
            Argument::Ints(&numbers),
            Argument::Ints(&[]),
            Argument::Bools(&[1, 0]),
        ];
        let call = Call {
            inputs: &[full, Tensor::ABSENT, number],
            outputs: &[full.at(0x3000)],
            scalars: &[Scalar::F64(-0.5), Scalar::I64(i64::MIN)],
            args: &args.clone().map(Value::new),
            device_only: false,
            whole: false,
        };
        let block = pack(id, &call);
        assert_eq!(operator(&block), id);
        unpack(block.clone(), |back| {
            assert_eq!(format!("{call:?}"), format!("{back:?}"));
            let values: Vec<_> = back.args.iter().map(Value::get).collect();
            assert_eq!(values, args);
        });
        assert_eq!(block[address_word(1) as usize], 0);
        assert_eq!(block[address_word(3) as usize], 0x3000);
        let [head, value] = scalar_words(4, 1);
        assert_eq!(
            [block[head as usize], block[value as usize]],
            scalar_as_words(Scalar::I64(i64::MIN))
        );
    }
}
