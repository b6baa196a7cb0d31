//! Turns a text in the dialect into functions of this process, with the system's C compiler.

use std::ffi::{CStr, c_void};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;

/// What is put behind a text: a function that calls a kernel for each group of a grid. A kernel takes addresses, and
/// then one struct `arguments_t`. Function pointers of other pointer types are called alike here.
const CALLER: &str = r"
typedef void (*kernel_t)(void);
#define PLACE const otr_place_t*
void otr_run(kernel_t kernel, const uint32_t* grid, const uint64_t* block, uint64_t n) {
  otr_place_t place = {{0, 0, 0}, {(i32)grid[0], (i32)grid[1], (i32)grid[2]}};
  arguments_t args;
  memcpy(&args, block + n, sizeof args);
#define P(k) ((void*)(uintptr_t)block[k])
#define V void*
  for (place.group[2] = 0; place.group[2] < place.count[2]; place.group[2]++)
  for (place.group[1] = 0; place.group[1] < place.count[1]; place.group[1]++)
  for (place.group[0] = 0; place.group[0] < place.count[0]; place.group[0]++)
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
";

/// The most addresses of a kernel.
pub(crate) const ADDRESSES: usize = 9;

/// A text that is loaded into this process.
pub(crate) struct Loaded(Library);

/// `otr_run` of a text.
pub(crate) type RunFn = unsafe extern "C" fn(*const c_void, *const u32, *const u64, u64);

impl Loaded {
    /// Compiles a text. With `checked`, undefined behaviour ends the process.
    ///
    /// # Errors
    /// What the compiler says.
    pub(crate) fn compile(text: &CStr, checked: bool) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = format!("otr-dialect-{}-{number}.so", std::process::id());
        let path = std::env::temp_dir().join(file);
        let mut command = Command::new("cc");
        command.args(["-x", "c", "-std=c11", "-O0", "-shared", "-fPIC", "-w"]);
        // Tests compile many texts, and run each on little data.
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
        // SAFETY: the library has no initializers but those of the C runtime.
        let library = unsafe { Library::new(&path) }.map_err(|error| error.to_string());
        // The mapping stays without the file.
        let _ = std::fs::remove_file(&path);
        library.map(Self)
    }

    /// The address of a function, if there is one of this name.
    pub(crate) fn function(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the symbol is taken as an address alone.
        let symbol = unsafe {
            self.0
                .get::<unsafe extern "C" fn()>(name.to_bytes_with_nul())
        };
        symbol.ok().map(|symbol| *symbol as usize)
    }
}
