//! The launch of a product of matrices: tiles, definitions and words of `kernels/matmul.c`.

use std::sync::Arc;

use outrigger_device::DType;
use outrigger_ops::Scalar;
use outrigger_tuner::Question;
use serde::{Deserialize, Serialize};

use crate::call::{Result, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::tune::Work;
use crate::work::Launch;

/// The way in which the second matrix is gathered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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

/// A product: sizes, strides, and what follows it. Strides are pairs of row and column. What follows it is not measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    #[serde(skip)]
    pub(crate) bias: Option<([i64; 2], [i64; 2])>,
    #[serde(skip)]
    pub(crate) residual: Option<[i64; 2]>,
    #[serde(skip)]
    pub(crate) activation: &'static str,
    pub(crate) gather: Option<Gather>,
}

/// The element type of the operands, and that of the result.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(from = "[u32; 2]", into = "[u32; 2]")]
pub(crate) struct DType2(pub(crate) DType, pub(crate) DType);

impl From<[u32; 2]> for DType2 {
    fn from([operands, result]: [u32; 2]) -> Self {
        Self(DType(operands), DType(result))
    }
}

impl From<DType2> for [u32; 2] {
    fn from(both: DType2) -> Self {
        [both.0.0, both.1.0]
    }
}

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

/// The part that a group computes: sizes along m, n and k, and what an item has of it in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    m: i64,
    n: i64,
    k: i64,
    rows: i64,
    columns: i64,
    /// The numbers of a vector, where a thread runs a group.
    lanes: i64,
}

impl Tile {
    const fn new(m: i64, n: i64, k: i64, rows: i64, columns: i64) -> Self {
        Self {
            m,
            n,
            k,
            rows,
            columns,
            lanes: columns,
        }
    }

    /// The same in vectors of so many numbers, at most.
    fn of_lanes(self, lanes: i64) -> Self {
        Self {
            lanes: lanes.min(self.columns),
            ..self
        }
    }

    /// The name among the candidates.
    fn name(self) -> String {
        let Self {
            m,
            n,
            k,
            rows,
            columns,
            lanes,
        } = self;
        let vectors = if lanes == columns {
            String::new()
        } else {
            format!(" by {lanes}")
        };
        format!("{m}x{n}x{k}, {rows}x{columns}{vectors}")
    }

