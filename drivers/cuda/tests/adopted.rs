//! Streams of other libraries (R56), which destroy them when they like.

use std::ffi::{c_int, c_uint, c_void};

use crate::bench::{Bench, free, read, write};
use serial_test::serial;

#[test]
#[serial]
fn a_stream_is_left_alone_once_its_queue_is_destroyed_and_its_work_has_finished() {
    let bench = Bench::new();
    let driver = bench.open();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let own = driver.queue_create(0, 0).unwrap();
    for case in ["an event", "a wait", "nothing"] {
        let stream = bench.stream(0);
        // SAFETY: a live stream of the context.
        let queue = unsafe { driver.queue_adopt(0, stream as u64) }.unwrap();
        let event = driver.event_create(0, false).unwrap();
        match case {
            "an event" => {
                // SAFETY: nothing else uses the memory.
                unsafe { queue.fill(memory, 64, &[1]) }.unwrap();
                queue.host_call(|_| Ok(())).unwrap();
                // SAFETY: as above.
                unsafe { queue.fill(memory, 64, &[2]) }.unwrap();
                event.record(&queue).unwrap();
                drop(queue);
                event.synchronize().unwrap();
            }
            "a wait" => {
                write(&queue, memory, &[3; 64]);
                event.record(&queue).unwrap();
                queue.synchronize().unwrap();
                drop(queue);
            }
            _ => drop(queue),
        }
        bench.destroy(stream);
        // The event is the last that keeps what was made for the stream.
        drop(event);
        own.synchronize().unwrap();
        assert_eq!(bench.misuse(), Vec::<String>::new(), "{case}");
    }
    assert_eq!(read(&own, memory, 64), [3; 64]);
    free(&driver, memory);
    drop(own);
    bench.finish(driver);
}

impl Bench {
    /// A stream of a device, as another library makes one.
    fn stream(&self, device: c_int) -> *mut c_void {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Context = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: CUDA declares the functions so; the places live through the calls.
        unsafe {
            let retain = self.function::<Retain>("cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&mut context, device), 0);
            assert_eq!(self.function::<Context>("cuCtxPushCurrent_v2")(context), 0);
            let create = self.function::<Create>("cuStreamCreateWithPriority");
            assert_eq!(create(&mut stream, 1, 0), 0);
        }
        stream
    }

    /// Destroys what `stream` made.
    fn destroy(&self, stream: *mut c_void) {
        type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Release = unsafe extern "C" fn(c_int) -> c_int;
        type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        let mut context = std::ptr::null_mut();
        // SAFETY: CUDA declares the functions so.
        unsafe {
            let destroy = self.function::<Destroy>("cuStreamDestroy_v2");
            assert_eq!(destroy(stream), 0);
            assert_eq!(self.function::<Pop>("cuCtxPopCurrent_v2")(&mut context), 0);
            let release = self.function::<Release>("cuDevicePrimaryCtxRelease_v2");
            assert_eq!(release(0), 0);
        }
    }
}
