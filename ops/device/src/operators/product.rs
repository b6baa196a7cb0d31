//! The launch of a product of matrices: tiles, definitions and words of `kernels/matmul.c`.

use std::sync::Arc;

use outrigger_device::DType;
use outrigger_ops::Scalar;

use crate::call::{Result, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::Launch;

/// How the second matrix is gathered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gather {
    pub(crate) divides: bool,
    pub(crate) n_sizes: [i64; 3],
    pub(crate) k_sizes: [i64; 3],
    pub(crate) n_factor: [i64; 3],
    pub(crate) k_factor: [i64; 3],
    pub(crate) shift: [i64; 3],
    pub(crate) divisor: [i64; 3],
    pub(crate) limit: [i64; 3],
    pub(crate) place: [i64; 3],
    pub(crate) n_first: i64,
    pub(crate) k_first: i64,
    pub(crate) a_k: [i64; 4],
    pub(crate) c_n: [i64; 4],
}

/// A product: sizes, strides, and what follows it. Strides are pairs of row and column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Product {
    pub(crate) dtype: DType2,
    pub(crate) sizes: [i64; 3],
    /// Batches in two dimensions.
    pub(crate) batches: [i64; 2],
    pub(crate) a: [i64; 2],
    pub(crate) b: [i64; 2],
    pub(crate) c: [i64; 2],
    pub(crate) a_batch: [i64; 2],
    pub(crate) b_batch: [i64; 2],
    pub(crate) c_batch: [i64; 2],
    pub(crate) bias: Option<([i64; 2], [i64; 2])>,
    pub(crate) residual: Option<[i64; 2]>,
    pub(crate) activation: &'static str,
    pub(crate) gather: Option<Gather>,
}

/// The element type of the operands, and that of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DType2(pub(crate) DType, pub(crate) DType);

impl Default for DType2 {
    fn default() -> Self {
        Self(DType::F32, DType::F32)
    }
}

/// A product as a launch.
pub(crate) struct Multiply {
    kernel: Option<Arc<Kernel>>,
    groups: u32,
    words: Vec<u64>,
    class: Class,
}

/// The most words of a launch.
const WORDS: usize = 20 + 37 + 2;

/// What a group computes: sizes along m, n and k, and what an item has of it in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    m: i64,
    n: i64,
    k: i64,
    rows: i64,
    columns: i64,
}

impl Tile {
    const fn new(m: i64, n: i64, k: i64, rows: i64, columns: i64) -> Self {
        Self {
            m,
            n,
            k,
            rows,
            columns,
        }
    }

    /// Bytes of local memory of a group.
    fn local(self, class: Class, gathers: bool) -> i64 {
        let of_places = if gathers {
            32 * self.n + 28 * self.k
        } else {
            0
        };
        (self.m * (self.k + 1) + self.k * self.n) * class.bytes() as i64 + of_places
    }
}

/// The smallest of the sizes that is not below `n`, or the last one.
fn at_least(n: i64, sizes: &[i64]) -> i64 {
    let fits = sizes.iter().find(|size| **size >= n);
    fits.or(sizes.last()).copied().unwrap_or(n)
}

/// The tile where a thread runs a group: rows of sums are vectors, and what is packed of both matrices stays in the caches of
/// a core.
fn serial_tile(device: &Device, class: Class, product: &Product) -> Tile {
    let [m, n, _] = product.sizes;
    let vector = if class.bytes() == 8 { 8 } else { 16 };
    let columns = if n <= 4 { 4 } else { vector };
    // A wider tile packs the first matrix for more columns.
    let widest = if product.gather.is_some() { 128 } else { 64 };
    let (mut tm, mut tn) = (
        at_least(m, &[8, 32, 64, 128]),
        at_least(n, &[columns, 64, widest]),
    );
    // Each thread of the device needs a group.
    let batches = product.batches[0].saturating_mul(product.batches[1]);
    let tiles = |tm: i64, tn: i64| {
        let (down, across) = (
            m.unsigned_abs().div_ceil(tm as u64),
            n.unsigned_abs().div_ceil(tn as u64),
        );
        (down as i64)
            .saturating_mul(across as i64)
            .saturating_mul(batches)
    };
    while tiles(tm, tn) < i64::from(device.units()) && tm.max(tn) > 32 {
        if tm >= tn { tm /= 2 } else { tn /= 2 }
    }
    Tile::new(tm, tn.max(columns), 128, 8, columns)
}

