//! A small call of each operator, to ask a driver or the host kernels whether they take it.

use outrigger_device::DType;

use super::{ENTRIES, Entry};
use crate::call::{Argument, Call, Scalar, Tensor, Value};
use crate::registry::OperatorId;

/// Arguments that differ from the usual: sizes of tensors with an element type if it is not the one that is asked for,
/// numbers, and lists. Usual tensors are 4x6, usual numbers 1, and what may be left out is.
#[rustfmt::skip] // an operator is a line
const UNUSUAL: &[(&str, &str)] = &[
    ("cat", "out=8x6 scalars=0"),
    ("arange", "out=24 scalars=0,1"),
    ("argmax", "out=4x1:i64"),
    ("argmin", "out=4x1:i64"),
    ("addmm", "bias=6 a=4x5 b=5x6"),
    ("baddbmm", "bias=6 a=2x4x5 b=2x5x6 out=2x4x6"),
    ("addmv", "bias=4 a=4x6 x=6 out=4"),
    ("norm", "scalars=2"),
    ("layer_norm", "weight=6 bias=6 mean=4:stat rstd=4:stat scalars=1,0.5"),
    ("layer_norm_backward", "mean=4:stat rstd=4:stat weight=6 grad_a=4x6 grad_weight=6 grad_bias=6"),
    ("index_select", "indices=3:i64 out=4x3"),
    ("gather", "indices=4x3:i64 out=4x3"),
    ("nll_loss_forward", "scores=4x6 target=4:i64 weight=none loss=- total_weight=- scalars=1,-100"),
    ("nll_loss_backward", "grad=- target=4:i64 weight=none total_weight=- out=4x6 scalars=1,-100"),
    ("embedding_dense_backward", "grad=4x6x8 out=7x8"),
    ("embedding", "weight=7x8 out=4x6x8"),
    ("sgd_step", "scalars=1,0,0,0,0,0,1"),
    ("adam_step", "scalars=1,0.5,0.5,1,0,0,1"),
    ("adamw_step", "scalars=1,0.5,0.5,1,0,0,1"),
    ("clamp", "scalars=0,1"),
    ("hardtanh_backward", "scalars=0,1"),
    ("uniform", "scalars=0,1,7,0"),
    ("normal", "scalars=0,1,7,0"),
    ("bernoulli", "scalars=0.5,7,0"),
    ("poisson", "scalars=7,0"),
    ("binomial", "scalars=7,0"),
    ("standard_gamma", "scalars=7,0"),
    ("random_int", "scalars=0,9,7,0"),
    ("convolution", "input=2x4x6x6 weight=8x4x3x3 bias=8 stride=1,1 padding=0,0 dilation=1,1 output_padding=0,0 groups=1 out=2x8x4x4"),
    ("convolution_backward", "grad=2x8x4x4 input=2x4x6x6 weight=8x4x3x3 stride=1,1 padding=0,0 dilation=1,1 output_padding=0,0 groups=1 output_mask=1,1,1 grad_input=2x4x6x6 grad_weight=8x4x3x3 grad_bias=8"),
    ("attention", "query=2x4x3x8 key=2x4x5x8 value=2x4x5x8 dropout=0 out=2x4x3x8 logsumexp=2x4x3:stat"),
    ("attention_backward", "grad=2x4x3x8 query=2x4x3x8 key=2x4x5x8 value=2x4x5x8 out=2x4x3x8 logsumexp=2x4x3:stat dropout=0 grad_query=2x4x3x8 grad_key=2x4x5x8 grad_value=2x4x5x8 grad_mask=none"),
    ("native_batch_norm", "input=2x4x6 weight=4 bias=4 running_mean=4:stat running_var=4:stat training=1 out=2x4x6 mean=4:stat rstd=4:stat"),
    ("native_batch_norm_backward", "grad=2x4x6 input=2x4x6 weight=4 mean=4:stat rstd=4:stat training=1 output_mask=1,1,1 grad_input=2x4x6 grad_weight=4 grad_bias=4"),
    ("native_group_norm", "input=2x4x6 weight=4 bias=4 n=2 c=4 elements=6 groups=2 out=2x4x6 mean=2x2:stat rstd=2x2:stat"),
    ("native_group_norm_backward", "grad=2x4x6 input=2x4x6 mean=2x2:stat rstd=2x2:stat weight=4 n=2 c=4 elements=6 groups=2 output_mask=1,1,1 grad_input=2x4x6 grad_weight=4 grad_bias=4"),
    ("rms_norm", "normalized_shape=6 weight=6 rstd=4x1:stat"),
    ("rms_norm_backward", "normalized_shape=6 rstd=4x1:stat weight=6 output_mask=1,1 grad_input=4x6 grad_weight=6"),
    ("rms_norm_rotary", "input=2x3x4x8 weight=8 cos=3x2 sin=3x2 start=0 length=4 out=2x3x4x8"),
    ("max_pool2d", "input=2x4x6x6 kernel_size=2,2 stride=2,2 padding=0,0 dilation=1,1 out=2x4x3x3 indices=2x4x3x3:i64"),
    ("max_pool2d_backward", "grad=2x4x3x3 input=2x4x6x6 kernel_size=2,2 stride=2,2 padding=0,0 dilation=1,1 indices=2x4x3x3:i64 grad_input=2x4x6x6"),
    ("max_pool3d", "input=2x4x6x6 kernel_size=2,2,2 stride=2,2,2 padding=0,0,0 dilation=1,1,1 out=2x2x3x3 indices=2x2x3x3:i64"),
    ("max_pool3d_backward", "grad=2x2x3x3 input=2x4x6x6 kernel_size=2,2,2 stride=2,2,2 padding=0,0,0 dilation=1,1,1 indices=2x2x3x3:i64 grad_input=2x4x6x6"),
    ("avg_pool2d", "input=2x4x6x6 kernel_size=2,2 stride=2,2 padding=0,0 out=2x4x3x3"),
    ("avg_pool2d_backward", "grad=2x4x3x3 input=2x4x6x6 kernel_size=2,2 stride=2,2 padding=0,0 grad_input=2x4x6x6"),
    ("avg_pool3d", "input=2x4x6x6 kernel_size=2,2,2 stride=2,2,2 padding=0,0,0 out=2x2x3x3"),
    ("avg_pool3d_backward", "grad=2x2x3x3 input=2x4x6x6 kernel_size=2,2,2 stride=2,2,2 padding=0,0,0 grad_input=2x4x6x6"),
    ("adaptive_avg_pool2d", "input=2x4x6x6 output_size=3,3 out=2x4x3x3"),
    ("adaptive_avg_pool2d_backward", "grad=2x4x3x3 input=2x4x6x6 grad_input=2x4x6x6"),
    ("adaptive_max_pool2d", "input=2x4x6x6 output_size=3,3 out=2x4x3x3 indices=2x4x3x3:i64"),
    ("adaptive_max_pool2d_backward", "grad=2x4x3x3 input=2x4x6x6 indices=2x4x3x3:i64 grad_input=2x4x6x6"),
    ("topk", "k=2 dim=1 values=4x2 indices=4x2:i64"),
    ("searchsorted", "sorted=6 values=4 out=4"),
    ("index", "input=4x6 indices=3:i64 out=3x6"),
    ("index_put", "out=4x6 indices=3:i64 values=3x6"),
    ("scatter", "index=2x6:i64"),
    ("scatter_value", "index=2x6:i64"),
    ("scatter_add", "index=2x6:i64"),
    ("scatter_reduce", "index=2x6:i64 reduce=sum"),
    ("index_add", "index=2:i64 source=2x6"),
    ("index_copy", "index=2:i64 source=2x6"),
    ("index_fill", "index=2:i64"),
    ("masked_scatter", "mask=4x6:bool source=24"),
    ("embedding_bag", "weight=7x6 indices=8:i64 offsets=3:i64 padding_idx=-1 out=3x6 offset2bag=8:i64 bag_size=3:i64 max_indices=3:i64"),
    ("upsample_nearest1d", "input=2x4x6 output_size=12 out=2x4x12"),
    ("upsample_nearest2d", "input=2x4x3x3 output_size=6,6 out=2x4x6x6"),
    ("upsample_nearest2d_backward", "grad=2x4x6x6 output_size=6,6 input_size=2,4,3,3 grad_input=2x4x3x3"),
    ("upsample_nearest1d_backward", "grad=2x4x12 output_size=12 input_size=2,4,6 grad_input=2x4x6"),
    ("upsample_nearest3d", "input=2x4x3x3x3 output_size=6,6,6 out=2x4x6x6x6"),
    ("upsample_nearest3d_backward", "grad=2x4x6x6x6 output_size=6,6,6 input_size=2,4,3,3,3 grad_input=2x4x3x3x3"),
    ("upsample_linear1d_backward", "grad=2x4x12 output_size=12 input_size=2,4,6 grad_input=2x4x6"),
    ("upsample_trilinear3d", "input=2x4x3x3x3 output_size=6,6,6 out=2x4x6x6x6"),
    ("upsample_trilinear3d_backward", "grad=2x4x6x6x6 output_size=6,6,6 input_size=2,4,3,3,3 grad_input=2x4x3x3x3"),
    ("upsample_bicubic2d_backward", "grad=2x4x6x6 output_size=6,6 input_size=2,4,3,3 grad_input=2x4x3x3"),
    ("upsample_linear1d", "input=2x4x6 output_size=12 out=2x4x12"),
    ("upsample_bilinear2d", "input=2x4x3x3 output_size=6,6 out=2x4x6x6"),
    ("upsample_bilinear2d_backward", "grad=2x4x6x6 output_size=6,6 input_size=2,4,3,3 grad_input=2x4x3x3"),
    ("upsample_bicubic2d", "input=2x4x3x3 output_size=6,6 out=2x4x6x6"),
    ("binary_cross_entropy", "reduction=1 out=-"),
    ("binary_cross_entropy_backward", "grad=- reduction=1"),
    ("binary_cross_entropy_with_logits", "reduction=1 out=-"),
    ("smooth_l1_loss", "reduction=1 out=-"),
    ("smooth_l1_loss_backward", "grad=- reduction=1"),
    ("huber_loss", "reduction=1 out=-"),
    ("huber_loss_backward", "grad=- reduction=1"),
    ("kl_div", "reduction=1 out=-"),
    ("js_div", "reduction=1 out=-"),
    ("lstm_cell", "input_gates=2x12 hidden_gates=2x12 cell=2x3 hidden=2x3 workspace=2x12"),
    ("gru_cell", "input_gates=2x9 hidden_gates=2x9 hidden=2x3 workspace=2x15"),
    ("lstm_cell_backward", "grad_hidden=2x3 grad_cell=2x3 old_cell=2x3 cell=2x3 workspace=2x12 has_bias=1 grad_gates=2x12 grad_old_cell=2x3 grad_bias=12"),
    ("gru_cell_backward", "grad=2x3 workspace=2x15 has_bias=1 grad_input_gates=2x9 grad_hidden_gates=2x9 grad_hidden=2x3 grad_input_bias=9 grad_hidden_bias=9"),
    ("linear", "input=4x5 weight=6x5 bias=6 out=4x6"),
    ("scaled_mm", "a=4x16:f8 b=16x6:f8 scale_a=1:f32 scale_b=1:f32 bias=6 scale_result=none out=4x6"),
    ("quantized_mm", "input=4x8 weight=6x8:i8 scales=6x1 group=8 bits=8 out=4x6"),
];

