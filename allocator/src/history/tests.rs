//! Tests of the history alone; `tests/` of the workspace drives it through the C ABI.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use super::*;

fn block(address: u64, requested: u64) -> Recorded {
    Recorded {
        address,
        size: requested.next_multiple_of(512),
        requested,
        stream: StreamId(7),
        pool: None,
    }
}

/// Counts contexts that are alive, and fails if the history's lock is held when one is released.
struct Source {
    history: Arc<History>,
    next: AtomicU64,
    alive: Arc<AtomicU64>,
}

impl ContextSource for Source {
    fn capture(&self) -> u64 {
        assert!(self.history.state.try_lock().is_some());
        self.alive.fetch_add(1, Ordering::Relaxed);
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn release(&self, _token: u64) {
        assert!(self.history.state.try_lock().is_some());
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn the_ring_keeps_the_last_events_and_contexts_are_given_back_without_a_lock() {
    let (history, alive) = (Arc::new(History::new()), Arc::new(AtomicU64::new(0)));
    assert!(!history.is_on());
    let source = Source {
        history: Arc::clone(&history),
        next: AtomicU64::new(0),
        alive: Arc::clone(&alive),
    };
    history.record(Some(HistoryOptions {
        entries: 4,
        source: Some(Arc::new(source)),
        context_of_frees: false,
    }));
    for round in 0..5 {
        let block = block(0x1000 * (round + 1), 100);
        let context = history.context();
        assert!(context.is_some());
        history.alloc(&block, context);
        assert!(history.context_of_free().is_none());
        history.free(&block, round != 3, None);
    }
    history.free_completed(&block(0x4000, 100));
    let seen: Vec<_> = history
        .entries()
        .iter()
        .map(|entry| (entry.kind.name(), entry.block.address))
        .collect();
    assert_eq!(
        seen,
        [
            ("alloc", 0x5000),
            ("free_requested", 0x5000),
            ("free_completed", 0x5000),
            ("free_completed", 0x4000),
        ]
    );
    // The ring refers to two contexts; the others go with the next capture at the latest.
    drop(history.context());
    assert_eq!(alive.load(Ordering::Relaxed), 2);
    history.keep_labels();
    let context = history.context();
    history.alloc(&block(0x6000, 100), context);
    history.record(None);
    assert!(history.is_on(), "labels are kept");
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn the_largest_holders_are_named() {
    let history = History::new();
    history.keep_labels();
    let name = |holder: &Holder| holder.label.as_deref().map(str::to_owned);
    Label::new("weights").push();
    history.alloc(&block(0x1000, 4000), None);
    Label::new("activations").push();
    history.alloc(&block(0x9000, 1000), None);
    history.alloc(&block(0x11000, 9000), None);
    assert_eq!(Label::pop(), Some(Label::new("activations")));
    assert_eq!(
        &*history.note(0x1000).unwrap().label.unwrap().name(),
        "weights"
    );
    assert_eq!(Label::pop(), Some(Label::new("weights")));
    assert_eq!(Label::pop(), None);
    history.alloc(&block(0x19000, 100), None);
    let holders = history.top_holders(2);
    assert_eq!(name(&holders[0]).unwrap(), "activations");
    assert_eq!((holders[0].bytes, holders[0].blocks), (1024 + 9216, 2));
    assert_eq!(name(&holders[1]).unwrap(), "weights");
    // A block that waits for a stream is nobody's any more.
    history.free(&block(0x11000, 9000), false, None);
    history.free(&block(0x1000, 4000), true, None);
    let holders = history.top_holders(9);
    assert_eq!(holders.len(), 2);
    assert_eq!(holders[1].label, None);
    assert!(history.entries().is_empty(), "no ring was asked for");
}

/// A sink that others can look into, or that fails.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>, bool);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1 {
            return Err(io::Error::other("disk full"));
        }
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_trace_has_what_came_while_it_was_on() {
    let history = History::new();
    history.keep_labels();
    history.alloc(&block(0x1000, 10), None);
    let sink = Sink::default();
    history
        .start_trace(Box::new(sink.clone()), "name=test")
        .unwrap();
    history.alloc(&block(0x2000, 20), None);
    history.record_stream(0x2000, StreamId(99));
    history.record_stream(0x1000, StreamId(99));
    history.free(&block(0x1000, 10), true, None);
    history.mark("step\n1");
    history.free(&block(0x2000, 20), false, None);
    Label::new("late").push();
    history.alloc(&block(0x1000, 11), None);
    Label::pop();
    history.out_of_memory(1 << 40, StreamId(99), 0);
    history.free_completed(&block(0x2000, 20));
    history.stop_trace().unwrap();
    history.free(&block(0x1000, 11), true, None);
    let text = String::from_utf8(sink.0.lock().clone()).unwrap();
    let lines: Vec<_> = text.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "a 0 20 0",
            "r 0 1",
            "m step 1",
            "f 0",
            "# label late",
            "a 1 11 0",
            "# oom 1099511627776 1"
        ]
    );
    let loaded = crate::trace::Trace::load(text.as_bytes()).unwrap();
    assert_eq!((loaded.allocations, loaded.ops.len()), (2, 7));
    assert!(loaded.header.ends_with("name=test"));

    let failing = Sink(Arc::default(), true);
    history.start_trace(Box::new(failing), "").unwrap();
    let error = history.stop_trace().unwrap_err();
    assert_eq!(error.to_string(), "disk full");
    history.stop_trace().unwrap();
}
