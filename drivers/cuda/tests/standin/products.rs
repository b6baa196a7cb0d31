//! cuBLASLt's part of the stand-in. It multiplies in f64, one element after the other.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

use half::{bf16, f16};

use crate::calls::{api, misuse};
use crate::machine::{Context, working};
use crate::memory::device;
use crate::streams::{Stream, add, attempt, live, remove, submit};

const NOT_SUPPORTED: c_int = 15;
/// Bytes of workspace of the algorithm for aligned addresses.
const WORKSPACE: usize = 4096;

pub(crate) struct Handle(&'static Context);

#[derive(Clone, Copy)]
struct Description {
    compute: c_int,
    scale: c_int,
    turned: [c_int; 2],
    epilogue: u32,
    row: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    dtype: c_int,
    rows: u64,
    columns: u64,
    step: i64,
    batches: i32,
    batch_step: i64,
}

#[derive(Clone, Copy, Default)]
struct Wanted {
    workspace: u64,
    reduction: u32,
    alignments: [u32; 4],
}

pub(crate) struct Desc(Mutex<Description>);
pub(crate) struct Layout(Mutex<Matrix>);
pub(crate) struct Preference(Mutex<Wanted>);

/// An algorithm is the alignment that it needs, a mark, and its workspace.
#[repr(C)]
pub(crate) struct Found {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const MARK: u64 = 0x6c74;

/// An attribute, which has to be as large as its type.
///
/// # Safety
/// There are so many bytes.
unsafe fn value<T: Copy>(place: *const c_void, size: usize) -> Result<T, c_int> {
    if size != size_of::<T>() {
        return Err(misuse(format!("an attribute of {size} bytes")));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { place.cast::<T>().read_unaligned() })
}

impl Matrix {
    fn element(&self) -> u64 {
        match self.dtype {
            0 => 4,
            1 => 8,
            _ => 2,
        }
    }

    /// Whether all of it is memory of a device.
    fn check(&self, address: u64) -> Result<(), c_int> {
        let last = (self.columns - 1) * self.step as u64
            + self.rows
            + (self.batches - 1) as u64 * self.batch_step as u64;
        device(address, (last * self.element()) as usize)
    }

    fn place(&self, address: u64, batch: usize, row: usize, column: usize) -> u64 {
        let at = batch as i64 * self.batch_step + column as i64 * self.step + row as i64;
        address + at as u64 * self.element()
    }

    /// # Safety
    /// The matrix is live at the address.
    unsafe fn read(&self, address: u64, batch: usize, row: usize, column: usize) -> f64 {
        // SAFETY: this function's contract.
        unsafe { number(self.dtype, self.place(address, batch, row, column)) }
    }
}

/// # Safety
/// The address is of a live number.
unsafe fn number(dtype: c_int, at: u64) -> f64 {
    // SAFETY: this function's contract.
    unsafe {
        match dtype {
            0 => f64::from(*(at as *const f32)),
            1 => *(at as *const f64),
            2 => (*(at as *const f16)).to_f64(),
            _ => (*(at as *const bf16)).to_f64(),
        }
    }
}

/// # Safety
/// The address is of a live number.
unsafe fn write(dtype: c_int, at: u64, value: f64) {
    // SAFETY: this function's contract.
    unsafe {
        match dtype {
            0 => *(at as *mut f32) = value as f32,
            1 => *(at as *mut f64) = value,
            2 => *(at as *mut f16) = f16::from_f64(value),
            _ => *(at as *mut bf16) = bf16::from_f64(value),
        }
    }
}

/// Checks what may be multiplied: sums of f32 alone but for f64, and matrices of one type and of sizes that go
/// together.
fn check(desc: &Description, matrices: &[Matrix; 4]) -> Result<(), c_int> {
    let [a, b, c, d] = matrices;
    let (compute, scale) = if d.dtype == 1 { (70, 1) } else { (68, 0) };
    if (desc.compute, desc.scale) != (compute, scale) {
        return Err(misuse(format!(
            "sums of type {} and {}",
            desc.compute, desc.scale
        )));
    }
    let of = |matrix: &Matrix, turned: c_int| match turned {
        0 => (matrix.rows, matrix.columns),
        _ => (matrix.columns, matrix.rows),
    };
    let ((m, k), (k2, n)) = (of(a, desc.turned[0]), of(b, desc.turned[1]));
    let fits = k == k2 && [c, d].iter().all(|one| (one.rows, one.columns) == (m, n));
    let same = [a, b, c]
        .iter()
        .all(|one| one.dtype == d.dtype && one.batches == d.batches);
    let steps = matrices
        .iter()
        .all(|one| one.step >= one.rows as i64 && one.batch_step >= 0);
    if !fits || !same || !steps || m * n * k == 0 {
        return Err(misuse(format!("a product of {m} x {k} and {k2} x {n}")));
    }
    Ok(())
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is cuBLASLt's")]
pub(crate) extern "C" fn cublasLtGetStatusString(_status: c_int) -> *const c_char {
    c"the stand-in says so".as_ptr()
}

api! {
    fn cublasLtCreate(place: *mut *mut Handle) {
        *place = add(Handle(attempt!(working())));
        0
    }

    fn cublasLtDestroy(handle: *mut Handle) {
        attempt!(remove(handle, "a handle of cuBLASLt"));
        0
    }

    fn cublasLtMatmulDescCreate(place: *mut *mut Desc, compute: c_int, scale: c_int) {
        let made = Description { compute, scale, turned: [0; 2], epilogue: 1, row: 0 };
        *place = add(Desc(Mutex::new(made)));
        0
    }

    fn cublasLtMatmulDescDestroy(desc: *mut Desc) {
        attempt!(remove(desc, "a product"));
        0
    }

    fn cublasLtMatmulDescSetAttribute(desc: *mut Desc, attribute: c_int, place: *const c_void, size: usize) {
        let mut desc = attempt!(live(desc, "a product")).0.lock().unwrap();
        match attribute {
            3 | 4 => desc.turned[attribute as usize - 3] = attempt!(value(place, size)),
            7 => desc.epilogue = attempt!(value(place, size)),
            8 => desc.row = attempt!(value(place, size)),
            _ => return misuse(format!("attribute {attribute} of a product")),
        }
        0
    }

    fn cublasLtMatrixLayoutCreate(place: *mut *mut Layout, dtype: c_int, rows: u64, columns: u64, step: i64) {
        let made = Matrix { dtype, rows, columns, step, batches: 1, batch_step: 0 };
        *place = add(Layout(Mutex::new(made)));
        0
    }

    fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) {
        attempt!(remove(layout, "a matrix"));
        0
    }

    fn cublasLtMatrixLayoutSetAttribute(layout: *mut Layout, attribute: c_int, place: *const c_void, size: usize) {
        let mut matrix = attempt!(live(layout, "a matrix")).0.lock().unwrap();
        match attribute {
            5 => matrix.batches = attempt!(value(place, size)),
            6 => matrix.batch_step = attempt!(value(place, size)),
            _ => return misuse(format!("attribute {attribute} of a matrix")),
        }
        0
    }

    fn cublasLtMatmulPreferenceCreate(place: *mut *mut Preference) {
        *place = add(Preference(Mutex::default()));
        0
    }

    fn cublasLtMatmulPreferenceDestroy(preference: *mut Preference) {
        attempt!(remove(preference, "what is preferred"));
        0
    }

    fn cublasLtMatmulPreferenceSetAttribute(preference: *mut Preference, attribute: c_int, place: *const c_void, size: usize) {
        let mut wanted = attempt!(live(preference, "what is preferred")).0.lock().unwrap();
        match attribute {
            1 => wanted.workspace = attempt!(value(place, size)),
            3 => wanted.reduction = attempt!(value(place, size)),
            5..=8 => wanted.alignments[attribute as usize - 5] = attempt!(value(place, size)),
            _ => return misuse(format!("attribute {attribute} of what is preferred")),
        }
        0
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: *mut Handle,
        desc: *mut Desc,
        a: *mut Layout,
        b: *mut Layout,
        c: *mut Layout,
        d: *mut Layout,
        preference: *mut Preference,
        room: c_int,
        found: *mut Found,
        count: *mut c_int,
    ) {
        attempt!(live(handle, "a handle of cuBLASLt"));
        let desc = *attempt!(live(desc, "a product")).0.lock().unwrap();
        let mut matrices = Vec::new();
        for layout in [a, b, c, d] {
            matrices.push(*attempt!(live(layout, "a matrix")).0.lock().unwrap());
        }
        attempt!(check(&desc, &matrices.try_into().ok().unwrap()));
        let wanted = *attempt!(live(preference, "what is preferred")).0.lock().unwrap();
        // Sums in the type of the result would be rounded twice.
        if wanted.reduction & 4 != 0 || room != 1 {
            return misuse("sums in the type of the result are allowed".to_owned());
        }
        let least = wanted.alignments.into_iter().min().unwrap_or(0);
        if desc.epilogue == 4 && !desc.row.is_multiple_of(u64::from(least)) {
            return NOT_SUPPORTED;
        }
        let workspace = if least >= 16 { WORKSPACE } else { 0 };
        if workspace as u64 > wanted.workspace {
            return misuse("there is no workspace for an algorithm".to_owned());
        }
        (*found).algorithm = [u64::from(least), MARK, workspace as u64, 0, 0, 0, 0, 0];
        (*found).workspace = workspace;
        (*found).state = 0;
        *count = 1;
        0
    }

    fn cublasLtMatmul(
        handle: *mut Handle,
        desc: *mut Desc,
        alpha: *const c_void,
        a: u64,
        a_layout: *mut Layout,
        b: u64,
        b_layout: *mut Layout,
        beta: *const c_void,
        c: u64,
        c_layout: *mut Layout,
        d: u64,
        d_layout: *mut Layout,
        algorithm: *const [u64; 8],
        workspace: u64,
        workspace_size: usize,
        stream: *mut Stream,
    ) {
        let handle = attempt!(live(handle, "a handle of cuBLASLt"));
        if !std::ptr::eq(handle.0, attempt!(working())) {
            return misuse("a handle of cuBLASLt for another device".to_owned());
        }
        let desc = *attempt!(live(desc, "a product")).0.lock().unwrap();
        let mut matrices = Vec::new();
        for layout in [a_layout, b_layout, c_layout, d_layout] {
            matrices.push(*attempt!(live(layout, "a matrix")).0.lock().unwrap());
        }
        let matrices: [Matrix; 4] = matrices.try_into().ok().unwrap();
        attempt!(check(&desc, &matrices));
        let [left, right, added, out] = matrices;
        let (alpha, beta) = match desc.scale {
            1 => (*alpha.cast::<f64>(), *beta.cast::<f64>()),
            _ => (f64::from(*alpha.cast::<f32>()), f64::from(*beta.cast::<f32>())),
        };
        for (matrix, address) in [(left, a), (right, b), (added, c), (out, d)] {
            attempt!(matrix.check(address));
        }
        if c == d && added.step != out.step {
            return misuse("a result in place of a matrix with other steps".to_owned());
        }
        let [alignment, mark, needed, ..] = *algorithm;
        let row = if desc.epilogue == 4 { desc.row } else { 0 };
        if mark != MARK || [a, b, c, d, row].iter().any(|at| !at.is_multiple_of(alignment)) {
            return misuse(format!("addresses that are no multiples of {alignment}"));
        }
        if workspace_size as u64 != needed {
            return misuse(format!("{workspace_size} bytes of workspace in place of {needed}"));
        }
        if needed > 0 {
            attempt!(device(workspace, workspace_size));
        }
        let depth = if desc.turned[0] == 0 { left.columns } else { left.rows } as usize;
        submit(stream, move || {
            // SAFETY: the operands and the workspace are live until now, as the driver promises.
            unsafe {
                std::ptr::write_bytes(workspace as *mut u8, 0xa5, workspace_size);
                for batch in 0..out.batches as usize {
                    // Lines of both, in which the sums run.
                    let lines = |matrix: Matrix, at: u64, count: u64, in_rows: bool| {
                        let places = (0..count as usize).flat_map(|line| (0..depth).map(move |step| (line, step)));
                        let read = |(line, step)| match in_rows {
                            true => matrix.read(at, batch, line, step),
                            false => matrix.read(at, batch, step, line),
                        };
                        places.map(read).collect::<Vec<f64>>()
                    };
                    let rows = lines(left, a, out.rows, desc.turned[0] == 0);
                    let columns = lines(right, b, out.columns, desc.turned[1] != 0);
                    for (column, right) in columns.chunks(depth).enumerate() {
                        for (line, left) in rows.chunks(depth).enumerate() {
                            let pairs = left.iter().zip(right);
                            let mut sum: f64 = pairs.map(|(left, right)| left * right).sum();
                            sum *= alpha;
                            if beta != 0.0 {
                                sum += beta * added.read(c, batch, line, column);
                            }
                            if row != 0 {
                                sum += number(out.dtype, row + line as u64 * out.element());
                            }
                            write(out.dtype, out.place(d, batch, line, column), sum);
                        }
                    }
                }
            }
        })
    }
}