/// The default tile.
fn tile(device: &Device, class: Class, product: &Product) -> Tile {
    match device.group() {
        1 => serial_tile(device, class, product),
        // 256 items with a square of 4, or fewer with a smaller one.
        256.. => Tile::new(64, 64, 16, 4, 4),
        64.. => Tile::new(32, 32, 16, 4, 4),
        _ => Tile::new(16, 16, 16, 4, 4),
    }
}

impl Product {
    pub(crate) fn plan(&self, device: &Device) -> Result<Multiply> {
        let class = device.class(self.dtype.0)?;
        let [m, n, k] = self.sizes;
        let batches = self.batches[0].saturating_mul(self.batches[1]);
        let mut words: Vec<i64> = vec![m, n, k, self.batches[1].max(1)];
        let (bias, bias_batch) = self.bias.unwrap_or_default();
        for pair in [
            self.a,
            self.b,
            self.c,
            self.a_batch,
            self.b_batch,
            self.c_batch,
            bias,
            bias_batch,
        ] {
            words.extend(pair);
        }
        words.extend(self.residual.unwrap_or_default());
        let mut multiply = Multiply {
            kernel: None,
            groups: 0,
            words: Vec::new(),
            class,
        };
        if m == 0 || n == 0 || batches == 0 {
            return Ok(multiply);
        }
        const MOST: i64 = 1 << 30;
        if m > MOST || n > MOST || k > MOST {
            return unsupported("a product of matrices of more than 2^30 rows or columns");
        }
        let tile = tile(device, class, self);
        let items = (tile.m / tile.rows) * (tile.n / tile.columns);
        if items < i64::from(device.group()) {
            return unsupported("groups of this size");
        }
        if !device.has_local(tile.local(class, self.gather.is_some()) as u32) {
            return unsupported("the device has too little local memory for a product of matrices");
        }
        let mut definitions = Definitions::default();
        definitions
            .set("A", element(self.dtype.0))
            .set("OUT", element(self.dtype.1));
        definitions
            .set("T", class.name())
            .set("FLOATS", i32::from(class.is_float()));
        definitions
            .set("TM", tile.m)
            .set("TN", tile.n)
            .set("TK", tile.k)
            .set("RM", tile.rows)
            .set("RN", tile.columns);
        definitions.set("A_DENSE", i32::from(self.a[1] == 1));
        definitions.set("B_DENSE", i32::from(self.b[1] == 1));
        definitions.set("BIAS", i32::from(self.bias.is_some()));
        definitions.set("RESIDUAL", i32::from(self.residual.is_some()));
        let activation = if self.activation.is_empty() {
            "(x)"
        } else {
            self.activation
        };
        definitions.set("ACTIVATION(x)", activation);
        definitions.set("GATHER", i32::from(self.gather.is_some()));
        if let Some(gather) = &self.gather {
            definitions.set("DIVIDES", i32::from(gather.divides));
            for three in [
                gather.n_sizes,
                gather.k_sizes,
                gather.n_factor,
                gather.k_factor,
                gather.shift,
                gather.divisor,
                gather.limit,
                gather.place,
            ] {
                words.extend(three);
            }
            words.extend([gather.n_first, gather.k_first]);
            words.extend(gather.a_k);
            words.extend(gather.c_n);
        }
        multiply.words = words.iter().map(|word| *word as u64).collect();
        let takes = Parameters {
            addresses: 5,
            words: words.len() + 2,
        };
        multiply.kernel = Some(device.kernel(Text::Matmul, definitions, takes)?);
        let tiles = i64::from(groups(m, tile.m)?).saturating_mul(i64::from(groups(n, tile.n)?));
        multiply.groups = groups(tiles.saturating_mul(batches), 1)?;
        Ok(multiply)
    }
}

/// Where the operands of a product are. Those that are not there are 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operands {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) bias: u64,
    pub(crate) residual: u64,
    pub(crate) out: u64,
}

impl Multiply {
    pub(crate) fn run(
        &self,
        launch: &mut Launch<'_>,
        operands: Operands,
        alpha: Scalar,
        beta: Scalar,
    ) -> std::result::Result<(), i32> {
        let Some(kernel) = &self.kernel else {
            return Ok(());
        };
        let Operands {
            a,
            b,
            bias,
            residual,
            out,
        } = operands;
        // A pointer that is not read leads somewhere all the same.
        let or = |address: u64| if address == 0 { out } else { address };
        let addresses = [or(a), or(b), or(bias), or(residual), out];
        let mut words = [0; WORDS];
        let count = self.words.len();
        words[..count].copy_from_slice(&self.words);
        words[count] = self.class.word(alpha);
        words[count + 1] = self.class.word(beta);
        launch.run(kernel, self.groups, &addresses, &words[..count + 2])
    }
}
