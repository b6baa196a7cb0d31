//! Products of matrices: which calls cuBLASLt serves and how, an algorithm for each, and launches.
//!
//! cuBLASLt has matrices in columns, and the contract has them in any strides. A matrix whose rows are dense is one in
//! columns that is turned; so a result with dense rows is the product of the turned operands, the second one first.

use std::ffi::{c_int, c_void};

use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result, Sequence};

use crate::call::{Call, View};
use crate::cublaslt::{self as lt, Desc, Found, Layout, Lt, Preference};
use crate::cuda;
use crate::device::Device;
use crate::library::Handle;

/// Bytes of workspace that an algorithm may have.
const WORKSPACE: u64 = 32 << 20;

/// The alignment of addresses for the faster of two algorithms: the widest load of a thread.
const ALIGNED: u32 = 16;

/// A matrix in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    rows: u64,
    columns: u64,
    /// The distance from one column to the next.
    step: i64,
    /// The distance from one matrix of a batch to the next.
    batch_step: i64,
    /// Whether the turned matrix is wanted.
    is_turned: bool,
}

/// The bias that is added to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bias {
    None,
    Matrix(Columns),
    /// One row is added to all rows of the result.
    Row,
}

/// A product that cuBLASLt may have: the operands of a call without addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    dtype: c::otr_dtype_t,
    batches: i32,
    /// The operands are turned and in the other order, for a result with dense rows.
    swapped: bool,
    first: Columns,
    second: Columns,
    out: Columns,
    bias: Bias,
}

/// The names of the operators.
pub(crate) const NAMES: [&std::ffi::CStr; 4] = [c"mm", c"bmm", c"addmm", c"baddbmm"];

impl Shape {
    /// # Errors
    /// `OTR_ERR_UNSUPPORTED` with what there is not.
    pub(crate) fn of(call: &Call<'_>) -> Result<Self> {
        let no = |what: &str| Fault::unsupported(format!("{} with {what}", call.name()));
        let (with_bias, rank) = match NAMES.iter().position(|name| *name == call.name) {
            Some(0) => (false, 2),
            Some(1) => (false, 3),
            Some(2) => (true, 2),
            Some(_) => (true, 3),
            None => return Err(no("no product by this name")),
        };
        let inputs: Vec<View<'_>> = call.inputs()?;
        let outputs: Vec<View<'_>> = call.outputs()?;
        let (bias, a, b, out) = match (with_bias, &inputs[..], &outputs[..]) {
            (false, [a, b], [out]) => (None, a, b, out),
            (true, [bias, a, b], [out]) => (Some(bias), a, b, out),
            _ => return Err(no("another number of operands")),
        };
        let dtype = out.dtype;
        if compute_of(dtype).is_none() || inputs.iter().any(|input| input.dtype != dtype) {
            return Err(no("element types that cuBLASLt is not asked for"));
        }
        let of_rank = |view: &View<'_>| view.sizes.len() == rank;
        if ![a, b, out].into_iter().all(of_rank) {
            return Err(no("operands of another rank"));
        }
        let size = |view: &View<'_>, from_end: usize| view.sizes[rank - from_end];
        let (m, k, n) = (size(a, 2), size(a, 1), size(b, 1));
        let batches = if rank == 3 { out.sizes[0] } else { 1 };
        let fits = size(b, 2) == k && (size(out, 2), size(out, 1)) == (m, n);
        let same = rank == 2 || a.sizes[0] == batches && b.sizes[0] == batches;
        if !fits || !same || m.min(n).min(k).min(batches) == 0 {
            return Err(no("sizes that do not fit, or of 0"));
        }
        let batches = i32::try_from(batches).map_err(|_| no("too many matrices"))?;
        let layout = || no("strides that no matrix in rows or in columns has");
        // The result says which way the product goes.
        let plain = Columns::of(out, batches, false).ok_or_else(layout)?;
        let swapped = plain.is_turned;
        let turned = |view: &View<'_>| Columns::of(view, batches, swapped).ok_or_else(layout);
        let (first, second) = if swapped { (b, a) } else { (a, b) };
        let (first, second, out_columns) = (turned(first)?, turned(second)?, turned(out)?);
        if batches > 1 && out_columns.batch_step == 0 {
            return Err(layout());
        }
        let bias = match bias {
            None => Bias::None,
            Some(bias) => {
                let found = bias_of(bias, (out, batches), (swapped, out_columns));
                found.ok_or_else(|| no("such a bias"))?
            }
        };
        Ok(Self {
            dtype,
            batches,
            swapped,
            first,
            second,
            out: out_columns,
            bias,
        })
    }

