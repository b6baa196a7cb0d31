//! That commands of a device are spans for who listens. A program of its own: the listener is there
//! before the first command, for all threads.

mod common;

use std::sync::{Arc, Mutex};

use common::{launch, log, logger, open, within_limit};
use outrigger_device::Code;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, field};

/// Collects the labels of device commands, in the order in which they begin.
struct Labels(Arc<Mutex<Vec<String>>>);

impl Subscriber for Labels {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "outrigger::device"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Visitor(&self.0));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Visitor<'a>(&'a Mutex<Vec<String>>);

impl field::Visit for Visitor<'_> {
    fn record_debug(&mut self, _: &field::Field, _: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, field: &field::Field, value: &str) {
        if field.name() == "label" {
            self.0.lock().unwrap().push(value.to_owned());
            // What a listener does wrong does not reach the queue.
            assert_ne!(value, "fill", "on purpose");
        }
    }
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void, upstream: i32) -> i32 {
    upstream
}

#[test]
fn each_command_is_a_span_and_a_panic_of_the_listener_stays_outside() {
    within_limit(|| {
        let labels: Arc<Mutex<Vec<String>>> = Arc::default();
        tracing::subscriber::set_global_default(Labels(Arc::clone(&labels))).unwrap();
        let driver = open("host?devices=1&memory=1M");
        let (log, kernel) = (log(), logger(&driver, 0));
        let queue = driver.queue_create(0, 0).unwrap();
        let memory = driver.memory_alloc(0, 16).unwrap();
        let event = driver.event_create(0, true).unwrap();
        launch(&queue, &kernel, log, 1, Code::OK);
        // SAFETY: 16 bytes, freed after the queue has been synchronized.
        unsafe { queue.fill(memory, 16, &[0]) }.unwrap();
        event.record(&queue).unwrap();
        let cannot_fail = outrigger_device::sys::OTR_HOST_CALL_CANNOT_FAIL;
        // SAFETY: the function uses nothing.
        unsafe { queue.host_call_raw(nothing, std::ptr::null_mut(), cannot_fail) }.unwrap();
        queue.synchronize().unwrap();
        // SAFETY: as above.
        unsafe { driver.memory_free(memory) }.unwrap();
        assert_eq!(
            *labels.lock().unwrap(),
            ["logger", "fill", "mark", "host call"]
        );
        assert_eq!(log.values(), [1]);
        assert!(event.time_ns().unwrap().is_some());
    });
}
