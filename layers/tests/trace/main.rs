//! The layer `trace`: Perfetto can read the timeline, every piece of work is in its place, and every
//! arrow is complete.

mod importer;

use std::collections::HashSet;

use importer::import;
use outrigger_device::{CopyKind, Driver};
use outrigger_layers::layered;
use outrigger_layers::trace::trace;
use serde_json::Value;

/// Short work that follows close upon each other, of two threads.
const FILLS: usize = 400;

fn events(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

#[test]
fn work_calls_memory_and_arrows_are_in_the_timeline() {
    let path = std::env::temp_dir().join(format!("otr-trace-{}.json", std::process::id()));
    let host = Driver::open(&"host?devices=1&memory=16M&graphs=native".parse().unwrap()).unwrap();
    let layer = trace(&path, &host).unwrap();
    let driver = layered(host, layer).unwrap();
    let queues = [
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(0, 0).unwrap(),
    ];
    let event = driver.event_create(0, false).unwrap();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let mut back = vec![0u8; 4096];
    // SAFETY: both live until the queue was synchronized.
    unsafe {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..FILLS / 2 {
                        queues[0].fill(memory, 4096, &[1]).unwrap();
                    }
                });
            }
        });
        event.record(&queues[0]).unwrap();
        queues[1].wait_event(&event).unwrap();
        let target = back.as_mut_ptr() as u64;
        queues[1]
            .copy(target, memory, 4096, CopyKind::DeviceToHost)
            .unwrap();
        queues[1]
            .host_call(|_| Err(outrigger_device::Code::OUT_OF_RANGE))
            .unwrap();
        assert!(queues[1].synchronize().is_err());
        let graphs = driver.native_graphs().unwrap();
        graphs.record_begin(&queues[0]).unwrap();
        queues[0].fill(memory, 4096, &[2]).unwrap();
        let graph = graphs.record_end(&queues[0]).unwrap();
        queues[0].launch_graph(&graph).unwrap();
        queues[0].synchronize().unwrap();
        driver.memory_free(memory).unwrap();
    }
    assert_eq!(back, [1; 4096]);
    // A process that is killed now leaves an array without its end.
    let cut = std::fs::read_to_string(&path).unwrap();
    let cut = format!("{}]", cut.trim_end().trim_end_matches(','));
    assert!(events(&cut).len() > 20);
    drop(queues);
    drop(event);
    drop(driver);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let events = events(&text);

    // Work stands on the device's process, calls on the host's.
    let timeline = import(&events);
    let calls = u64::from(std::process::id());
    let slices = |is_work: bool, name: &'static str| {
        let slices = timeline.slices.iter();
        let of_side = slices.filter(move |slice| (slice.process != calls) == is_work);
        of_side
            .filter(|slice| slice.name == name)
            .collect::<Vec<_>>()
    };
    // The one in the graph is no work of its own.
    assert_eq!(slices(true, "fill").len(), FILLS);
    assert_eq!(slices(true, "graph").len(), 1);
    let copy = slices(true, "copy device to host");
    assert_eq!(copy[0].args["bytes"], 4096);
    assert_eq!(timeline.threads[&copy[0].thread], "queue 2");
    let host_call = slices(true, "host call");
    assert_eq!(host_call[0].args["failure"], "OUT_OF_RANGE");
    assert_eq!(slices(false, "queue_create").len(), 2);
    let waits = slices(false, "queue_synchronize");
    let failed = waits
        .iter()
        .filter(|call| call.args["outcome"] == "OUT_OF_RANGE");
    assert_eq!(failed.count(), 1);
    let fills = slices(false, "fill");
    assert_eq!(fills.len(), FILLS + 1);
    let threads: HashSet<_> = fills.iter().map(|call| call.thread).collect();
    assert_eq!(threads.len(), 3, "each thread has its track");

    let device = copy[0].process;
    assert_eq!(timeline.processes[&calls], "calls of the driver host");
    assert_eq!(timeline.processes[&device], "device 0 of host");
    assert_eq!(timeline.counted[&device], [4096.0, 0.0]);

    // Each arrow leads from the call to its work, or from the record of an event to who waits for it.
    let arrows = |kind: &'static str| {
        let arrows = timeline.arrows.iter();
        arrows
            .filter(move |arrow| arrow.kind == kind)
            .map(|arrow| {
                let [from, to] = [arrow.from, arrow.to].map(|at| &timeline.slices[at]);
                assert!(to.process == device && (from.process == device) == (kind == "event"));
                (from.name.as_str(), to.name.as_str())
            })
            .collect::<Vec<_>>()
    };
    let submitted = arrows("submit");
    let count = |names| submitted.iter().filter(|pair| **pair == names).count();
    assert_eq!(count(("fill", "fill")), FILLS);
    for names in [
        ("event_record", "record event 3"),
        ("queue_wait_event", "wait for event 3"),
        ("copy", "copy device to host"),
        ("host_call", "host call"),
        ("graph_launch", "graph"),
    ] {
        assert_eq!(count(names), 1, "{names:?} in {submitted:?}");
    }
    assert_eq!(submitted.len(), FILLS + 5);
    assert_eq!(arrows("event"), [("record event 3", "wait for event 3")]);
}
