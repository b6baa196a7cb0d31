//! Operators against references in f64, with limits on the normalized error of each dtype, and with
//! sentinels around the outputs. They run through the C ABI of the host side, whichever kernels it
//! uses, and in the driver's own library.

mod array;
mod attention;
mod cells;
mod convolution;
mod dimensions;
mod dual;
mod elementwise;
mod embedding;
pub(super) mod launch;
pub(super) mod library;
mod linear;
mod losses;
mod norms;
mod numbers;
pub(super) mod operand;
mod pooling;
pub(super) mod prepare;
mod resampling;
mod running;
pub(super) mod sample;
mod scatter;
mod sorting;

use outrigger_device::DType;

use super::host::operators::host;
use crate::{Test, Verdict};
use attention::{attention, attention_backward};
use cells::{gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward};
use convolution::{convolution, convolution_backward};
use dimensions::{layer_norm, mm, reduce, softmax};
use elementwise::{arithmetic, cast, unary};
use embedding::embedding_bag;
use linear::{linear, quantized_mm, scaled_mm};
use losses::{kl_div, loss, loss_backward};
use norms::{
    batch_norm, batch_norm_backward, group_norm, group_norm_backward, rms_norm, rms_norm_backward,
    rms_norm_rotary,
};
use operand::Given;
use operand::Runner;
use pooling::{
    adaptive_avg_pool, adaptive_avg_pool_backward, adaptive_max_pool, adaptive_max_pool_backward,
    avg_pool, avg_pool_backward, max_pool, max_pool_backward,
};
use resampling::{Method, upsample, upsample_backward};
use running::cumprod;
use scatter::{index_put, masked_scatter, or_old, scatter, slices};
use sorting::{Sort, logcumsumexp, running_extreme, search_with_nan, searchsorted, sort};

/// An operator of one dtype, and what judges it.
pub(super) struct Case {
    dtype: DType,
    judge: fn(&dyn Runner) -> Verdict,
}

