//! Modules and kernels. Compiled code is an ELF header, and behind it the names of the kernels. What a kernel does goes by
//! its name; one that the stand-in does not know does nothing.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::calls::{api, misuse};
use crate::machine::{lose, working};
use crate::streams::{Stream, add, attempt, live, remove, submit};

const HEAD: usize = 64;

/// Compiled code with kernels of these names.
pub(crate) fn compiled(names: &[String]) -> Vec<u8> {
    let names = names.join("\n");
    let mut file = vec![0; HEAD];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    // An empty table of sections, at the end: so the size of the file is known.
    let size = (HEAD + names.len()) as u64;
    file[0x28..0x30].copy_from_slice(&size.to_le_bytes());
    file.extend_from_slice(names.as_bytes());
    file
}

/// Names behind a word of a source, up to what is no part of a name.
pub(crate) fn names(text: &str, word: &str) -> Vec<String> {
    let name = |rest: &str| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        rest.trim_start()
            .chars()
            .take_while(|c| is_part(*c))
            .collect()
    };
    text.split(word).skip(1).map(name).collect()
}

/// The line of a source that does not compile.
pub(crate) fn wrong_line(text: &str) -> Option<usize> {
    Some(text.lines().position(|line| line.contains("wrong"))? + 1)
}

pub(crate) struct Module {
    functions: Vec<*mut Function>,
}

pub(crate) struct Function {
    pub(crate) name: CString,
    pub(crate) device: usize,
}

pub(crate) struct Link {
    log: (*mut u8, usize),
    result: Vec<u8>,
}

/// Sizes of the parameters of a kernel.
fn parameters(name: &CStr) -> &'static [usize] {
    match name.to_bytes() {
        // p[i] += value, for i below n; and the same slowly.
        b"add" | b"add_slowly" => &[8, 4, 4],
        // *p = bytes of shared memory.
        b"tell_shared" => &[8],
        _ => &[],
    }
}

