//! Kernels and their launches. A kernel object of OpenCL's holds the arguments of one launch, and only one thread may
//! use it at a time. So a kernel has several, and each launch takes one that nobody else has; no thread waits for
//! another.

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use outrigger_contract as c;
use outrigger_driver_kit::origin::Origin;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cl::{self, Cl};
use crate::device::Device;
use crate::unseen::{Of, Unseen};

/// A program of OpenCL's. Kernels keep it.
pub(crate) struct Program {
    pub(crate) cl: &'static Cl,
    pub(crate) raw: cl::cl_program,
}

// SAFETY: OpenCL's programs may be used by any thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by the module; OpenCL counts the kernels that use it.
        unsafe { (self.cl.clReleaseProgram)(self.raw) };
    }
}

/// A parameter, as far as the runtime tells of it.
#[derive(Clone, Copy, Default)]
struct Parameter {
    kind: Option<u32>,
    /// The size of a value.
    size: Option<u32>,
}

/// A kernel.
pub(crate) struct Kernel {
    program: Arc<Program>,
    name: CString,
    parameters: Box<[Parameter]>,
    /// The work-items that a group may have.
    largest_group: usize,
    largest_block: [usize; 3],
    /// Kernel objects that no launch uses; NULL where there is none. More than these are in `others`.
    free: [AtomicPtr<c_void>; 8],
    others: Mutex<Vec<Object_>>,
}

/// A kernel object of OpenCL's that no launch uses.
struct Object_(cl::cl_kernel);

// SAFETY: one thread at a time uses it: the one that took it.
unsafe impl Send for Object_ {}

impl Drop for Kernel {
    fn drop(&mut self) {
        let places = self.free.iter().map(|place| place.load(Ordering::Acquire));
        let others = self.others.get_mut().drain(..).map(|object| object.0);
        for object in places.filter(|object| !object.is_null()).chain(others) {
            // SAFETY: made by `create`, and no launch uses it.
            unsafe { (self.program.cl.clReleaseKernel)(object) };
        }
    }
}

impl Kernel {
    pub(crate) fn new(program: &Arc<Program>, device: &Device, name: &str) -> Result<Self> {
        let name = CString::new(name).unwrap_or_default();
        let mut kernel = Self {
            program: Arc::clone(program),
            name,
            parameters: Box::default(),
            largest_group: device.largest_group,
            largest_block: device.largest_block,
            free: Default::default(),
            others: Mutex::default(),
        };
        let (cl, object) = (program.cl, kernel.create()?);
        // SAFETY: a live kernel, here and below; the sizes are those of the places.
        let count = cl::number::<u32>(|size, to| unsafe {
            let what = cl::CL_KERNEL_NUM_ARGS;
            (cl.clGetKernelInfo)(object, what, size, to, std::ptr::null_mut())
        });
        let parameter = |index| {
            // SAFETY: as above.
            let space = cl::number::<u32>(|size, to| unsafe {
                let what = cl::CL_KERNEL_ARG_ADDRESS_QUALIFIER;
                (cl.clGetKernelArgInfo)(object, index, what, size, to, std::ptr::null_mut())
            });
            // SAFETY: as above.
            let type_ = cl::text(|size, to, got| unsafe {
                let what = cl::CL_KERNEL_ARG_TYPE_NAME;
                (cl.clGetKernelArgInfo)(object, index, what, size, to, got)
            });
            Parameter::of(space, &type_.unwrap_or_default())
        };
        kernel.parameters = (0..count.unwrap_or(0)).map(parameter).collect();
        // SAFETY: as above.
        let group = cl::number::<usize>(|size, to| unsafe {
            let (what, got) = (cl::CL_KERNEL_WORK_GROUP_SIZE, std::ptr::null_mut());
            (cl.clGetKernelWorkGroupInfo)(object, device.id, what, size, to, got)
        });
        kernel.largest_group = group.unwrap_or(device.largest_group);
        kernel.put_back(object);
        if count.is_none() {
            return Err(cl::fault(cl::CL_INVALID_KERNEL, "clGetKernelInfo"));
        }
        Ok(kernel)
    }