/// The mean with the element that is there.
const MEAN: [Given<'_>; 2] = [Given::Text("mean"), Given::Truth(true)];

/// The largest of those that go to a place.
const LARGEST: [Given<'_>; 2] = [Given::Text("amax"), Given::Truth(false)];

/// Ranges of a probability, of a target, of a weight and of a factor for what is 1.
const PROBABILITIES: [(f64, f64); 3] = [(0.1, 0.9), (0.0, 1.0), (0.5, 2.0)];
const LOGITS: [(f64, f64); 4] = [(-3.0, 3.0), (0.0, 1.0), (0.5, 2.0), (0.5, 3.0)];
const REALS: [(f64, f64); 2] = [(-2.0, 2.0), (-2.0, 2.0)];
const POSITIVE: [(f64, f64); 2] = [(0.1, 0.9), (0.1, 0.9)];

/// The point where the square becomes a line.
const KNEE: [Given<'_>; 1] = [Given::Number(0.75)];

/// Makes a test of each operator for each dtype over the C ABI, and cases for whoever else runs operators.
macro_rules! of_dtypes {
    ($list:ident $cases:ident $dtypes:tt; $($name:literal $family:ident $arguments:tt;)*) => {
        of_dtypes!(@list $list $cases $(($name $family $arguments $dtypes))*);
    };
    (@list $list:ident $cases:ident $(($name:literal $family:ident $arguments:tt [$($dtype:ident $suffix:literal),+]))*) => {
        pub(super) const $list: &[Test] = &[$($(Test {
            id: concat!("ops.", $name, ".", $suffix),
            rules: &["H18", "H22"],
            needs: &[],
            absent: &[],
            about: concat!("The operator `", $name, "` of ", $suffix, " gives what a reference in f64 gives, and writes nothing else."),
            compiler_prints: false,
            limit: 60,
            run: |context| of_dtypes!(@judge &host(context)?, $name $family $dtype $arguments),
        },)+)*];

        const $cases: &[Case] = &[$($(Case {
            dtype: DType::$dtype,
            judge: |runner| of_dtypes!(@judge runner, $name $family $dtype $arguments),
        },)+)*];
    };
    (@judge $runner:expr, $name:literal $family:ident $dtype:ident ($($argument:expr),*)) => {
        $family($runner, $name, DType::$dtype, $($argument),*)
    };
}

of_dtypes! { FLOATS FLOAT_CASES [F32 "f32", F64 "f64", F16 "f16", BF16 "bf16"];
    "neg" unary((-9.0, 9.0), |x| -x);
    "abs" unary((-9.0, 9.0), f64::abs);
    "square" unary((-9.0, 9.0), |x| x * x);
    "exp" unary((-3.0, 3.0), f64::exp);
    "log" unary((0.1, 50.0), f64::ln);
    "sqrt" unary((0.0, 50.0), f64::sqrt);
    "rsqrt" unary((0.1, 50.0), |x| 1.0 / x.sqrt());
    "reciprocal" unary((0.2, 9.0), f64::recip);
    "tanh" unary((-4.0, 4.0), f64::tanh);
    "sigmoid" unary((-6.0, 6.0), |x| 1.0 / (1.0 + (-x).exp()));
    "sin" unary((-6.0, 6.0), f64::sin);
    "cos" unary((-6.0, 6.0), f64::cos);
    "floor" unary((-9.0, 9.0), f64::floor);
    "relu" unary((-9.0, 9.0), |x| x.max(0.0));
    "silu" unary((-6.0, 6.0), |x| x / (1.0 + (-x).exp()));
    "add" arithmetic((-9.0, 9.0), |x, y| x + y, true);
    "sub" arithmetic((-9.0, 9.0), |x, y| x - y, true);
    "mul" arithmetic((-9.0, 9.0), |x, y| x * y, false);
    "div" arithmetic((0.5, 9.0), |x, y| x / y, false);
    "maximum" arithmetic((-9.0, 9.0), f64::max, false);
    "minimum" arithmetic((-9.0, 9.0), f64::min, false);
    "sum" reduce(|row| row.iter().sum());
    "mean" reduce(|row| row.iter().sum::<f64>() / row.len() as f64);
    "amax" reduce(|row| row.iter().copied().fold(f64::MIN, f64::max));
    "softmax" softmax(false);
    "log_softmax" softmax(true);
    "mm" mm();
    "layer_norm" layer_norm();
    "cumprod" cumprod();
    "sort" sort(Sort::Both);
    "argsort" sort(Sort::Indices);
    "topk" sort(Sort::Top);
    "cummax" running_extreme(false);
    "cummin" running_extreme(true);
    "logcumsumexp" logcumsumexp();
    "searchsorted" search_with_nan();
    "index_put" index_put();
    "convolution" convolution();
    "convolution_backward" convolution_backward();
    "max_pool2d" max_pool(2);
    "max_pool2d_backward" max_pool_backward(2);
    "max_pool3d" max_pool(3);
    "max_pool3d_backward" max_pool_backward(3);
    "avg_pool2d" avg_pool(2);
    "avg_pool2d_backward" avg_pool_backward(2);
    "avg_pool3d" avg_pool(3);
    "avg_pool3d_backward" avg_pool_backward(3);
    "adaptive_max_pool2d" adaptive_max_pool();
    "adaptive_max_pool2d_backward" adaptive_max_pool_backward();
    "adaptive_avg_pool2d" adaptive_avg_pool();
    "adaptive_avg_pool2d_backward" adaptive_avg_pool_backward();
    "attention" attention();
    "attention_backward" attention_backward();
    "native_batch_norm" batch_norm();
    "native_batch_norm_backward" batch_norm_backward();
    "native_group_norm" group_norm();
    "native_group_norm_backward" group_norm_backward();
    "rms_norm" rms_norm();
    "rms_norm_backward" rms_norm_backward();
    "rms_norm_rotary" rms_norm_rotary();
    "masked_scatter" masked_scatter();
    "embedding_bag" embedding_bag();
    "upsample_nearest1d" upsample(Method::Nearest, 1);
    "upsample_nearest1d_backward" upsample_backward(Method::Nearest, 1);
    "upsample_nearest2d" upsample(Method::Nearest, 2);
    "upsample_nearest2d_backward" upsample_backward(Method::Nearest, 2);
    "upsample_nearest3d" upsample(Method::Nearest, 3);
    "upsample_nearest3d_backward" upsample_backward(Method::Nearest, 3);
    "upsample_linear1d" upsample(Method::Linear, 1);
    "upsample_linear1d_backward" upsample_backward(Method::Linear, 1);
    "upsample_bilinear2d" upsample(Method::Linear, 2);
    "upsample_bilinear2d_backward" upsample_backward(Method::Linear, 2);
    "upsample_trilinear3d" upsample(Method::Linear, 3);
    "upsample_trilinear3d_backward" upsample_backward(Method::Linear, 3);
    "upsample_bicubic2d" upsample(Method::Cubic, 2);
    "upsample_bicubic2d_backward" upsample_backward(Method::Cubic, 2);
    "lstm_cell" lstm_cell();
    "lstm_cell_backward" lstm_cell_backward();
    "gru_cell" gru_cell();
    "gru_cell_backward" gru_cell_backward();
    "binary_cross_entropy" loss(&PROBABILITIES, &[], losses::cross_entropy);
    "binary_cross_entropy_backward" loss_backward(&PROBABILITIES, &[], losses::cross_entropy);
    "binary_cross_entropy_with_logits" loss(&LOGITS, &[], losses::logits);
    "smooth_l1_loss" loss(&REALS, &KNEE, losses::smooth_l1);
    "smooth_l1_loss_backward" loss_backward(&REALS, &KNEE, losses::smooth_l1);
    "huber_loss" loss(&REALS, &KNEE, losses::huber);
    "huber_loss_backward" loss_backward(&REALS, &KNEE, losses::huber);
    "kl_div" kl_div(&POSITIVE, &REALS);
    "js_div" loss(&POSITIVE, &[], losses::js);
    "linear" linear();
    "quantized_mm" quantized_mm();
    "scaled_mm" scaled_mm();
    "scatter_add" scatter(&[], |old, moved| old + moved.iter().sum::<f64>());
    "scatter_reduce" scatter(&MEAN, |old, moved| (old + moved.iter().sum::<f64>()) / (moved.len() + 1) as f64);
    "index_add" slices(&[Given::Number(-0.5)], |old, moved| old - 0.5 * moved.iter().sum::<f64>());
}

of_dtypes! { INTEGERS INTEGER_CASES [I64 "i64", I32 "i32", I16 "i16", I8 "i8", U8 "u8"];
    "add" arithmetic((0.0, 50.0), |x, y| x + y, true);
    "mul" arithmetic((0.0, 11.0), |x, y| x * y, false);
    "maximum" arithmetic((0.0, 100.0), f64::max, false);
    "amin" reduce(|row| row.iter().copied().fold(f64::MAX, f64::min));
    "copy" cast();
    "sort" sort(Sort::Both);
    "argsort" sort(Sort::Indices);
    "topk" sort(Sort::Top);
    "cummax" running_extreme(false);
    "cummin" running_extreme(true);
    "searchsorted" searchsorted();
    "masked_scatter" masked_scatter();
    "scatter" scatter(&[], |old, moved| or_old(old, moved, |moved| moved[0]));
    "scatter_reduce" scatter(&LARGEST, |old, moved| or_old(old, moved, |moved| moved.iter().copied().fold(f64::MIN, f64::max)));
    "index_copy" slices(&[], |old, moved| or_old(old, moved, |moved| moved[0]));
    "index_fill" slices(&[Given::Number(5.0)], |old, moved| or_old(old, moved, |_| 5.0));
}

of_dtypes! { CASTS CAST_CASES [F32 "f32", F64 "f64", F16 "f16", BF16 "bf16", BOOL "bool"];
    "copy" cast();
}