/// # Safety
/// The arguments are those of the kernel.
pub(crate) unsafe fn run(name: &CStr, device: usize, shared: u32, block: &[u8]) {
    let long = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    match name.to_bytes() {
        b"add" | b"add_slowly" => {
            if name == c"add_slowly" {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            for index in 0..word(8) as usize {
                // SAFETY: this function's contract.
                unsafe { *(long(0) as *mut u32).add(index) += word(12) };
            }
        }
        // SAFETY: this function's contract.
        b"tell_shared" => unsafe { *(long(0) as *mut u32) = shared },
        b"crash" => lose(device, 700),
        _ => {}
    }
}

/// The arguments of a launch, one behind the other.
///
/// # Safety
/// The lists are as for `cuLaunchKernel`.
pub(crate) unsafe fn arguments(
    function: &Function,
    places: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<u8>, c_int> {
    let mut block = Vec::new();
    let sizes = parameters(&function.name);
    // SAFETY: this function's contract, for all of this block.
    unsafe {
        if !places.is_null() {
            for (at, size) in sizes.iter().enumerate() {
                let part = std::slice::from_raw_parts((*places.add(at)).cast(), *size);
                block.extend_from_slice(part);
            }
        } else if !extra.is_null() {
            let marks = (
                (*extra).addr(),
                (*extra.add(2)).addr(),
                (*extra.add(4)).addr(),
            );
            if marks != (1, 2, 0) {
                return Err(misuse("extra arguments in an unknown order".to_owned()));
            }
            let size = *(*extra.add(3)).cast::<usize>();
            block.extend_from_slice(std::slice::from_raw_parts((*extra.add(1)).cast(), size));
        }
    }
    if block.len() != sizes.iter().sum::<usize>() {
        let text = format!("{} bytes of arguments for {:?}", block.len(), function.name);
        return Err(misuse(text));
    }
    Ok(block)
}

api! {
    fn cuModuleLoadData(place: *mut *mut Module, image: *const u8) {
        let context = attempt!(working());
        let size = image.add(0x28).cast::<u64>().read_unaligned() as usize;
        // Code of the real compiler has sections. Nothing of it can be run.
        let is_real = image.add(0x3c).cast::<u16>().read_unaligned() > 0;
        if is_real {
            *place = add(Module { functions: Vec::new() });
            return 0;
        }
        let names = std::slice::from_raw_parts(image.add(HEAD), size - HEAD);
        let names = String::from_utf8_lossy(names).into_owned();
        if names.contains("refused") { return 209; }
        let function = |name: &str| {
            let name = CString::new(name).unwrap();
            add(Function { name, device: context.device })
        };
        let functions = names.lines().map(function).collect();
        *place = add(Module { functions });
        0
    }

    fn cuModuleUnload(module: *mut Module) {
        let module = attempt!(remove(module, "a module"));
        for function in module.functions {
            attempt!(remove(function, "a function"));
        }
        0
    }

    fn cuModuleGetFunction(place: *mut *mut Function, module: *mut Module, name: *const c_char) {
        let module = attempt!(live(module, "a module"));
        let name = CStr::from_ptr(name);
        match module.functions.iter().find(|function| (***function).name.as_c_str() == name) {
            Some(function) => { *place = *function; 0 }
            None => 500,
        }
    }

    fn cuModuleGetFunctionCount(place: *mut c_uint, module: *mut Module) {
        *place = attempt!(live(module, "a module")).functions.len() as c_uint;
        0
    }

    fn cuModuleEnumerateFunctions(places: *mut *mut Function, count: c_uint, module: *mut Module) {
        let module = attempt!(live(module, "a module"));
        for (at, function) in module.functions.iter().take(count as usize).enumerate() {
            *places.add(at) = *function;
        }
        0
    }

    fn cuFuncGetAttribute(value: *mut c_int, what: c_int, function: *mut Function) {
        attempt!(live(function, "a function"));
        *value = match what { 0 => 256, 1 => 1024, _ => return 1 };
        0
    }

    fn cuFuncSetAttribute(function: *mut Function, what: c_int, value: c_int) {
        attempt!(live(function, "a function"));
        if what == 8 && value <= (64 << 10) - 1024 { 0 } else { 1 }
    }

    fn cuLinkCreate_v2(count: c_uint, options: *mut c_int, values: *mut *mut c_void, place: *mut *mut Link) {
        attempt!(working());
        let mut log = (std::ptr::null_mut(), 0);
        for at in 0..count as usize {
            match *options.add(at) {
                5 => log.0 = (*values.add(at)).cast(),
                6 => log.1 = *values.add(at) as usize,
                _ => return 1,
            }
        }
        *place = add(Link { log, result: Vec::new() });
        0
    }

    fn cuLinkAddData_v2(
        link: *mut Link,
        kind: c_int,
        data: *mut c_void,
        size: usize,
        _name: *const c_char,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        attempt!(live(link, "a link"));
        let text = std::slice::from_raw_parts(data.cast::<u8>(), size);
        let (Some((0, text)), 1) = (text.split_last(), kind) else {
            return misuse("PTX without a NUL at its end".to_owned());
        };
        let text = String::from_utf8_lossy(text);
        if let Some(line) = wrong_line(&text) {
            let log = format!("ptxas application ptx input, line {line}; error   : it is wrong\0");
            let length = log.len().min((*link).log.1);
            std::ptr::copy_nonoverlapping(log.as_ptr(), (*link).log.0, length);
            return 218;
        }
        (*link).result = compiled(&names(&text, ".entry"));
        0
    }

    fn cuLinkComplete(link: *mut Link, place: *mut *mut c_void, size: *mut usize) {
        let link = attempt!(live(link, "a link"));
        *place = link.result.as_ptr().cast_mut().cast();
        *size = link.result.len();
        0
    }

    fn cuLinkDestroy(link: *mut Link) {
        attempt!(remove(link, "a link"));
        0
    }

    fn cuLaunchKernel(
        function: *mut Function,
        _grid_x: c_uint,
        _grid_y: c_uint,
        _grid_z: c_uint,
        _block_x: c_uint,
        _block_y: c_uint,
        _block_z: c_uint,
        shared: c_uint,
        stream: *mut Stream,
        places: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let function = attempt!(live(function, "a function"));
        let block = attempt!(arguments(function, places, extra));
        let (name, device) = (function.name.clone(), function.device);
        // SAFETY: the driver promises that what the arguments name is live.
        submit(stream, move || unsafe { run(&name, device, shared, &block) })
    }
}
