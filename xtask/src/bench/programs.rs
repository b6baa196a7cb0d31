//! The programs that suites measure: compiles them, fetches what they need, and writes for benches/ how
//! each program of the suites but `eager` and `alloc` is started, or why it cannot be started.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::peers::Cache;
use crate::environment::{self, Stamp};
use crate::native;
use crate::opencl;
use crate::shell;
use crate::workspace::Workspace;

/// Versions are pinned, so that figures of two runs can be compared.
const WARP: &[&str] = &["warp-lang==1.19.0"];
const IREE: &[&str] = &["iree-base-runtime==3.13.0", "iree-base-compiler==3.13.0"];

/// The command that starts a program.
struct Subject {
    command: Vec<PathBuf>,
    environment: BTreeMap<&'static str, String>,
    /// True if it takes the passes of a spinning node as its argument.
    spins: bool,
}

/// A source of benches/ and what it is compiled with.
struct Source<'a> {
    /// Path below benches/, without extension.
    name: &'a str,
    includes: Vec<PathBuf>,
    /// Folders of the libraries, which are found there when the program runs, too.
    library_folders: Vec<PathBuf>,
    libraries: &'a [&'a str],
    /// The C++ standard.
    standard: &'a str,
    /// Further arguments of the compiler.
    further: &'a [&'a str],
    /// The name of the file, if it is no program of the source's name.
    output: Option<&'a str>,
}

impl<'a> Source<'a> {
    /// A program that needs nothing.
    fn program(name: &'a str) -> Self {
        Self {
            name,
            includes: Vec::new(),
            library_folders: Vec::new(),
            libraries: &[],
            standard: "c++17",
            further: &[],
            output: None,
        }
    }
}

/// Prepares the programs of the suite `driver`, those of all others, or both; the file that says how they are started.
///
/// # Errors
/// If Outrigger's own programs or the plain loop cannot be built, or the file not be written. A peer that
/// cannot be prepared is written down as missing.
pub(super) fn prepare(
    workspace: &Workspace,
    of_peers: bool,
    of_driver: bool,
) -> anyhow::Result<PathBuf> {
    let builder = Builder {
        workspace,
        cache: Cache::open(workspace)?,
        compiler: environment::cxx_compiler()?,
    };
    let mut entries = Vec::new();
    if of_peers {
        let opencl = builder.opencl();
        entries.extend([
            entry(
                "outrigger_stream",
                Ok(builder.outrigger("native/outrigger_stream")?),
            ),
            entry(
                "outrigger_graph",
                Ok(builder.outrigger("native/outrigger_graph")?),
            ),
            entry("outrigger_ops", Ok(builder.ops()?)),
            entry("c_loop", Ok(builder.c_loop()?)),
            entry("tbb", builder.tbb("tbb", &[])),
            entry(
                "tbb_lightweight",
                builder.tbb("tbb_lightweight", &["-DLIGHTWEIGHT"]),
            ),
            entry("taskflow", builder.taskflow()),
            entry("warp", builder.warp()),
            entry("iree", builder.iree()),
            entry("pocl", builder.pocl(&opencl, None)),
            entry("pocl_basic", builder.pocl(&opencl, Some("basic"))),
            entry("intel_opencl", builder.intel(&opencl)),
        ]);
    }
    if of_driver {
        native::library(workspace)?;
        let program = builder.driver();
        let over = |opencl| Ok(builder.over_driver(opencl?));
        entries.extend([
            entry("driver_intel", over(builder.intel(&program))),
            entry("driver_pocl", over(builder.pocl(&program, None))),
            entry(
                "driver_pocl_basic",
                over(builder.pocl(&program, Some("basic"))),
            ),
        ]);
    }
    let file = builder.cache.path("subjects.json");
    fs::write(&file, serde_json::to_string_pretty(&entries)?)
        .with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(file)
}

/// The program whose calls the suite `layers` counts.
///
/// # Errors
/// If it cannot be compiled.
pub(super) fn calls(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let builder = Builder {
        workspace,
        cache: Cache::open(workspace)?,
        compiler: environment::cxx_compiler()?,
    };
    builder.compile(&Source {
        includes: vec![workspace.path("include")],
        library_folders: vec![workspace.library_folder()],
        libraries: &["outrigger"],
        ..Source::program("native/outrigger_calls")
    })
}