    fn element(&self) -> u64 {
        match self.dtype {
            c::OTR_DTYPE_F64 => 8,
            c::OTR_DTYPE_F32 => 4,
            _ => 2,
        }
    }
}

impl Columns {
    /// The matrix of the last two dimensions; `swapped` says that the turned one is wanted. `None`: neither its rows nor
    /// its columns are dense.
    fn of(view: &View<'_>, batches: i32, swapped: bool) -> Option<Self> {
        let rank = view.sizes.len();
        let ([rows, columns], [down, right]) = (
            [view.sizes[rank - 2], view.sizes[rank - 1]],
            [view.strides[rank - 2], view.strides[rank - 1]],
        );
        let batch_step = if batches > 1 { view.strides[0] } else { 0 };
        // A step over one element is over nothing.
        let is_dense = |size: i64, stride: i64| size == 1 || stride == 1;
        let step = |other: i64, stride: i64, dense: i64| if other == 1 { dense } else { stride };
        let (lines, dense, step, in_rows) =
            if is_dense(columns, right) && (rows == 1 || down >= columns) {
                (rows, columns, step(rows, down, columns), true)
            } else if is_dense(rows, down) && (columns == 1 || right >= rows) {
                (columns, rows, step(columns, right, rows), false)
            } else {
                return None;
            };
        (batch_step >= 0).then_some(Self {
            rows: dense as u64,
            columns: lines as u64,
            step,
            batch_step,
            is_turned: in_rows != swapped,
        })
    }
}

/// The kind of a bias, by its sizes and those of the result.
fn bias_of(
    bias: &View<'_>,
    (out, batches): (&View<'_>, i32),
    (swapped, columns): (bool, Columns),
) -> Option<Bias> {
    if bias.sizes == out.sizes {
        let matrix = Columns::of(bias, batches, swapped).filter(|bias| !bias.is_turned);
        if let Some(matrix) = matrix {
            return Some(Bias::Matrix(matrix));
        }
    }
    let [m, n] = *out.sizes else {
        return None;
    };
    let (row, stride) = match (bias.sizes, bias.strides) {
        ([row], [stride]) | ([1, row], [_, stride]) => (*row, *stride),
        // A row that was broadcast.
        ([rows, row], [0, stride]) if *rows == m => (*row, *stride),
        _ => return None,
    };
    // cuBLASLt adds a vector to each column: of a result that is turned, to each row.
    let is_row = row == n && (n == 1 || stride == 1) && swapped && columns.step == n;
    is_row.then_some(Bias::Row)
}

/// Element type, type of the sums, and type of alpha and beta.
fn compute_of(dtype: c::otr_dtype_t) -> Option<(c_int, c_int, c_int)> {
    match dtype {
        c::OTR_DTYPE_F32 => Some((lt::R_32F, lt::COMPUTE_32F, lt::R_32F)),
        c::OTR_DTYPE_F64 => Some((lt::R_64F, lt::COMPUTE_64F, lt::R_64F)),
        c::OTR_DTYPE_F16 => Some((lt::R_16F, lt::COMPUTE_32F, lt::R_32F)),
        c::OTR_DTYPE_BF16 => Some((lt::R_16BF, lt::COMPUTE_32F, lt::R_32F)),
        _ => None,
    }
}

/// An object of cuBLASLt's, which is given back when it is dropped.
struct Owned {
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: cuBLASLt's descriptors are plain memory, which is read only after they were made.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by the function that belongs to this one, and used no more.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// An operator that was prepared.
pub(crate) struct Product {
    shape: Shape,
    lt: &'static Lt,
    first: Owned,
    second: Owned,
    bias: Option<Owned>,
    out: Owned,
    plain: Recipe,
    /// With a row that is added.
    with_row: Option<Recipe>,
}

/// Algorithms of one kind of product: for addresses of any alignment, and for aligned ones.
struct Recipe {
    any: Found,
    aligned: Option<Found>,
}

/// Addresses and numbers of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) bias: u64,
    pub(crate) out: u64,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) workspace: u64,
}

