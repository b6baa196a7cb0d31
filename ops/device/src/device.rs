//! A device as the makers of operators see it: what its code may use, and its compiled kernels.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::{Code, DType, DeviceProperties, sys};
use outrigger_modules::Source;
use outrigger_tuner::Question;
use parking_lot::Mutex;

use crate::call::{Result, unsupported};
use crate::kernel::{Below, Kernel, Parameters};
use crate::source::{Definitions, SourceFormat, Text};
use crate::tune;
use crate::unit::{self, Unit, own_text};

/// The kernels of a device so far, by text and definitions. `None` is for what did not compile.
type Kernels = HashMap<(Text, String), Option<Arc<Kernel>>>;

/// The programs of a device so far, by their units. `None` is for what did not compile.
type Programs = HashMap<Vec<Arc<Unit>>, Option<Arc<Kernel>>>;

/// A device that takes source.
pub(crate) struct Device {
    below: Arc<Below>,
    ordinal: u32,
    format: SourceFormat,
    kernels: Mutex<Kernels>,
    programs: Mutex<Programs>,
    /// The units of fills and copies.
    moves: Mutex<HashMap<Text, Option<Arc<Unit>>>>,
    /// Work-items of a group; 1 where a group runs on one thread.
    group: u32,
    pub(crate) has_f64: bool,
    pub(crate) has_atomic64: bool,
    /// Whether the host sees the memory of the device.
    pub(crate) host_visible: bool,
    local_memory: u32,
    units: u32,
    /// The beginning of all questions about variants.
    question: Question,
}

/// Devices whose groups may be larger than this are processors of general purpose.
const LARGEST_GROUP_OF_ACCELERATORS: u32 = 1024;

/// Work-items of a group on an accelerator.
const GROUP: u32 = 256;

/// The work-items of a group.
fn group_of(properties: &DeviceProperties) -> u32 {
    let limits = &properties.limits;
    // If a thread runs the items of a group one after the other, several of them only cost barriers.
    let is_serial = properties.is_cpu()
        || limits.sub_group == 1
        || limits.group > LARGEST_GROUP_OF_ACCELERATORS;
    let known = [limits.group, limits.block[0]]
        .into_iter()
        .filter(|most| *most > 0);
    let most = known.min().unwrap_or(GROUP);
    match is_serial {
        true => 1,
        false => 1 << most.min(GROUP).ilog2(),
    }
}

/// Whether a program can run the tasks of graphs on a device: it takes source, and a thread runs a whole group. Elsewhere
/// memory of a group is declared where a kernel begins, which a function of a program does not.
pub(crate) fn has_tasks(properties: &DeviceProperties) -> bool {
    let limits = &properties.limits;
    let takes = |format: SourceFormat| limits.takes(format.number());
    SourceFormat::ALL.into_iter().any(takes) && group_of(properties) == 1
}

impl Device {
    /// `None` if the device takes no source.
    pub(crate) fn new(
        below: &Arc<Below>,
        ordinal: u32,
        properties: &DeviceProperties,
    ) -> Option<Self> {
        let limits = &properties.limits;
        let mut formats = SourceFormat::ALL.into_iter();
        let format = formats.find(|format| limits.takes(format.number()))?;
        let group = group_of(properties);
        Some(Self {
            below: Arc::clone(below),
            ordinal,
            format,
            kernels: Mutex::default(),
            programs: Mutex::default(),
            moves: Mutex::default(),
            group,
            has_f64: limits.features & sys::OTR_FEATURE_F64 != 0,
            has_atomic64: limits.features & sys::OTR_FEATURE_ATOMIC_64 != 0,
            host_visible: properties.host_visible(),
            local_memory: limits.local_memory,
            units: properties.compute_units,
            question: tune::question(&below.driver, properties),
        })
    }

    /// Whether a group runs on one thread.
    pub(crate) fn is_serial(&self) -> bool {
        self.group == 1
    }

    /// Work-items of a group.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    /// The number of groups that run at a time, as far as the device says; 0 if it does not.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Whether a group has so many bytes of local memory.
    pub(crate) fn has_local(&self, bytes: u32) -> bool {
        self.local_memory == 0 || bytes <= self.local_memory
    }

    /// The type in which sums of floating-point numbers are accumulated.
    pub(crate) fn sums(&self) -> Class {
        if self.has_f64 { Class::F64 } else { Class::F32 }
    }

    /// The class that elements of a type are computed in, if the device has it.
    pub(crate) fn class(&self, dtype: DType) -> Result<Class> {
        match Class::of(dtype) {
            Some(Class::F64) if !self.has_f64 => unsupported("the device has no f64"),
            Some(class) => Ok(class),
            None => unsupported(format!("elements of type {dtype}")),
        }
    }

    /// The number of the device within its driver.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The question which variant of a text is the best for a class of sizes.
    pub(crate) fn question(
        &self,
        text: Text,
        operator: &str,
        class: String,
        dtype: DType,
    ) -> Question {
        Question {
            operator: operator.to_owned(),
            class,
            dtype: dtype.name().to_owned(),
            code: text.hash(),
            ..self.question.clone()
        }
    }

    /// The variant to use: a number in `candidates`, of which the first is the default. `work` measures them.
    pub(crate) fn choose(
        &self,
        question: &Question,
        candidates: &[String],
        work: impl FnOnce() -> tune::Work,
    ) -> usize {
        let task = || tune::Task::of(&self.below.driver, self.ordinal, work());
        self.below.tuner.choose(question, candidates, task)
    }