/// The program that runs PyTorch's own allocator, over a stand-in for CUDA.
///
/// # Errors
/// If there is no environment with PyTorch, or something cannot be compiled.
pub(super) fn torch_allocator(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    environment::ensure(workspace)?;
    let packages = environment::site_packages(workspace).context(".venv holds no packages")?;
    let builder = Builder {
        workspace,
        cache: Cache::open(workspace)?,
        compiler: environment::cxx_compiler()?,
    };
    // PyTorch's wheel comes with CUDA's headers, but for some that Triton's has.
    let cuda = vec![
        packages.join("nvidia/cu13/include"),
        packages.join("triton/backends/nvidia/include"),
    ];
    // The name and the versions of symbols are what PyTorch's library asks for.
    builder.compile(&Source {
        includes: cuda.clone(),
        standard: "c++20",
        further: &[
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcudart.so.13",
            "-Wl,--default-symver",
        ],
        output: Some("libcudart.so.13"),
        ..Source::program("peers/cuda_device")
    })?;
    let libraries = packages.join("torch/lib");
    builder.compile(&Source {
        includes: [vec![packages.join("torch/include")], cuda].concat(),
        library_folders: vec![builder.cache.path("bin"), libraries],
        libraries: &[":libcudart.so.13", "c10_cuda", "c10", "pthread"],
        standard: "c++20",
        // The stand-in has not all of CUDA, but all that is called.
        further: &["-Wl,--allow-shlib-undefined"],
        ..Source::program("peers/torch_allocator")
    })
}

/// The figures of one program that benches/ reads.
fn entry(name: &str, subject: anyhow::Result<Subject>) -> Value {
    match subject {
        Ok(subject) => json!({
            "name": name,
            "command": subject.command,
            "environment": subject.environment,
            "spins": subject.spins,
        }),
        Err(error) => {
            let reason = format!("{error:#}");
            json!({"name": name, "missing": reason.lines().next().unwrap_or_default()})
        }
    }
}

struct Builder<'a> {
    workspace: &'a Workspace,
    cache: Cache<'a>,
    compiler: String,
}

