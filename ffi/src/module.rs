//! Modules and kernels: code for a device, loaded by the host and launched in stream order.

use std::ffi::{CStr, c_char, c_void};

use outrigger_device::sys::{otr_argument_t, otr_code_format_t, otr_launch_t};
use outrigger_hooks as hooks;
use outrigger_hooks::{Arguments, Code, Error, Grid, Launch, Loading, Result, Source};

use crate::guard::{Out, c_str, sized, slice, text, unused};
use crate::{otr_graph_t, otr_kernel_t, otr_module_t, otr_node_t, otr_stream_t};

/// `flags` of a module: the call returns at once, and the code is compiled on threads of the library.
pub const OTR_MODULE_BACKGROUND: u32 = 1;

/// `flags` of a module: nothing is compiled. Code that is not loaded already, and whose compiled form is not on disk
/// (OUTRIGGER_CACHE), is OTR_ERR_NOT_FOUND.
pub const OTR_MODULE_STORED: u32 = 2;

/// Code for a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_module_params_t {
    /// sizeof(otr_module_params_t)
    pub struct_size: usize,
    /// NULL
    pub next: *const c_void,
    /// The code: source or a compiled form, as `format` says.
    pub code: *const c_void,
    /// The bytes of the code, without a NUL at the end of a source.
    pub size: u64,
    /// Options for the compiler of the format; or NULL.
    pub options: *const c_char,
    /// OTR_CODE_*, but not OTR_CODE_HOST_FUNCTION: see otr_host_kernel_launch for these.
    pub format: otr_code_format_t,
    /// 0, OTR_MODULE_BACKGROUND or OTR_MODULE_STORED.
    pub flags: u32,
}

fn source(params: *const otr_module_params_t) -> Result<(Source, Loading)> {
    let params = sized(params, "params")?;
    unused(params.next, 0, "params")?;
    let how = match params.flags {
        0 => Loading::Now,
        OTR_MODULE_BACKGROUND => Loading::Background,
        OTR_MODULE_STORED => Loading::Stored,
        flags => {
            let text = format!(
                "params->flags is {flags:#x}: use 0, OTR_MODULE_BACKGROUND or OTR_MODULE_STORED"
            );
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
    };
    let size = usize::try_from(params.size).unwrap_or(usize::MAX);
    let code = slice(params.code.cast::<u8>(), size, "params->code")?;
    let mut source = Source::new(params.format, code);
    if !params.options.is_null() {
        // H7: the text is what the compiler is given.
        text(params.options, "params->options")?;
        source = source.with_options(c_str(params.options, "params->options")?);
    }
    Ok((source, how))
}

/// Runs `with` on a caller's launch.
fn with_launch<R>(
    launch: *const otr_launch_t,
    with: impl FnOnce(&Launch<'_>) -> Result<R>,
) -> Result<R> {
    let launch = sized(launch, "launch")?;
    unused(launch.next.cast(), 0, "launch")?;
    let block = slice(
        launch.args.cast::<u8>(),
        launch.args_size as usize,
        "launch->args",
    )?;
    let parts: &[otr_argument_t] = slice(
        launch.arguments,
        launch.argument_count as usize,
        "launch->arguments",
    )?;
    let label = if launch.label.is_null() {
        None
    } else {
        // SAFETY: not NULL; a label is a NUL-terminated string that lives as long as the process.
        Some(unsafe { CStr::from_ptr(launch.label) })
    };
    with(&Launch {
        grid: Grid {
            groups: launch.grid,
            items: launch.block,
            shared_bytes: launch.shared_bytes,
        },
        args: Arguments { block, parts },
        cost_ns: launch.cost_ns,
        label,
    })
}

api! {
    /// Loads code on a device. It is compiled once: the compiled form is kept on disk (OUTRIGGER_CACHE), and equal
    /// code that is loaded already is the same module. OTR_ERR_UNSUPPORTED for a format that the driver does not
    /// take; OTR_ERR_INVALID_ARGUMENT for code that does not compile, with the compiler's log and the lines
    /// that it names. With OTR_MODULE_BACKGROUND, otr_module_query and otr_kernel_get have these failures.
    fn otr_module_load(
        device: u32,
        params: *const otr_module_params_t,
        module: *mut otr_module_t,
    ) {
        let out = Out::new(module, "module")?;
        let device = hooks::runtime()?.device(device)?;
        let (source, how) = source(params)?;
        out.set(device.load_module(&source, how)?.id());
        Ok(())
    }

    /// Sets `loaded` to 1 if the code of a module is loaded, and to 0 while it is compiled. Never waits. Fails if
    /// it cannot be loaded, at every call.
    fn otr_module_query(module: otr_module_t, loaded: *mut u32) {
        let out = Out::new(loaded, "loaded")?;
        out.set(hooks::module(module)?.query()?.into());
        Ok(())
    }

    /// Destroys a module. Its kernels live on.
    fn otr_module_destroy(module: otr_module_t) {
        hooks::destroy_module(module)
    }

    /// A kernel of a module by its name, or its only kernel if the name is NULL. It is the caller's until
    /// otr_kernel_destroy. Waits until the code is compiled. OTR_ERR_NOT_FOUND for another name.
    fn otr_kernel_get(module: otr_module_t, name: *const c_char, kernel: *mut otr_kernel_t) {
        let out = Out::new(kernel, "kernel")?;
        let name = if name.is_null() {
            None
        } else {
            Some(c_str(name, "name")?)
        };
        out.set(hooks::module(module)?.kernel(name)?.id());
        Ok(())
    }

    /// Destroys a kernel without waiting. Launches that were submitted still run, and so do graphs.
    fn otr_kernel_destroy(kernel: otr_kernel_t) {
        hooks::destroy_kernel(kernel)
    }

    /// Launches a kernel of a module in stream order, and returns at once; a function of the host is launched by
    /// otr_host_kernel_launch. Block and arguments are copied. The addresses among the arguments lie in live memory
    /// of the stream's device (H22). OTR_ERR_INVALID_ARGUMENT for arguments that are not those of the kernel, as
    /// far as the driver can tell.
    fn otr_kernel_launch(stream: otr_stream_t, kernel: otr_kernel_t, launch: *const otr_launch_t) {
        with_launch(launch, |launch| {
            let (stream, kernel) = (hooks::stream(stream)?, hooks::kernel(kernel)?);
            // SAFETY: H22: the memory that the arguments name is live; H6: they are valid for the call.
            unsafe { stream.launch_kernel(&kernel, launch) }
        })
    }

    /// Adds a launch of a kernel of a module; see otr_kernel_launch. What its addresses name is kept alive, and can
    /// be bound.
    fn otr_graph_add_kernel(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        kernel: otr_kernel_t,
        launch: *const otr_launch_t,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = slice(deps, dep_count as usize, "deps")?;
        out.set(with_launch(launch, |launch| {
            let (graph, kernel) = (hooks::graph(graph)?, hooks::kernel(kernel)?);
            // SAFETY: H22: the memory that the arguments name is live at every replay, since the graph keeps it.
            unsafe { hooks::add_kernel_node(&graph, deps, &kernel, launch) }
        })?);
        Ok(())
    }
}
