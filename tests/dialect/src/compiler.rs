//! Turns a text in the dialect into functions of this process, with the system's C compiler.

use std::ffi::{CStr, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;

/// The end that each text gets: a function that calls a kernel for the groups of a grid from one number on, and each so
/// many further. A kernel takes addresses, and then one struct `arguments_t`. Function pointers of other pointer types
/// are called alike here.
const CALLER: &str = r"
typedef void (*kernel_t)(void);
#undef PLACE
#define PLACE const otr_place_t*
void otr_run(kernel_t kernel, const uint32_t* grid, const uint64_t* block, uint64_t n, uint64_t first, uint64_t step) {
  otr_place_t place = {{0, 0, 0}, {(i32)grid[0], (i32)grid[1], (i32)grid[2]}};
  uint64_t all = (uint64_t)grid[0] * grid[1] * grid[2];
  arguments_t args;
  memcpy(&args, block + n, sizeof args);
#undef P
#undef V
#define P(k) ((void*)(uintptr_t)block[k])
#define V void*
  for (uint64_t number = first; number < all; number += step) {
  place.group[0] = (i32)(number % grid[0]);
  place.group[1] = (i32)(number / grid[0] % grid[1]);
  place.group[2] = (i32)(number / grid[0] / grid[1]);
  switch (n) {
    case 0: ((void (*)(PLACE, arguments_t))kernel)(&place, args); break;
    case 1: ((void (*)(PLACE, V, arguments_t))kernel)(&place, P(0), args); break;
    case 2: ((void (*)(PLACE, V, V, arguments_t))kernel)(&place, P(0), P(1), args); break;
    case 3: ((void (*)(PLACE, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), args); break;
    case 4: ((void (*)(PLACE, V, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), P(3), args); break;
    case 5: ((void (*)(PLACE, V, V, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), P(3), P(4), args); break;
    case 6: ((void (*)(PLACE, V, V, V, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), P(3), P(4), P(5), args); break;
    case 7: ((void (*)(PLACE, V, V, V, V, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), P(3), P(4), P(5), P(6), args); break;
    case 8: ((void (*)(PLACE, V, V, V, V, V, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), args); break;
    default: ((void (*)(PLACE, V, V, V, V, V, V, V, V, V, arguments_t))kernel)(&place, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), args);
  }
  }
}
";

/// The most addresses of a kernel.
pub(crate) const ADDRESSES: usize = 9;

/// A text that is loaded into this process.
pub(crate) struct Loaded {
    library: Library,
    binary: Vec<u8>,
}

/// Begins the compiled form, in front of a checksum: the system's loader trusts what it is given. What is checked and
/// what is not are two forms.
fn mark(checked: bool) -> &'static [u8; 8] {
    if checked { b"otrdialc" } else { b"otrdial1" }
}

/// A hash that finds accidents (FNV-1a, 64 bits).
fn checksum(bytes: &[u8]) -> [u8; 8] {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes()
}

/// A name for a file that no other call has.
fn fresh() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = format!("otr-dialect-{}-{number}.so", std::process::id());
    std::env::temp_dir().join(file)
}

/// `otr_run` of a text.
pub(crate) type RunFn = unsafe extern "C" fn(*const c_void, *const u32, *const u64, u64, u64, u64);

impl Loaded {
    /// Compiles a text. With `checked`, undefined behaviour ends the process.
    ///
    /// # Errors
    /// What the compiler says.
    pub(crate) fn compile(text: &CStr, checked: bool) -> Result<Self, String> {
        let path = fresh();
        let mut command = Command::new("cc");
        // Tests compile many texts, and run each on little data.
        command.args(["-x", "c", "-std=c11", "-O0", "-shared", "-fPIC"]);
        // A macro that is defined twice is a warning alone. The other two are about vectors that functions return, and about
        // constants behind conditions.
        command.args(["-Werror", "-Wno-psabi", "-Wno-div-by-zero"]);
        if checked {
            // Sanitizers that need no runtime library.
            command.args(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]);
        }
        command.arg("-o").arg(&path).args(["-", "-lm"]);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("cc could not be started: {error}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A compiler that closes its input says why in its log.
            let _ = stdin
                .write_all(text.to_bytes())
                .and_then(|()| stdin.write_all(CALLER.as_bytes()));
        }
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Self::open(&path, checked)
    }

    /// Loads what [`binary`](Self::binary) gave, in another process too.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn restore(binary: &[u8], checked: bool) -> Result<Self, String> {
        let library = binary
            .strip_prefix(mark(checked))
            .and_then(<[u8]>::split_first_chunk)
            .filter(|(sum, library)| **sum == checksum(library))
            .map(|(_, library)| library);
        let library = library.ok_or("these bytes are no compiled form of this driver")?;
        let path = fresh();
        std::fs::write(&path, library).map_err(|error| error.to_string())?;
        Self::open(&path, checked)
    }

    /// Opens a library, whose file is gone afterwards.
    fn open(path: &Path, checked: bool) -> Result<Self, String> {
        let bytes = std::fs::read(path);
        // SAFETY: the library has no initializers but those of the C runtime.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string());
        // The mapping stays without the file.
        let _ = std::fs::remove_file(path);
        let bytes = bytes.map_err(|error| error.to_string())?;
        Ok(Self {
            library: library?,
            binary: [&mark(checked)[..], &checksum(&bytes), &bytes].concat(),
        })
    }

    /// The compiled form.
    pub(crate) fn binary(&self) -> &[u8] {
        &self.binary
    }

    /// The address of a function, if there is one of this name.
    pub(crate) fn function(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the symbol is taken as an address alone.
        let symbol = unsafe {
            self.library
                .get::<unsafe extern "C" fn()>(name.to_bytes_with_nul())
        };
        symbol.ok().map(|symbol| *symbol as usize)
    }
}