impl Product {
    /// Asks cuBLASLt for algorithms. The context of the device is entered.
    ///
    /// # Errors
    /// `OTR_ERR_UNSUPPORTED`, if it has none.
    pub(crate) fn new(handle: &Handle, shape: Shape) -> Result<Self> {
        let lt = handle.lt;
        let layout = |columns: &Columns| layout_of(lt, &shape, columns);
        let (first, second, out) = (
            layout(&shape.first)?,
            layout(&shape.second)?,
            layout(&shape.out)?,
        );
        let bias = match &shape.bias {
            Bias::Matrix(columns) => Some(layout(columns)?),
            _ => None,
        };
        let layouts = [
            first.raw,
            second.raw,
            bias.as_ref().map_or(out.raw, |bias| bias.raw),
            out.raw,
        ];
        let plain = Recipe::find(handle, &shape, layouts, false)?;
        let with_row = (shape.bias == Bias::Row)
            .then(|| Recipe::find(handle, &shape, layouts, true))
            .transpose()?;
        Ok(Self {
            shape,
            lt,
            first,
            second,
            bias,
            out,
            plain,
            with_row,
        })
    }

    /// Whether a launch reads an operand that is at no address.
    pub(crate) fn is_missing_one(&self, launch: &Launch) -> bool {
        let reads_bias = self.shape.bias != Bias::None && launch.beta != 0.0;
        [launch.a, launch.b, launch.out].contains(&0) || reads_bias && launch.bias == 0
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of workspace that a launch needs.
    pub(crate) fn workspace(&self) -> u64 {
        let recipes = std::iter::once(&self.plain).chain(&self.with_row);
        let found = recipes.flat_map(|one| std::iter::once(&one.any).chain(&one.aligned));
        found.map(|found| found.workspace as u64).max().unwrap_or(0)
    }

    /// Whether a launch takes more than one call.
    pub(crate) fn is_several(&self, launch: &Launch) -> bool {
        self.shape.bias == Bias::Row && launch.beta != 0.0 && launch.beta != 1.0
    }

    /// Puts a launch into a stream, whose context is entered.
    pub(crate) fn issue(
        &self,
        handle: &Handle,
        device: &Device,
        stream: cuda::Stream,
        launch: &Launch,
    ) -> Result {
        let (mut beta, mut addend, mut layout) = (launch.beta, launch.out, self.out.raw);
        let (mut recipe, mut row) = (&self.plain, None);
        let mut calls = Sequence::default();
        match (self.shape.bias, &self.bias, &self.with_row) {
            (Bias::None, ..) => beta = 0.0,
            (Bias::Row, _, Some(with_row)) if beta == 1.0 => {
                (beta, recipe, row) = (0.0, with_row, Some(launch.bias));
            }
            (Bias::Row, ..) if beta != 0.0 => self.broadcast(device, stream, launch, &mut calls)?,
            // With beta 0 it is not read, and may be anything (docs/operators.md).
            (Bias::Matrix(_), Some(bias), _) if beta != 0.0 => {
                (addend, layout) = (launch.bias, bias.raw);
            }
            _ => {}
        }
        // A call that is refused behind a broadcast has begun.
        let desc = desc_of(self.lt, &self.shape, row).map_err(|fault| calls.refused(fault))?;
        let (first, second) = if self.shape.swapped {
            (launch.b, launch.a)
        } else {
            (launch.a, launch.b)
        };
        let found = recipe.choose(first | second | addend | launch.out | row.unwrap_or(0));
        let numbers = Numbers::new(self.shape.dtype, launch.alpha, beta);
        // SAFETY: a live handle, descriptors and stream; the numbers are read during the call. R46, R47: the operands and
        // the workspace are live until the launch has finished.
        let launched = unsafe {
            (self.lt.matmul)(
                handle.raw,
                desc.raw,
                numbers.alpha(),
                first,
                self.first.raw,
                second,
                self.second.raw,
                numbers.beta(),
                addend,
                layout,
                launch.out,
                self.out.raw,
                &found.algorithm,
                launch.workspace,
                found.workspace,
                stream,
            )
        };
        calls.next(self.lt.check(launched, "cublasLtMatmul"))
    }

    /// Copies the row of the bias to all rows of the result, twice as many at each step.
    fn broadcast(
        &self,
        device: &Device,
        stream: cuda::Stream,
        launch: &Launch,
        calls: &mut Sequence,
    ) -> Result {
        let row = self.shape.out.rows * self.shape.element();
        let all = row * self.shape.out.columns;
        let mut copy = |to: u64, from: u64, size: u64| {
            // SAFETY: R46: ranges of the operands, which do not overlap.
            let copied = unsafe { (device.cuda.copy_within)(to, from, size as usize, stream) };
            calls.next(device.check(copied, "cuMemcpyDtoDAsync"))
        };
        copy(launch.out, launch.bias, row)?;
        let mut done = row;
        while done < all {
            let more = done.min(all - done);
            copy(launch.out + done, launch.out, more)?;
            done += more;
        }
        Ok(())
    }
}

/// Alpha and beta in the type that cuBLASLt takes.
enum Numbers {
    Single([f32; 2]),
    Double([f64; 2]),
}

impl Numbers {
    fn new(dtype: c::otr_dtype_t, alpha: f64, beta: f64) -> Self {
        if dtype == c::OTR_DTYPE_F64 {
            Self::Double([alpha, beta])
        } else {
            Self::Single([alpha as f32, beta as f32])
        }
    }

