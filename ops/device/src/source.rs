//! Texts of kernels, and what turns one into source for a driver's compiler.

use std::ffi::CStr;
use std::fmt::{Display, Write};

use outrigger_device::sys;

/// The dialect, as a vendor gets it.
pub(crate) const DIALECT: &str = concat!(
    include_str!("../../../include/outrigger/dialect.h"),
    include_str!("../../../include/outrigger/dialect_functions.h")
);

/// The text that all kernels share.
const COMMON: &str = include_str!("../kernels/common.c");

/// The text that kernels with a register type share. It stands behind the definitions.
const FUNCTIONS: &str = include_str!("../kernels/functions.c");

/// A language that a driver compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceFormat {
    /// OpenCL C 1.2.
    OpenClC,
    /// CUDA C.
    CudaC,
}

impl SourceFormat {
    /// All of them, the preferred one first.
    pub(crate) const ALL: [Self; 2] = [Self::OpenClC, Self::CudaC];

    /// The number of the driver contract.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::OpenClC => sys::OTR_CODE_OPENCL_C,
            Self::CudaC => sys::OTR_CODE_CUDA_C,
        }
    }
}

macro_rules! texts {
    ($($name:ident $label:literal;)*) => {
        /// A text in the folder `kernels`. The kernel in it has the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Text {
            $($name),*
        }

        impl Text {
            /// The name of the kernel.
            pub(crate) fn label(self) -> &'static CStr {
                let label = match self {
                    $(Self::$name => concat!($label, "\0")),*
                };
                CStr::from_bytes_with_nul(label.as_bytes()).unwrap_or_default()
            }

            fn body(self) -> &'static str {
                match self {
                    $(Self::$name => include_str!(concat!("../kernels/", $label, ".c"))),*
                }
            }
        }
    };
}
texts! {
    Elementwise "elementwise";
    Reduce "reduce";
    Matmul "matmul";
    Softmax "softmax";
    RowNorm "row_norm";
    BatchNorm "batch_norm";
    Optimizer "optimizer";
    NllLoss "nll_loss";
    Indexed "indexed";
    Picked "picked";
    Sort "sort";
    Scan "scan";
    GroupNorm "group_norm";
    Resample "resample";
    Loss "loss";
    Cell "cell";
    Bag "bag";
    Quantized "quantized";
    Pool "pool";
    Attention "attention";
    Generate "generate";
    Fill "fill";
    Move "move";
}

impl Text {
    /// A hash of all that a driver gets of the text but definitions.
    pub(crate) fn hash(self) -> String {
        outrigger_tuner::hash(&[DIALECT, COMMON, FUNCTIONS, self.body()])
    }
}

/// Definitions in front of a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions(String);

impl Definitions {
    pub(crate) fn set(&mut self, name: impl Display, value: impl Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "#define {name} {value}");
        self
    }

    /// The key that tells two specializations of a text apart.
    pub(crate) fn key(&self) -> &str {
        &self.0
    }

    /// The source of a text with these definitions, for groups of a size.
    pub(crate) fn source(&self, text: Text, group: u32) -> String {
        let first = format!("#define OTR_GROUP_SIZE {group}\n");
        [&first, DIALECT, COMMON, &self.0, FUNCTIONS, text.body()].concat()
    }
}