    #[cold]
    fn create(&self) -> Result<cl::cl_kernel> {
        let mut status = cl::CL_SUCCESS;
        // SAFETY: a live program that was built, and a text.
        let object = unsafe {
            (self.program.cl.clCreateKernel)(self.program.raw, self.name.as_ptr(), &mut status)
        };
        cl::check(status, "clCreateKernel")?;
        Ok(object)
    }

    /// A kernel object that is this thread's until it puts it back.
    #[inline]
    fn take(&self) -> Result<cl::cl_kernel> {
        for place in &self.free {
            let object = place.swap(std::ptr::null_mut(), Ordering::Acquire);
            if !object.is_null() {
                return Ok(object);
            }
        }
        match self.others.lock().pop() {
            Some(object) => Ok(object.0),
            None => self.create(),
        }
    }

    #[inline]
    fn put_back(&self, object: cl::cl_kernel) {
        for place in &self.free {
            let (none, order) = (std::ptr::null_mut(), Ordering::Relaxed);
            if (place.compare_exchange(none, object, Ordering::Release, order)).is_ok() {
                return;
            }
        }
        self.others.lock().push(Object_(object));
    }

    /// Does something with a kernel object that has the arguments of a launch.
    #[inline]
    pub(crate) fn with_arguments(
        &self,
        block: &[u8],
        parts: &[c::otr_argument],
        body: impl FnOnce(cl::cl_kernel) -> Result,
    ) -> Result {
        let object = self.take()?;
        let done = self.set(object, block, parts).and_then(|()| body(object));
        self.put_back(object);
        done
    }

    #[inline]
    fn set(&self, object: cl::cl_kernel, block: &[u8], parts: &[c::otr_argument]) -> Result {
        if parts.len() != self.parameters.len() {
            return Err(self.wrong_count(parts.len()));
        }
        let cl = self.program.cl;
        for (index, (part, parameter)) in (0..).zip(parts.iter().zip(&self.parameters)) {
            let bytes = match part.kind {
                c::OTR_ARGUMENT_VALUE => part.size,
                c::OTR_ARGUMENT_ADDRESS => 8,
                c::OTR_ARGUMENT_LOCAL => 0,
                _ => return Err(self.wrong(index, part, "its kind is unknown")),
            };
            if parameter.kind.is_some_and(|kind| kind != part.kind) {
                return Err(self.wrong(index, part, "the parameter is of another kind"));
            }
            let start = part.offset as usize;
            // An argument of local memory has nothing in the block (R30).
            let start = if bytes == 0 { 0 } else { start };
            let Some(value) = block
                .get(start..)
                .and_then(|rest| rest.get(..bytes as usize))
            else {
                return Err(self.wrong(index, part, "it reaches beyond the block of arguments"));
            };
            let status = match part.kind {
                c::OTR_ARGUMENT_ADDRESS => {
                    let mut address = [0; 8];
                    address.copy_from_slice(value);
                    match u64::from_ne_bytes(address) {
                        // SAFETY: a live kernel that is this thread's; NULL is the pointer 0.
                        0 => unsafe { (cl.clSetKernelArg)(object, index, 8, std::ptr::null()) },
                        // SAFETY: as above; R7: the host sees to it that the address is live.
                        address => unsafe {
                            (cl.clSetKernelArgSVMPointer)(object, index, address as *const c_void)
                        },
                    }
                }
                c::OTR_ARGUMENT_VALUE => {
                    if parameter.size.is_some_and(|size| size != part.size) || part.size == 0 {
                        return Err(self.wrong(index, part, "the parameter has another size"));
                    }
                    // SAFETY: a live kernel that is this thread's, and as many bytes.
                    unsafe {
                        (cl.clSetKernelArg)(object, index, value.len(), value.as_ptr().cast())
                    }
                }
                _ => {
                    if part.size == 0 {
                        return Err(self.wrong(index, part, "local memory has at least 1 byte"));
                    }
                    // SAFETY: a live kernel that is this thread's.
                    unsafe {
                        (cl.clSetKernelArg)(object, index, part.size as usize, std::ptr::null())
                    }
                }
            };
            if status != cl::CL_SUCCESS {
                let why = cl::fault(status, "OpenCL refuses it");
                return Err(self.wrong(index, part, why.text()));
            }
        }
        Ok(())
    }

