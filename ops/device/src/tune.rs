//! The work of the tuner's worker: a piece of work on a device of its own, launched again and again.
//!
//! This file is the only place of the crate that waits for work, and runs in no process of a user.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_device::{Code, DType, DeviceProperties, Driver, Error, Queue};
use outrigger_ops::Scalar;
use outrigger_tuner::{Choice, Question, Tuner};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::{Refusal, invalid};
use crate::device::Device;
use crate::kernel::Below;
use crate::operators::convolution;
use crate::operators::product::{Operands, Product};
use crate::work::Launch;

/// Work that can be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    Product(Product),
}

/// The task of the worker: the work, and on which device of which driver.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    driver: String,
    device: u32,
    work: Work,
}

impl Task {
    /// `None` if another process could not open the driver.
    pub(crate) fn of(driver: &Driver, device: u32, work: Work) -> Option<Value> {
        let task = Self {
            driver: driver.as_raw().origin()?.to_owned(),
            device,
            work,
        };
        serde_json::to_value(task).ok()
    }
}

/// A question about a device: its driver, the device and this library are filled in, and all else is empty.
pub fn question(driver: &Driver, properties: &DeviceProperties) -> Question {
    Question {
        driver: format!("{} {}", driver.name(), driver.version()),
        device: name(properties),
        operator: String::new(),
        class: String::new(),
        dtype: String::new(),
        code: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The name of a device, and what tells it from others of that name.
fn name(properties: &DeviceProperties) -> String {
    if properties.uuid == [0; 16] {
        return properties.name.clone();
    }
    let digits: String = properties
        .uuid
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{} {digits}", properties.name)
}

/// The tuner of this process, whose worker's program is beside the library.
///
/// # Errors
/// Names the variable whose value makes no sense.
pub fn tuner() -> Result<&'static Tuner, Error> {
    let beside = || outrigger_device::own_directory().into_iter().collect();
    Tuner::of_process(beside)
        .map_err(|problem| Error::new(Code::INVALID_ARGUMENT, problem.to_string()))
}

/// Launches are repeated for so long, and at least this often.
const TIME: Duration = Duration::from_millis(60);
const FEWEST: usize = 3;

/// The worker's side: it keeps the driver open that it was last asked for.
#[derive(Default)]
pub struct Bench(Option<(String, Arc<Below>)>);

impl Bench {
    /// The shortest time of a launch in nanoseconds.
    ///
    /// # Errors
    /// Why the task cannot be measured.
    pub fn measure(&mut self, task: &Value) -> Result<u64, String> {
        let task = Task::deserialize(task).map_err(|error| error.to_string())?;
        let below = match &self.0 {
            Some((name, below)) if *name == task.driver => Arc::clone(below),
            _ => {
                let below = open(&task.driver).map_err(|error| error.to_string())?;
                self.0 = Some((task.driver, Arc::clone(&below)));
                below
            }
        };
        measure(&below, task.device, &task.work).map_err(|refusal| refusal.text)
    }
}

/// Measures the variants for one line of a command: `matmul MxNxK:DTYPE`, or `convolution NxCxHxW,KxCxRxS:DTYPE` with a step of
/// one and as much padding as keeps the size. `again`: also where there is a choice, but a pinned one.
///
/// # Errors
/// What makes no sense, or that nothing could be measured.
pub fn tune(
    driver: Driver,
    device: u32,
    [operator, sizes]: [&str; 2],
    again: bool,
) -> Result<Choice, Error> {
    let below = Below::new(driver, None)?;
    let refuse = |text: String| Error::new(Code::INVALID_ARGUMENT, text);
    let (sizes, dtype) = sizes
        .split_once(':')
        .ok_or_else(|| refuse(format!("`{sizes}` has no element type behind a colon")))?;
    let dtype = DType::ALL.iter().find(|one| one.name() == dtype);
    let dtype = *dtype.ok_or_else(|| refuse(format!("`{sizes}`: no such element type")))?;
    let lists: Option<Vec<Vec<i64>>> = sizes
        .split(',')
        .map(|list| {
            list.split('x')
                .map(|size| size.parse().ok().filter(|size| *size > 0))
                .collect()
        })
        .collect();
    let lists = lists.unwrap_or_default();
    let lists: Vec<&[i64]> = lists.iter().map(Vec::as_slice).collect();
    let product = match (operator, &lists[..]) {
        ("matmul", [[m, n, k]]) => Product::dense(dtype, [*m, *n, *k]),
        ("convolution", [input @ [_, _, _, _], weight @ [_, _, _, _]]) => {
            convolution::same(dtype, input, weight).map_err(|refusal| refuse(refusal.text))?
        }
        _ => {
            return Err(refuse(format!(
                "`{operator} {sizes}`: give `matmul MxNxK:DTYPE` or `convolution NxCxHxW,KxCxRxS:DTYPE`"
            )));
        }
    };
    let Some(device) = Device::new(&below, device, &below.driver.properties(device)?) else {
        return Err(refuse(
            "the device takes no source that Outrigger has kernels in".to_owned(),
        ));
    };
    let (question, names) = product
        .variants(&device)
        .map_err(|refusal| refuse(refusal.text))?;
    let task = Task::of(&below.driver, device.ordinal(), Work::Product(product));
    let task =
        task.ok_or_else(|| refuse("another process could not open this driver".to_owned()))?;
    let choice = below.tuner.measure(&question, &names, &task, again);
    choice.map_err(|problem| Error::new(Code::EXECUTION, format!("{question}: {problem}")))
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").finish_non_exhaustive()
    }
}

