//! PyTorch's own allocator as a peer: a program of its own, since that library has one allocator for each
//! process. It must never decide anything: traces go in as they are, numbers come out.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::calls::Calls;
use crate::replay::Outcome;
use crate::timing::PairNs;
use crate::trace::{Op, Trace};

/// Numbers of one state of the calls in the program's output.
const CALLS: usize = 12;

/// The program benches/peers/torch_allocator.cpp, compiled, and a trace written down for it.
pub(crate) struct Torch<'a> {
    program: &'a Path,
    file: PathBuf,
}

impl Drop for Torch<'_> {
    fn drop(&mut self) {
        // A file in the system's folder for such files: nothing is lost if it stays.
        let _ = fs::remove_file(&self.file);
    }
}

impl<'a> Torch<'a> {
    /// Writes the trace down.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn new(program: &'a Path, trace: &Trace) -> anyhow::Result<Self> {
        let name = format!("outrigger-{}-{}", std::process::id(), trace.name);
        let torch = Self {
            program,
            file: std::env::temp_dir().join(name),
        };
        let write = || -> std::io::Result<()> {
            let mut file = std::io::BufWriter::new(fs::File::create(&torch.file)?);
            for number in [trace.ops.len(), trace.allocations] {
                file.write_all(&(number as u64).to_ne_bytes())?;
            }
            for op in &trace.ops {
                let (kind, stream, id, size) = match *op {
                    Op::Alloc { id, size, stream } => (0_u32, stream, id, size),
                    Op::Free { id } => (1, 0, id, 0),
                    Op::Record { id, stream } => (2, stream, id, 0),
                    Op::Mark => (3, 0, 0, 0),
                };
                file.write_all(&kind.to_ne_bytes())?;
                file.write_all(&u32::from(stream).to_ne_bytes())?;
                file.write_all(&u64::from(id).to_ne_bytes())?;
                file.write_all(&size.to_ne_bytes())?;
            }
            file.flush()
        };
        write().with_context(|| format!("{} cannot be written", torch.file.display()))?;
        Ok(torch)
    }

    /// Replays the trace on a device of so many bytes.
    ///
    /// # Errors
    /// If the program fails or says something else than it should.
    pub(crate) fn replay(
        &self,
        expandable: bool,
        capacity: u64,
        lag: u64,
    ) -> anyhow::Result<Outcome> {
        let output = self.run(
            expandable,
            ["replay", &capacity.to_string(), &lag.to_string()],
        )?;
        let numbers: Vec<u64> = output
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| output.clone())?;
        ensure!(
            numbers.len() == 2 + 2 * CALLS,
            "it said {} numbers, which should be {}",
            numbers.len(),
            2 + 2 * CALLS
        );
        let (calls, warm_up) = numbers[2..].split_at(CALLS);
        let (calls, warm_up) = (calls_of(calls), calls_of(warm_up));
        Ok(Outcome {
            fits: numbers[0] == 1,
            held: numbers[1],
            calls,
            late_calls: calls - warm_up,
        })
    }

    /// Times the pairs of the trace.
    ///
    /// # Errors
    /// If the program fails or says something else than it should.
    pub(crate) fn pair_ns(
        &self,
        expandable: bool,
        threads: usize,
        repetitions: usize,
    ) -> anyhow::Result<PairNs> {
        let output = self.run(
            expandable,
            ["time", &threads.to_string(), &repetitions.to_string()],
        )?;
        let mut numbers = output.split_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        let times = next().zip(next());
        let (median, best) = times.with_context(|| format!("it said {output:?}"))?;
        Ok(PairNs { median, best })
    }

    /// The version of the library.
    ///
    /// # Errors
    /// If the program fails.
    pub(crate) fn version(program: &Path) -> anyhow::Result<String> {
        let output = Command::new(program)
            .arg("version")
            .output()
            .with_context(|| format!("{} could not be started", program.display()))?;
        ensure!(output.status.success(), "{} failed", program.display());
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn run(&self, expandable: bool, arguments: [&str; 3]) -> anyhow::Result<String> {
        let policy = format!(
            "expandable_segments:{}",
            if expandable { "True" } else { "False" }
        );
        let output = Command::new(self.program)
            .arg(&self.file)
            .args(arguments)
            .env("PYTORCH_ALLOC_CONF", policy)
            .output()
            .with_context(|| format!("{} could not be started", self.program.display()))?;
        ensure!(
            output.status.success(),
            "{} failed: {}",
            self.program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn calls_of(numbers: &[u64]) -> Calls {
    Calls {
        allocs: numbers[0],
        frees: numbers[1],
        reserves: numbers[2],
        releases: numbers[3],
        creates: numbers[4],
        destroys: numbers[5],
        maps: numbers[6],
        accesses: numbers[7],
        unmaps: numbers[8],
        fences: numbers[9],
        waits: numbers[10],
        orders: numbers[11],
    }
}