    /// The kernel of a text with these definitions, compiled if it is the first time.
    pub(crate) fn kernel(
        &self,
        text: Text,
        definitions: Definitions,
        takes: Parameters,
    ) -> Result<Arc<Kernel>> {
        let key = (text, definitions.key().to_owned());
        let known = self.kernels.lock().get(&key).cloned();
        let kernel = match known {
            Some(known) => known,
            // Not under the lock, because it takes long. Of two threads that ask for the same, one compiles.
            None => {
                let made = self.compile(text, &definitions, takes)?;
                self.kernels.lock().entry(key).or_insert(made).clone()
            }
        };
        match kernel {
            Some(kernel) => Ok(kernel),
            None => unsupported("the kernel does not compile for this device"),
        }
    }

    /// `None` if the device's compiler refuses the text, now and ever.
    fn compile(
        &self,
        text: Text,
        definitions: &Definitions,
        takes: Parameters,
    ) -> Result<Option<Arc<Kernel>>> {
        let code = definitions.source(text, self.group);
        let unit = match self.below.recorder {
            Some(_) => unit_of(&code, text),
            None => None,
        };
        let source = Source::new(self.format.number(), code.into_bytes());
        let label = text.label();
        let loaded = self.load(&source, label, takes, unit);
        match loaded {
            Ok(kernel) => Ok(Some(Arc::new(kernel))),
            Err(refusal) if matches!(refusal.code, Code::INVALID_ARGUMENT | Code::UNSUPPORTED) => {
                let (label, log) = (label.to_string_lossy(), refusal.text);
                tracing::warn!(target: "outrigger::device", %label, log, definitions = definitions.key(),
                    "a kernel does not compile");
                Ok(None)
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn load(
        &self,
        source: &Source,
        label: &'static CStr,
        takes: Parameters,
        unit: Option<Arc<Unit>>,
    ) -> Result<Kernel> {
        let (below, device, group) = (&self.below, self.ordinal, self.group);
        Kernel::load(below, device, source, label, group, takes, unit)
    }

    /// The unit of a fill or a copy.
    pub(crate) fn unit(&self, text: Text) -> Option<Arc<Unit>> {
        let mut moves = self.moves.lock();
        let unit = moves.entry(text).or_insert_with(|| {
            let mut definitions = Definitions::default();
            definitions.set("CHUNK", crate::plan::CHUNK);
            unit_of(&definitions.source(text, self.group), text)
        });
        unit.clone()
    }

    /// The program of some units, compiled if it is the first time; `None` if it does not compile.
    pub(crate) fn program(&self, units: &[Arc<Unit>]) -> Option<Arc<Kernel>> {
        let known = self.programs.lock().get(units).cloned();
        if let Some(known) = known {
            return known;
        }
        // Not under the lock, because it takes long.
        let program = match self.compile_program(units) {
            Ok(program) => Some(Arc::new(program)),
            Err(refusal) => {
                tracing::warn!(target: "outrigger::device", units = units.len(), log = refusal.text,
                    "the program of a graph cannot be made: its kernels are launched one by one");
                // A failure for another reason may not come again.
                if !matches!(refusal.code, Code::INVALID_ARGUMENT | Code::UNSUPPORTED) {
                    return None;
                }
                None
            }
        };
        let mut programs = self.programs.lock();
        programs.entry(units.to_vec()).or_insert(program).clone()
    }

    pub(crate) fn compile_program(&self, units: &[Arc<Unit>]) -> Result<Kernel> {
        let source = Source::new(self.format.number(), unit::program(units).into_bytes());
        let takes = Parameters {
            addresses: 2,
            words: 2,
        };
        self.load(&source, c"tasks", takes, None)
    }

    /// The labels and units of the kernels so far.
    #[cfg(test)]
    pub(crate) fn units_so_far(&self) -> Vec<(Text, Option<Arc<Unit>>)> {
        let kernels = self.kernels.lock();
        let compiled = kernels
            .iter()
            .filter_map(|(key, kernel)| Some((key.0, kernel.as_ref()?)));
        compiled
            .map(|(text, kernel)| (text, kernel.unit()))
            .collect()
    }

    /// Lets go of all kernels.
    pub(crate) fn forget(&self) {
        let programs = std::mem::take(&mut *self.programs.lock());
        drop(programs);
        let gone = std::mem::take(&mut *self.kernels.lock());
        drop(gone);
    }
}

/// The unit of a source of ours.
fn unit_of(source: &str, text: Text) -> Option<Arc<Unit>> {
    Unit::of(&own_text(source)?, text.label().to_str().ok()?)
}

/// A type of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    F32,
    F64,
    I32,
    I64,
}

impl Class {
    /// The class of elements of a type; `None` for types without arithmetic.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::I64 => Some(Self::I64),
            DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::BOOL => Some(Self::I32),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// A scalar of a call as a word of an argument block.
    pub(crate) fn word(self, scalar: outrigger_ops::Scalar) -> u64 {
        match self {
            Self::F32 => u64::from((scalar.to_f64() as f32).to_bits()),
            Self::F64 => scalar.to_f64().to_bits(),
            Self::I32 => u64::from(scalar.to_i64() as i32 as u32),
            Self::I64 => scalar.to_i64() as u64,
        }
    }
}

/// The name of an element type in the dialect.
pub(crate) fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::BOOL => "b8",
        other => other.name(),
    }
}