    /// Whether the device can run it.
    fn fits(self, device: &Device, class: Class, gathers: bool) -> bool {
        let blocks = (self.m / self.rows) * (self.n / self.columns);
        let group = i64::from(device.group());
        blocks % group == 0 && device.has_local(self.local(class, gathers) as u32)
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

/// Numbers of a vector, and rows of two vectors: so many that sums and operands fill 16 registers of 32 bytes.
fn lanes(class: Class) -> i64 {
    if class.bytes() == 8 { 4 } else { 8 }
}
const ROWS: i64 = 6;

/// The tile where a thread runs a group: rows of sums are vectors, and what is packed of both matrices stays in the caches of
/// a core.
fn serial_tile(device: &Device, class: Class, product: &Product) -> Tile {
    let [m, n, _] = product.sizes;
    let columns = if n <= 4 { 4 } else { 2 * lanes(class) };
    if product.work() < LEAST_TUNED {
        // One tile for all small products: what a text costs is that it is compiled.
        let n = if n <= 4 { 4 } else { 64 };
        return Tile::new(24, n, 128, ROWS, columns).of_lanes(lanes(class));
    }
    // A wider tile packs the first matrix for more columns.
    let (mut tm, mut tn) = (at_least(m, &[24, 48, 96]), at_least(n, &[columns, 64, 128]));
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
    while tiles(tm, tn) < i64::from(device.units()) && (tm > 24 || tn > 32) {
        if tm >= tn || tn <= 32 {
            tm /= 2
        } else {
            tn /= 2
        }
    }
    Tile::new(tm, tn.max(columns), 256, ROWS, columns).of_lanes(lanes(class))
}

/// The tiles that come into question, the default first.
fn tiles(device: &Device, class: Class, product: &Product) -> Vec<Tile> {
    let first = match device.group() {
        1 => serial_tile(device, class, product),
        // 256 items with a square of 4, or fewer with a smaller one.
        256.. => Tile::new(64, 64, 16, 4, 4),
        64.. => Tile::new(32, 32, 16, 4, 4),
        _ => Tile::new(16, 16, 16, 4, 4),
    };
    let Tile {
        m,
        n,
        k,
        rows,
        columns,
        lanes,
    } = first;
    let others = match device.group() {
        1 => [
            Tile::new(m, n, k / 2, rows, columns).of_lanes(lanes),
            Tile::new(m, 2 * n, k, rows, columns).of_lanes(lanes),
            Tile::new(2 * m, n, k, rows, columns).of_lanes(lanes),
            // For 32 registers, and for longer vectors.
            Tile::new(2 * m, n, k, 2 * rows, columns).of_lanes(lanes),
            Tile::new(2 * m, n, k, 2 * rows, columns),
            Tile::new(m, n.max(2 * columns), k, rows, 2 * columns).of_lanes(2 * lanes),
        ],
        _ => [
            Tile::new(m, n, 2 * k, rows, columns),
            Tile::new(2 * m, n, k, 2 * rows, columns),
            Tile::new(2 * m, 2 * n, k, 2 * rows, 2 * columns),
            Tile::new(2 * m, 2 * n, k / 2, 2 * rows, 2 * columns),
            Tile::new(2 * m, n, k, rows, columns),
            Tile::new(m, n, k / 2, rows, columns),
        ],
    };
    let mut tiles = vec![first];
    for tile in others {
        if !tiles.contains(&tile) {
            tiles.push(tile);
        }
    }
    tiles.retain(|tile| tile.fits(device, class, product.gather.is_some()));
    tiles
}

/// A product with fewer multiplications than this is not tuned, and has no tile of its own: a launch takes longer.
const LEAST_TUNED: i64 = 1 << 18;

impl Product {
    /// A product of dense matrices.
    pub(crate) fn dense(dtype: DType, [m, n, k]: [i64; 3]) -> Self {
        Self {
            dtype: DType2(dtype, dtype),
            sizes: [m, n, k],
            batches: [1, 1],
            a: [k, 1],
            b: [n, 1],
            c: [n, 1],
            ..Self::default()
        }
    }

    /// The question which tile is the best, and the names of the tiles.
    pub(crate) fn variants(&self, device: &Device) -> Result<(Question, Vec<String>)> {
        let tiles = tiles(device, device.class(self.dtype.0)?, self);
        let names = tiles.iter().map(|tile| tile.name()).collect();
        Ok((self.question(device), names))
    }

    /// Sizes are rounded up to powers of two.
    fn question(&self, device: &Device) -> Question {
        let about = |size: i64| size.unsigned_abs().max(1).next_power_of_two();
        let [m, n, k] = self.sizes.map(about);
        let batches = about(self.batches[0].saturating_mul(self.batches[1]));
        let mut class = format!("{m}x{n}x{k}, {batches} times");
        let operator = match &self.gather {
            Some(gather) if gather.divides => "convolution, divided",
            Some(_) => "convolution",
            None => {
                class += if self.a[1] == 1 {
                    ", a"
                } else {
                    ", a transposed"
                };
                class += if self.b[1] == 1 {
                    ", b"
                } else {
                    ", b transposed"
                };
                "matmul"
            }
        };
        device.question(Text::Matmul, operator, class, self.dtype.0)
    }

    /// The number of elements that the first matrix, the second one and the result reach over. Strides are not
    /// negative.
    pub(crate) fn reach(&self) -> [i64; 3] {
        let [m, n, k] = self.sizes;
        let last = |sizes: &[i64], strides: &[i64]| -> i64 {
            sizes
                .iter()
                .zip(strides)
                .map(|(size, stride)| (size - 1).max(0) * stride)
                .sum()
        };
        let batched = |batch: [i64; 2]| last(&self.batches, &batch) + 1;
        let (a, b, c) = match &self.gather {
            None => (
                last(&[m, k], &self.a),
                last(&[k, n], &self.b),
                last(&[m, n], &self.c),
            ),
            Some(gather) => {
                let four = |total: i64, three: [i64; 3]| {
                    let [d, h, w] = three;
                    [total / (d * h * w).max(1), d, h, w]
                };
                let (of_n, of_k) = (four(n, gather.n_sizes), four(k, gather.k_sizes));
                (
                    last(&[m], &self.a[..1]) + last(&of_k, &gather.a_k),
                    last(&[of_n[0], of_k[0]], &[gather.n_first, gather.k_first])
                        + last(&gather.limit, &gather.place),
                    last(&[m], &self.c[..1]) + last(&of_n, &gather.c_n),
                )
            }
        };
        [
            a + batched(self.a_batch),
            b + batched(self.b_batch),
            c + batched(self.c_batch),
        ]
    }

    /// The number of multiplications.
    fn work(&self) -> i64 {
        let sizes = self.sizes.iter().chain(&self.batches);
        sizes.fold(1, |work: i64, size| work.saturating_mul(*size))
    }

    /// The tile to use.
    fn tile(&self, device: &Device, class: Class) -> Result<Tile> {
        let tiles = tiles(device, class, self);
        let chosen = if self.work() < LEAST_TUNED {
            0
        } else {
            let names: Vec<_> = tiles.iter().map(|tile| tile.name()).collect();
            device.choose(&self.question(device), &names, || {
                Work::Product(self.clone())
            })
        };
        match tiles.get(chosen) {
            Some(tile) => Ok(*tile),
            None => unsupported(
                "no tile of a product fits the groups and the local memory of the device",
            ),
        }
    }

    pub(crate) fn plan(&self, device: &Device) -> Result<Multiply> {
        let class = device.class(self.dtype.0)?;
        let [m, n, k] = self.sizes;
        let batches = self.batches[0].saturating_mul(self.batches[1]);
        let mut words: Vec<i64> = vec![m, n, k, self.batches[1].max(1)];
        let (bias, bias_batch) = self.bias.unwrap_or_default();
        for pair in [
            self.a,
            self.b,
            self.a_batch,
            self.b_batch,
            self.c,
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
        let tile = self.tile(device, class)?;
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
            .set("RN", tile.columns)
            .set("LANES", tile.lanes);
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

/// The addresses of the operands of a product. Those that are not there are 0.
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