    #[cold]
    fn wrong_count(&self, found: usize) -> Fault {
        Fault::argument(format!(
            "the kernel {} has {} parameters, and the launch has {found} arguments",
            self.name.to_string_lossy(),
            self.parameters.len()
        ))
    }

    #[cold]
    fn wrong(&self, index: u32, part: &c::otr_argument, why: &str) -> Fault {
        Fault::argument(format!(
            "argument {index} of the kernel {} (kind {}, {} bytes at offset {}): {why}",
            self.name.to_string_lossy(),
            part.kind,
            part.size,
            part.offset
        ))
    }

    /// Puts a launch into the hardware queue.
    #[inline]
    pub(crate) fn enqueue(
        &self,
        queue: cl::cl_command_queue,
        unseen: &Unseen,
        object: cl::cl_kernel,
        shape: &Shape,
        origin: Origin,
    ) -> Result {
        let enqueue = self.program.cl.clEnqueueNDRangeKernel;
        let (dimensions, offset, none) = (shape.dimensions, std::ptr::null(), std::ptr::null());
        let (global, local) = (shape.global.as_ptr(), shape.local.as_ptr());
        let taken = unseen.put(Of::Submission(origin), "clEnqueueNDRangeKernel", |event| {
            // SAFETY: a live queue, a kernel that is this thread's and has its arguments, and three sizes each, which
            // OpenCL copies.
            unsafe {
                enqueue(
                    queue, object, dimensions, offset, global, local, 0, none, event,
                )
            }
        });
        taken.map_err(|fault| self.refused(&fault, shape))
    }

    #[cold]
    fn refused(&self, fault: &Fault, shape: &Shape) -> Fault {
        Fault::new(
            fault.code(),
            format!(
                "the kernel {} with {:?} work-items in groups of {:?}: {}",
                self.name.to_string_lossy(),
                shape.global,
                shape.local,
                fault.text()
            ),
        )
    }

    /// The answer that OpenCL would give to a group when it is enqueued, for a launch that waits.
    pub(crate) fn check_group(&self, shape: &Shape) -> Result {
        let items = shape.local.iter().product::<usize>();
        let fits = |(size, most): (&usize, &usize)| size <= most;
        if items <= self.largest_group && shape.local.iter().zip(&self.largest_block).all(fits) {
            return Ok(());
        }
        Err(Fault::argument(format!(
            "a group of {:?} work-items is too large: the kernel {} takes {}, and at most {:?} in each direction",
            shape.local,
            self.name.to_string_lossy(),
            self.largest_group,
            self.largest_block
        )))
    }
}

impl Parameter {
    /// The parameter, by its address space and the name of its type.
    fn of(space: Option<u32>, type_: &str) -> Self {
        match space {
            Some(cl::CL_KERNEL_ARG_ADDRESS_GLOBAL | cl::CL_KERNEL_ARG_ADDRESS_CONSTANT) => Self {
                kind: Some(c::OTR_ARGUMENT_ADDRESS),
                size: None,
            },
            Some(cl::CL_KERNEL_ARG_ADDRESS_LOCAL) => Self {
                kind: Some(c::OTR_ARGUMENT_LOCAL),
                size: None,
            },
            Some(cl::CL_KERNEL_ARG_ADDRESS_PRIVATE) => Self {
                kind: Some(c::OTR_ARGUMENT_VALUE),
                size: size_of_type(type_),
            },
            _ => Self::default(),
        }
    }
}

/// The bytes of a scalar or vector of OpenCL C; `None` for a type of the program's own.
fn size_of_type(name: &str) -> Option<u32> {
    let digits = name.find(|one: char| one.is_ascii_digit());
    let (base, lanes) = name.split_at(digits.unwrap_or(name.len()));
    let lanes: u32 = match lanes {
        "" => 1,
        // Three take the room of four.
        "3" => 4,
        "2" | "4" | "8" | "16" => lanes.parse().ok()?,
        _ => return None,
    };
    let bytes = match base {
        "char" | "uchar" | "unsigned char" => 1,
        "short" | "ushort" | "unsigned short" | "half" => 2,
        "int" | "uint" | "unsigned int" | "float" => 4,
        "long" | "ulong" | "unsigned long" | "double" | "size_t" | "ptrdiff_t" => 8,
        _ => return None,
    };
    Some(bytes * lanes)
}