fn open(spec: &str) -> outrigger_device::Result<Arc<Below>> {
    Below::new(Driver::open(&spec.parse()?)?, None)
}

fn measure(below: &Arc<Below>, ordinal: u32, work: &Work) -> Result<u64, Refusal> {
    let driver = &below.driver;
    let Some(device) = Device::new(below, ordinal, &driver.properties(ordinal)?) else {
        return invalid("the device takes no source");
    };
    let Work::Product(product) = work;
    let multiply = product.plan(&device)?;
    let queue = driver.queue_create(ordinal, 0)?;
    let mut memory = Memory {
        driver,
        queue: &queue,
        places: Vec::new(),
    };
    let [a, b, out] = product.reach();
    let operands = Operands {
        a: memory.place(ordinal, product.dtype.0, a)?,
        b: memory.place(ordinal, product.dtype.0, b)?,
        out: memory.place(ordinal, product.dtype.1, out)?,
        ..Operands::default()
    };
    let once = || -> Result<Duration, Refusal> {
        let mut launch = Launch {
            inputs: &[],
            outputs: &[],
            scalars: &[],
            workspace: 0,
            queue: queue.raw(),
            below,
            submitted: 0,
        };
        let begin = Instant::now();
        let one = Scalar::I64(1);
        multiply
            .run(&mut launch, operands, one, one)
            .map_err(|code| Refusal::new(Code(code), "a launch failed"))?;
        queue.synchronize()?;
        Ok(begin.elapsed())
    };
    once()?;
    let (begin, mut best, mut count) = (Instant::now(), Duration::MAX, 0);
    while count < FEWEST || begin.elapsed() < TIME {
        best = best.min(once()?);
        count += 1;
    }
    Ok(u64::try_from(best.as_nanos()).unwrap_or(u64::MAX))
}

/// Operands of a measurement.
struct Memory<'a> {
    driver: &'a Driver,
    queue: &'a Queue,
    places: Vec<u64>,
}

impl Memory<'_> {
    /// So many elements, all of them the same number.
    fn place(&mut self, device: u32, dtype: DType, count: i64) -> Result<u64, Error> {
        let size = dtype.size().unwrap_or(1) as u64;
        let bytes = size * u64::try_from(count).unwrap_or(0).max(1);
        let address = self.driver.memory_alloc(device, bytes)?;
        self.places.push(address);
        // 0x3c3c is near 1 in f16, and small in all other types.
        let pattern = [0x3c; 8];
        // SAFETY: R28: the memory was just allocated, and is given back when the queue has finished.
        unsafe { self.queue.fill(address, bytes, &pattern[..size as usize])? };
        Ok(address)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let (_, over) = self.queue.finish();
        if !over {
            // Nobody knows what runs, so the memory goes with the process.
            return;
        }
        for address in &self.places {
            // SAFETY: R12: the queue, which alone used it, has finished.
            let _ = unsafe { self.driver.memory_free(*address) };
        }
    }
}
