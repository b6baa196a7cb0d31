//! A guard behind an operator: a host kernel that looks for NaN and infinite elements in what the operator wrote. If it
//! finds some, it fails, and so does the stream.

use std::ffi::c_void;
use std::fmt::Write as _;

use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::failure::failed_with;
use crate::memory::ArgumentBlock;
use crate::packed;
use crate::plain::View;
use crate::registry::OperatorId;

/// The words in front of the packed call: whether infinite elements are looked for, and the number of the node, from 1, in
/// a graph.
const HEAD: usize = 2;

/// A guard that is ready to be launched or recorded.
#[derive(Debug)]
pub struct Guard {
    block: Vec<u64>,
    /// The offsets in the block at which addresses stand, in bytes.
    pub addresses: Vec<u32>,
}

impl Guard {
    /// The guard of a call; `None` if it writes no floating-point numbers. `node` is the number of its node in a graph.
    pub fn of(id: OperatorId, call: &Call<'_>, node: Option<u32>, infinite: bool) -> Option<Self> {
        if !call.outputs.iter().any(is_watched) {
            return None;
        }
        let call = Call {
            scalars: &[],
            args: &[],
            ..*call
        };
        let mut block = vec![
            u64::from(infinite),
            node.map_or(0, |node| u64::from(node) + 1),
        ];
        block.extend(packed::pack(id, &call));
        let tensors = call.inputs.iter().chain(call.outputs).enumerate();
        let there = tensors.filter(|(_, one)| one.dtype() != DType::INVALID && one.numel() > 0);
        let addresses = there.map(|(at, _)| (HEAD as u32 + packed::address_word(at)) * 8);
        Some(Self {
            addresses: addresses.collect(),
            block,
        })
    }

    /// The argument block of [`guard`].
    pub fn args(&self) -> &[u8] {
        bytemuck::cast_slice(&self.block)
    }
}

fn is_watched(tensor: &Tensor<'_>) -> bool {
    let floats = [DType::F32, DType::F64, DType::F16, DType::BF16];
    floats.contains(&tensor.dtype()) && tensor.numel() > 0
}

/// The census of a tensor's elements: the number of NaN and of infinite ones, and the range of the others.
struct Census {
    nan: i64,
    infinite: i64,
    /// The least and the largest of the others.
    range: Option<(f64, f64)>,
}

impl Census {
    fn of(view: &View<'_>) -> Self {
        let mut census = Self {
            nan: 0,
            infinite: 0,
            range: None,
        };
        for number in 0..view.numel() {
            let value = view.get(view.nth(number));
            if value.is_nan() {
                census.nan += 1;
            } else if value.is_infinite() {
                census.infinite += 1;
            } else {
                let (low, high) = census.range.unwrap_or((value, value));
                census.range = Some((low.min(value), high.max(value)));
            }
        }
        census
    }
}

/// The kernel of a [`Guard`].
///
/// # Safety
/// `args` is a block of [`Guard::args`], and its operands, moved by `bias`, lie in live memory.
pub unsafe extern "C" fn guard(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let mut words = unsafe { ArgumentBlock::new(args, args_size) }.words();
    let call = words.split_off(HEAD);
    let &[infinite, node] = &words[..] else {
        return Code::INTERNAL.0;
    };
    let id = packed::operator(&call);
    packed::unpack(call, |call| {
        let watched = (0..).zip(call.outputs).filter(|(_, one)| is_watched(one));
        for (at, output) in watched {
            let census = Census::of(&View::new(output, bias));
            if census.nan > 0 || infinite != 0 && census.infinite > 0 {
                let mut text = String::new();
                if node > 0 {
                    let _ = write!(text, "node {}: ", node - 1);
                }
                let (sizes, dtype) = (output.sizes(), output.dtype());
                let _ = write!(
                    text,
                    "output {at} of {dtype} {sizes:?} has {} NaN and {} infinite of {} elements",
                    census.nan,
                    census.infinite,
                    output.numel()
                );
                describe_inputs(&mut text, call, bias);
                return failed_with(Code::EXECUTION, &[id.name()], text).0;
            }
        }
        Code::OK.0
    })
}

fn describe_inputs(text: &mut String, call: &Call<'_>, bias: i64) {
    for (at, input) in call.inputs.iter().enumerate() {
        if !is_watched(input) {
            continue;
        }
        let _ = write!(
            text,
            "; input {at} of {} {:?} ",
            input.dtype(),
            input.sizes()
        );
        if call
            .outputs
            .iter()
            .any(|output| output.address() == input.address())
        {
            text.push_str("was overwritten");
            continue;
        }
        let census = Census::of(&View::new(input, bias));
        match census.range {
            Some((low, high)) => {
                let _ = write!(text, "goes from {low} to {high}");
            }
            None => text.push_str("has no finite element"),
        }
        if census.nan + census.infinite > 0 {
            let _ = write!(
                text,
                ", with {} NaN and {} infinite",
                census.nan, census.infinite
            );
        }
    }
}