/// The work-items of a launch: in all, and of a group.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    dimensions: u32,
    global: [usize; 3],
    local: [usize; 3],
}

impl Shape {
    #[inline]
    pub(crate) fn of(launch: &c::otr_launch) -> Result<Self> {
        let (groups, items) = (launch.grid, launch.block);
        if groups.contains(&0) || items.contains(&0) {
            return Err(Fault::argument(format!(
                "a grid of {groups:?} groups of {items:?} work-items: each number is at least 1"
            )));
        }
        let local = items.map(|size| size as usize);
        let global = std::array::from_fn(|at| groups[at] as usize * local[at]);
        let dimensions = match global {
            [_, 1, 1] => 1,
            [_, _, 1] => 2,
            _ => 3,
        };
        Ok(Self {
            dimensions,
            global,
            local,
        })
    }
}

/// A launch that waits in a list, with copies of all that it was given (R30).
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) shape: Shape,
    pub(crate) block: Box<[u8]>,
    pub(crate) parts: Box<[c::otr_argument]>,
}

impl Launch {
    /// Puts the launch into the hardware queue.
    pub(crate) fn issue(
        &self,
        queue: cl::cl_command_queue,
        unseen: &Unseen,
        origin: Origin,
    ) -> Result {
        let enqueue = |object| (self.kernel).enqueue(queue, unseen, object, &self.shape, origin);
        self.kernel
            .with_arguments(&self.block, &self.parts, enqueue)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Barrier, Mutex};

    use super::{Kernel, Program, cl, size_of_type};
    use crate::driver::Open;
    use crate::tests::opened;

    #[test]
    fn types_have_sizes() {
        for (name, size) in [
            ("uint", Some(4)),
            ("ulong", Some(8)),
            ("float4", Some(16)),
            ("double3", Some(32)),
            ("uchar16", Some(16)),
            ("half", Some(2)),
            ("pair", None),
            ("float5", None),
            ("", None),
        ] {
            assert_eq!(size_of_type(name), size, "{name}");
        }
    }

    fn nothing(open: &Open) -> Kernel {
        let device = &open.devices[0];
        let (mut text, mut status) = (c"kernel void nothing() {}".as_ptr(), cl::CL_SUCCESS);
        let (length, none) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: a live context with this device, and one text with a NUL; no callback.
        let raw = unsafe {
            let create = open.cl.clCreateProgramWithSource;
            let raw = create(device.context().raw, 1, &mut text, length, &mut status);
            assert_eq!(status, cl::CL_SUCCESS);
            let options = c"".as_ptr();
            status = (open.cl.clBuildProgram)(raw, 1, &device.id, options, None, none);
            raw
        };
        assert_eq!(status, cl::CL_SUCCESS);
        let program = Arc::new(Program { cl: open.cl, raw });
        Kernel::new(&program, device, "nothing").unwrap()
    }

    #[test]
    fn kernel_objects_that_came_back_are_used_again() {
        let Some(open) = opened("") else { return };
        let kernel = nothing(&open);
        // Takes more kernel objects than there are places.
        let objects = || -> HashSet<_> {
            let taken: Vec<_> = (0..12).map(|_| kernel.take().unwrap()).collect();
            let objects = taken.iter().copied().collect();
            taken.into_iter().for_each(|one| kernel.put_back(one));
            objects
        };
        let first = objects();
        assert_eq!(first.len(), 12, "each is one launch's alone");
        assert_eq!(objects(), first);
    }

    #[test]
    fn no_two_threads_have_one_kernel_object() {
        const THREADS: usize = 12;
        let Some(open) = opened("") else { return };
        let kernel = nothing(&open);
        let (taken, start) = (Mutex::new(HashSet::new()), Barrier::new(THREADS));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..2000 {
                        let one = kernel.take().unwrap();
                        let address = one as usize;
                        assert!(taken.lock().unwrap().insert(address), "taken twice");
                        std::thread::yield_now();
                        taken.lock().unwrap().remove(&address);
                        kernel.put_back(one);
                    }
                });
            }
        });
    }
}