    fn place(&self, at: usize) -> *const c_void {
        match self {
            Self::Single(numbers) => std::ptr::from_ref(&numbers[at]).cast(),
            Self::Double(numbers) => std::ptr::from_ref(&numbers[at]).cast(),
        }
    }

    fn alpha(&self) -> *const c_void {
        self.place(0)
    }

    fn beta(&self) -> *const c_void {
        self.place(1)
    }
}

impl Recipe {
    fn find(handle: &Handle, shape: &Shape, layouts: [Layout; 4], with_row: bool) -> Result<Self> {
        let of = |alignment: u32| {
            // cuBLASLt takes the alignment of the row from its address, which is not known yet.
            let row = with_row.then_some(u64::from(alignment));
            let desc = desc_of(handle.lt, shape, row)?;
            find(handle, desc.raw, layouts, alignment)
        };
        Ok(Self {
            any: of(shape.element() as u32)?,
            aligned: of(ALIGNED).ok(),
        })
    }

    /// The algorithm for addresses, all of which are or-ed together.
    fn choose(&self, addresses: u64) -> &Found {
        match &self.aligned {
            Some(aligned) if addresses.is_multiple_of(u64::from(ALIGNED)) => aligned,
            _ => &self.any,
        }
    }
}

/// The preference for algorithms: the workspace that they may have, and the alignment that they may count on.
fn preference_of(lt: &Lt, alignment: u32) -> Result<Owned> {
    let mut raw: Preference = std::ptr::null_mut();
    // SAFETY: a place for the object.
    let made = unsafe { (lt.preference_create)(&mut raw) };
    lt.check(made, "cublasLtMatmulPreferenceCreate")?;
    let preference = Owned {
        raw,
        destroy: lt.preference_destroy,
    };
    let how = (lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    set(lt, how, raw, lt::PREFERENCE_WORKSPACE, &WORKSPACE)?;
    set(lt, how, raw, lt::PREFERENCE_REDUCTION, &lt::REDUCTION_EXACT)?;
    for matrix in 0..4 {
        set(lt, how, raw, lt::PREFERENCE_ALIGNMENT + matrix, &alignment)?;
    }
    Ok(preference)
}

/// The algorithm that cuBLASLt takes for the best one.
fn find(handle: &Handle, desc: Desc, layouts: [Layout; 4], alignment: u32) -> Result<Found> {
    let lt = handle.lt;
    let preference = preference_of(lt, alignment)?;
    let [a, b, added, out] = layouts;
    let (mut found, mut count) = (Found::NONE, 0);
    // SAFETY: live objects, and places for one result and for their number.
    let asked = unsafe {
        (lt.heuristic)(
            handle.raw,
            desc,
            a,
            b,
            added,
            out,
            preference.raw,
            1,
            &mut found,
            &mut count,
        )
    };
    lt.check(asked, "cublasLtMatmulAlgoGetHeuristic")?;
    if count == 0 {
        found.state = Found::NONE.state;
    }
    lt.check(found.state, "cublasLtMatmulAlgoGetHeuristic")?;
    Ok(found)
}

/// Sets an attribute of an object of cuBLASLt's.
fn set<T: Copy>(
    lt: &Lt,
    (function, what): (
        unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int,
        &str,
    ),
    object: *mut c_void,
    attribute: c_int,
    value: &T,
) -> Result {
    let place = std::ptr::from_ref(value).cast();
    // SAFETY: a live object, and a value of the type that the attribute has.
    lt.check(
        unsafe { function(object, attribute, place, size_of::<T>()) },
        what,
    )
}

fn layout_of(lt: &Lt, shape: &Shape, columns: &Columns) -> Result<Owned> {
    let Some((dtype, ..)) = compute_of(shape.dtype) else {
        return Err(Fault::unsupported(
            "an element type that cuBLASLt is not asked for",
        ));
    };
    let mut raw = std::ptr::null_mut();
    // SAFETY: a place for the object.
    let made =
        unsafe { (lt.layout_create)(&mut raw, dtype, columns.rows, columns.columns, columns.step) };
    lt.check(made, "cublasLtMatrixLayoutCreate")?;
    let layout = Owned {
        raw,
        destroy: lt.layout_destroy,
    };
    if shape.batches > 1 {
        let what = "cublasLtMatrixLayoutSetAttribute";
        set(
            lt,
            (lt.layout_set, what),
            raw,
            lt::LAYOUT_BATCH_COUNT,
            &shape.batches,
        )?;
        let step = &columns.batch_step;
        set(
            lt,
            (lt.layout_set, what),
            raw,
            lt::LAYOUT_BATCH_STRIDE,
            step,
        )?;
    }
    Ok(layout)
}

/// The description of a product; with the address of a row that is added.
fn desc_of(lt: &Lt, shape: &Shape, row: Option<u64>) -> Result<Owned> {
    let Some((_, compute, scale)) = compute_of(shape.dtype) else {
        return Err(Fault::unsupported(
            "an element type that cuBLASLt is not asked for",
        ));
    };
    let mut raw = std::ptr::null_mut();
    // SAFETY: a place for the object.
    let made = unsafe { (lt.desc_create)(&mut raw, compute, scale) };
    lt.check(made, "cublasLtMatmulDescCreate")?;
    let desc = Owned {
        raw,
        destroy: lt.desc_destroy,
    };
    let how = (lt.desc_set, "cublasLtMatmulDescSetAttribute");
    if shape.first.is_turned {
        set(lt, how, raw, lt::DESC_TRANSPOSE_A, &lt::TRANSPOSE)?;
    }
    if shape.second.is_turned {
        set(lt, how, raw, lt::DESC_TRANSPOSE_B, &lt::TRANSPOSE)?;
    }
    if let Some(row) = row {
        set(lt, how, raw, lt::DESC_EPILOGUE, &lt::EPILOGUE_BIAS)?;
        set(lt, how, raw, lt::DESC_BIAS_POINTER, &row)?;
    }
    Ok(desc)
}

#[cfg(test)]
mod tests {
    use outrigger_contract as c;

    use super::{ALIGNED, Bias, Columns, Shape, desc_of, layout_of, preference_of};
    use crate::cublaslt;

    /// The real library needs no device for this. `OUTRIGGER_TEST_CUBLASLT` names it.
    #[test]
    fn the_real_library_takes_what_is_said_of_matrices_and_products() {
        let Ok(path) = std::env::var("OUTRIGGER_TEST_CUBLASLT") else {
            return;
        };
        let lt = cublaslt::load(Some(&path)).unwrap();
        let columns = Columns {
            rows: 4,
            columns: 4,
            step: 8,
            batch_step: 32,
            is_turned: true,
        };
        let types = [
            c::OTR_DTYPE_F32,
            c::OTR_DTYPE_F64,
            c::OTR_DTYPE_F16,
            c::OTR_DTYPE_BF16,
        ];
        for dtype in types {
            let shape = Shape {
                dtype,
                batches: 2,
                swapped: true,
                first: columns,
                second: columns,
                out: columns,
                bias: Bias::Row,
            };
            layout_of(lt, &shape, &columns).unwrap();
            desc_of(lt, &shape, Some(u64::from(ALIGNED))).unwrap();
            preference_of(lt, shape.element() as u32).unwrap();
        }
        // An attribute of another size is refused, so that the above says something.
        let of_another_size = |value: &u64| {
            let preference = preference_of(lt, ALIGNED).unwrap();
            let how = (lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
            super::set(
                lt,
                how,
                preference.raw,
                cublaslt::PREFERENCE_REDUCTION,
                value,
            )
        };
        assert!(
            of_another_size(&1)
                .unwrap_err()
                .text()
                .contains("answered 7")
        );
    }
}