/// A tensor of a sample.
#[derive(Clone, Debug)]
struct Given {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

/// A call of an operator, without memory.
#[derive(Clone, Debug)]
pub struct Sample {
    inputs: Vec<Given>,
    outputs: Vec<Given>,
    scalars: Vec<Scalar>,
    args: Vec<Argument<'static>>,
    lists: Vec<(usize, Vec<i64>)>,
}

impl Sample {
    /// The sample of an operator with elements of a type; `None` for an operator that is not of the catalog.
    pub fn new(id: OperatorId, dtype: DType) -> Option<Self> {
        let entry = ENTRIES.get(id.index() as usize)?;
        let name = entry.name.to_str().ok()?;
        let unusual = UNUSUAL.iter().find(|(known, _)| *known == name);
        let words = unusual.map_or("", |(_, words)| words);
        let maker = Maker {
            words: words
                .split_whitespace()
                .filter_map(|word| word.split_once('='))
                .collect(),
            dtype,
        };
        Some(maker.make(entry))
    }

    /// Gives `with` the call. Its addresses are right for every element type, and lead nowhere.
    pub fn with<R>(&self, with: impl FnOnce(&Call<'_>) -> R) -> R {
        fn tensor(one: &Given) -> Tensor<'_> {
            match one.dtype {
                DType::INVALID => Tensor::ABSENT,
                dtype => Tensor::new(1 << 20, dtype, &one.sizes, &one.strides),
            }
        }
        let inputs: Vec<_> = self.inputs.iter().map(tensor).collect();
        let outputs: Vec<_> = self.outputs.iter().map(tensor).collect();
        let mut args = self.args.clone();
        let mut lists = Vec::new();
        for (at, list) in &self.lists {
            let truths = args[*at] == Argument::Bool(true);
            lists.push((*at, truths, list));
        }
        let mut values: Vec<Value<'_>> = args.drain(..).map(Value::new).collect();
        for (at, truths, list) in lists {
            values[at] = Value::new(match truths {
                true => Argument::Bools(list),
                false => Argument::Ints(list),
            });
        }
        with(&Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars: &self.scalars,
            args: &values,
            ..Call::default()
        })
    }
}