impl Builder<'_> {
    fn outrigger(&self, name: &str) -> anyhow::Result<Subject> {
        let program = self.compile(&Source {
            includes: vec![self.workspace.path("include")],
            library_folders: vec![self.workspace.library_folder()],
            libraries: &["outrigger"],
            ..Source::program(name)
        })?;
        Ok(Subject {
            command: vec![program],
            environment: BTreeMap::new(),
            spins: name.ends_with("graph"),
        })
    }

    /// The program that calls operators over the driver that does nothing: one with operators, one without.
    fn ops(&self) -> anyhow::Result<Subject> {
        let driver = self.compile(&Source {
            includes: vec![self.workspace.path("include")],
            further: &["-shared", "-fPIC"],
            output: Some("noop_driver.so"),
            ..Source::program("native/noop_driver")
        })?;
        let mut subject = self.outrigger("native/outrigger_ops")?;
        let name = driver.display();
        let drivers = format!("{name},{name}?operators=none");
        subject.environment.insert("OUTRIGGER_DRIVER", drivers);
        subject.command.push(driver);
        subject.spins = false;
        Ok(subject)
    }

    fn c_loop(&self) -> anyhow::Result<Subject> {
        let program = self.compile(&Source::program("peers/c_loop"))?;
        Ok(spinning(program))
    }

    /// oneTBB's flow graph, as `flags` choose its nodes.
    fn tbb(&self, output: &str, flags: &[&str]) -> anyhow::Result<Subject> {
        self.cache.debian("libtbb-dev")?;
        let program = self.compile(&Source {
            includes: vec![self.cache.debian_include()],
            library_folders: vec![self.cache.debian_lib()],
            libraries: &["tbb"],
            further: flags,
            output: Some(output),
            ..Source::program("peers/tbb")
        })?;
        Ok(spinning(program))
    }

    fn taskflow(&self) -> anyhow::Result<Subject> {
        let program = self.compile(&Source {
            includes: vec![self.cache.taskflow()?],
            libraries: &["pthread"],
            ..Source::program("peers/taskflow")
        })?;
        Ok(spinning(program))
    }

    fn warp(&self) -> anyhow::Result<Subject> {
        let python = self.cache.python("warp", WARP)?;
        let kernels = self.cache.path("warp-kernels").display().to_string();
        Ok(self.script("warp_cpu.py", &python, [("WARP_CACHE_PATH", kernels)]))
    }

    fn iree(&self) -> anyhow::Result<Subject> {
        let python = self.cache.python("iree", IREE)?;
        Ok(self.script("iree_sync.py", &python, []))
    }

    /// The program that measures whichever OpenCL the environment names.
    fn opencl(&self) -> anyhow::Result<PathBuf> {
        self.cache.debian("ocl-icd-opencl-dev")?;
        self.compile(&Source {
            includes: vec![self.cache.debian_include()],
            library_folders: vec![self.cache.debian_lib()],
            libraries: &["OpenCL"],
            ..Source::program("peers/opencl")
        })
    }

    /// The program that measures the driver `opencl` beside OpenCL by hand.
    fn driver(&self) -> anyhow::Result<PathBuf> {
        self.cache.debian("ocl-icd-opencl-dev")?;
        self.compile(&Source {
            includes: vec![self.workspace.path("include"), self.cache.debian_include()],
            library_folders: vec![self.workspace.library_folder(), self.cache.debian_lib()],
            libraries: &["outrigger", "OpenCL"],
            ..Source::program("native/outrigger_driver")
        })
    }

    /// The program over an OpenCL implementation, beside the driver `host`, with a store of its own.
    fn over_driver(&self, mut subject: Subject) -> Subject {
        let kernels = self.workspace.path("benches/peers/kernels.cl");
        subject.command.push(kernels);
        let drivers = "opencl,host?devices=1".to_owned();
        subject.environment.insert("OUTRIGGER_DRIVER", drivers);
        let store = self.cache.path("driver-store").display().to_string();
        subject.environment.insert("OUTRIGGER_CACHE", store);
        subject
    }

    fn pocl(
        &self,
        program: &anyhow::Result<PathBuf>,
        devices: Option<&str>,
    ) -> anyhow::Result<Subject> {
        let program = built(program)?;
        self.cache.debian("pocl-opencl-icd")?;
        // By its name, for it may also be one that the system has installed.
        let vendors = opencl::vendors(&self.cache.path("opencl/pocl"), "libpocl.so.2".as_ref())?;
        let mut environment = opencl::environment(&vendors, &self.cache.debian_lib());
        let kernels = self.cache.path("pocl-kernels");
        environment.insert("POCL_CACHE_DIR", kernels.display().to_string());
        if let Some(devices) = devices {
            environment.insert("POCL_DEVICES", devices.to_owned());
        }
        Ok(Subject {
            command: vec![program],
            environment,
            spins: false,
        })
    }

    fn intel(&self, program: &anyhow::Result<PathBuf>) -> anyhow::Result<Subject> {
        let program = built(program)?;
        let mut environment = opencl::intel(self.workspace)?;
        // The loader is there if the system has none. Intel's folder stays first: it has a newer TBB.
        let libraries = environment.entry(opencl::LIBRARIES).or_default();
        *libraries = format!("{libraries}:{}", self.cache.debian_lib().display());
        Ok(Subject {
            command: vec![program],
            environment,
            spins: false,
        })
    }

    /// A peer that is driven from Python.
    fn script<const N: usize>(
        &self,
        name: &str,
        python: &Path,
        environment: [(&'static str, String); N],
    ) -> Subject {
        let script = self.workspace.path("benches/peers").join(name);
        Subject {
            command: vec![python.join("bin/python"), script],
            environment: environment.into(),
            spins: false,
        }
    }

    /// Compiles a program if its sources or its flags have changed.
    fn compile(&self, source: &Source<'_>) -> anyhow::Result<PathBuf> {
        let name = source.name.rsplit('/').next().unwrap_or(source.name);
        let name = source.output.unwrap_or(name);
        let folder = self.cache.path("bin");
        fs::create_dir_all(&folder)
            .with_context(|| format!("{} cannot be made", folder.display()))?;
        let program = folder.join(name);
        let file = self.workspace.path(&format!("benches/{}.cpp", source.name));
        let mut arguments = vec![format!("-std={}", source.standard), "-O2".to_owned()];
        for include in &source.includes {
            arguments.extend(["-isystem".to_owned(), include.display().to_string()]);
        }
        arguments.extend([file.display().to_string(), "-o".to_owned()]);
        arguments.push(program.display().to_string());
        arguments.extend(source.further.iter().map(|&argument| argument.to_owned()));
        for folder in &source.library_folders {
            arguments.push(format!("-L{}", folder.display()));
            arguments.push(format!("-Wl,-rpath,{}", folder.display()));
        }
        arguments.extend(
            source
                .libraries
                .iter()
                .map(|library| format!("-l{library}")),
        );

        let mut read = vec![file];
        for folder in ["benches/native", "benches/peers", "include"] {
            read.extend(environment::files_below(
                &self.workspace.path(folder),
                &["h"],
            )?);
        }
        let stamp = Stamp::new(
            folder.join(format!("{name}.stamp")),
            &read,
            (&self.compiler, &arguments),
        )?;
        if stamp.is_current() && program.is_file() {
            return Ok(program);
        }
        // CXX may hold a launcher or flags behind the program's name.
        let mut words = self.compiler.split_whitespace();
        let mut compile = Command::new(words.next().unwrap_or_default());
        compile.args(words).args(&arguments);
        shell::step(self.workspace, &format!("compiling {name}"), &mut compile)?;
        stamp.write()?;
        Ok(program)
    }
}

/// A program that takes the passes of a spinning node.
fn spinning(program: PathBuf) -> Subject {
    Subject {
        command: vec![program],
        environment: BTreeMap::new(),
        spins: true,
    }
}

/// A program that several peers share, or why there is none, for each of them.
fn built(program: &anyhow::Result<PathBuf>) -> anyhow::Result<PathBuf> {
    match program {
        Ok(program) => Ok(program.clone()),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_peer_is_written_down_with_one_line_of_reason() {
        let missing = entry("acme", Err(anyhow::anyhow!("no acme\nof any kind")));
        assert_eq!(missing, json!({"name": "acme", "missing": "no acme"}));
    }
}