struct Maker {
    words: Vec<(&'static str, &'static str)>,
    dtype: DType,
}

/// The parts of a text between commas that are in no brackets.
fn split(text: &'static str) -> Vec<&'static str> {
    let mut depth = 0;
    let between = |mark: char| {
        match mark {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        mark == ',' && depth == 0
    };
    let parts = text.split(between).map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

impl Maker {
    fn word(&self, key: &str) -> Option<&'static str> {
        let found = self.words.iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| *value)
    }

    /// A tensor of a row: its name, and perhaps the letters of its sizes and its element type.
    fn tensor(&self, text: &str) -> Given {
        let name = text.split([' ', '?', '*']).next().unwrap_or(text);
        let marked = text.split_once('(').map(|(_, rest)| rest);
        let mut dtype = match marked {
            Some(rest) if rest.starts_with("i64") => DType::I64,
            Some(rest) if rest.starts_with("bool") => DType::BOOL,
            _ => self.dtype,
        };
        let sizes = match (self.word(name), text.split_once('[')) {
            (Some("none"), _) => {
                dtype = DType::INVALID;
                Vec::new()
            }
            (Some(word), _) => {
                let (sizes, marked) = word.split_once(':').unwrap_or((word, ""));
                dtype = match marked {
                    "i64" => DType::I64,
                    "i8" => DType::I8,
                    "f8" => DType::F8E4M3,
                    "f32" => DType::F32,
                    "bool" => DType::BOOL,
                    "stat" if matches!(self.dtype, DType::F16 | DType::BF16) => DType::F32,
                    _ => dtype,
                };
                let numbers = sizes.split('x').filter_map(|size| size.parse().ok());
                numbers.collect()
            }
            (None, Some((_, letters))) => {
                let letters = letters.split(']').next().unwrap_or("");
                letters.split(',').filter_map(size_of_letter).collect()
            }
            (None, None) => vec![4, 6],
        };
        Given {
            strides: strides(&sizes),
            dtype,
            sizes,
        }
    }

    fn make(&self, entry: &'static Entry) -> Sample {
        let mut sample = Sample {
            inputs: Vec::new(),
            outputs: Vec::new(),
            scalars: Vec::new(),
            args: Vec::new(),
            lists: Vec::new(),
        };
        match entry.arguments {
            Some(arguments) => split(arguments)
                .into_iter()
                .for_each(|argument| self.argument(argument, &mut sample)),
            None => self.operands(entry, &mut sample),
        }
        let keepdim = entry.definition.contains("keepdim");
        for text in split(entry.outputs) {
            let name = text.split([' ', '?', '*']).next().unwrap_or(text);
            // The mean of `var`, and buffers that only some steps have.
            let left_out = text.contains('*') || text.contains('?') && entry.arguments.is_none();
            if left_out && self.word(name).is_none() {
                continue;
            }
            let mut output = self.tensor(text);
            if keepdim && self.word(name).is_none() {
                output.sizes = vec![4, 1];
                output.strides = vec![1, 1];
            }
            sample.outputs.push(output);
        }
        sample
    }

    /// Operands and scalars of an operator without a schema.
    fn operands(&self, entry: &'static Entry, sample: &mut Sample) {
        for text in split(entry.inputs) {
            match text {
                "input*" => sample.inputs.extend([self.tensor(text), self.tensor(text)]),
                _ if text.contains('*') => {}
                _ => sample.inputs.push(self.tensor(text)),
            }
        }
        let number = |text: &str| match text.parse() {
            Ok(whole) => Scalar::I64(whole),
            Err(_) => Scalar::F64(text.parse().unwrap_or(1.0)),
        };
        match self.word("scalars") {
            Some(list) => sample.scalars.extend(list.split(',').map(number)),
            None => {
                let needed = split(entry.scalars)
                    .into_iter()
                    .filter(|one| !one.contains('='));
                sample.scalars.extend(needed.map(|_| Scalar::I64(1)));
            }
        }
    }

    /// An argument of a schema: its name and its type.
    fn argument(&self, text: &'static str, sample: &mut Sample) {
        let (name, kind) = text.split_once(' ').unwrap_or((text, ""));
        let word = self.word(name);
        let number = |default: i64| word.and_then(|word| word.parse().ok()).unwrap_or(default);
        let argument = match kind {
            "T" => {
                sample.inputs.push(self.tensor(name));
                Argument::Input(sample.inputs.len() - 1)
            }
            "T?" if word.is_some_and(|word| word != "none") => {
                sample.inputs.push(self.tensor(name));
                Argument::Input(sample.inputs.len() - 1)
            }
            "T?[]" => {
                let first = sample.inputs.len();
                sample.inputs.push(self.tensor(name));
                Argument::Inputs(first..first + 1)
            }
            "W" | "W?" => {
                sample.outputs.push(self.tensor(name));
                Argument::Output(sample.outputs.len() - 1)
            }
            "n" => {
                let value = word.and_then(|word| word.parse().ok()).unwrap_or(1.0);
                sample.scalars.push(Scalar::F64(value));
                Argument::Scalar(sample.scalars.len() - 1)
            }
            "i" => Argument::Int(number(0)),
            "b" => Argument::Bool(number(0) != 0),
            "s" => Argument::String(c"sum"),
            "i[]" | "b[]" => {
                let list = word
                    .unwrap_or("")
                    .split(',')
                    .filter_map(|one| one.parse().ok());
                sample.lists.push((sample.args.len(), list.collect()));
                // `Sample::with` puts the list in its place.
                Argument::Bool(kind == "b[]")
            }
            _ => Argument::None,
        };
        sample.args.push(argument);
    }
}

fn size_of_letter(letter: &str) -> Option<i64> {
    Some(match letter.trim() {
        "b" => 2,
        "m" => 4,
        "k" => 5,
        "n" | "c" => 6,
        _ => return None,
    })
}

fn strides(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at] * sizes[at];
    }
    strides
}

#[cfg(test)]
mod tests {
    use outrigger_device::DType;

    use super::Sample;
    use crate::registry::{OperatorId, has_host_kernel, plan};

    #[test]
    fn host_kernels_take_their_samples() {
        for id in OperatorId::all().filter(|id| has_host_kernel(id.name())) {
            let taken = [DType::F32, DType::I64, DType::F16].map(|dtype| {
                let sample = Sample::new(id, dtype).unwrap();
                sample.with(|call| plan(id, call).map(drop))
            });
            assert!(
                taken.iter().any(Result::is_ok),
                "{}: {:?}",
                id.name().to_string_lossy(),
                taken[0]
            );
        }
    }
}
