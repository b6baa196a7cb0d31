//! The layer `trace`: the timeline is what Perfetto reads, with every piece of work in its place and every
//! arrow whole.

use std::collections::HashMap;

use outrigger_device::{CopyKind, Driver};
use outrigger_layers::layered;
use outrigger_layers::trace::trace;
use serde_json::Value;

/// Where arrows of one number begin, and where they end.
type Ends<'a> = (Vec<&'a Value>, Vec<&'a Value>);

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
        queues[0].fill(memory, 4096, &[1]).unwrap();
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
    // What a process that is killed now leaves: an array without its end.
    let cut = std::fs::read_to_string(&path).unwrap();
    let cut = format!("{}]", cut.trim_end().trim_end_matches(','));
    assert!(events(&cut).len() > 20);
    drop(queues);
    drop(event);
    drop(driver);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let events = events(&text);

    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let slices = |name: &'static str| of("X").filter(move |event| event["name"] == name);
    // Work stands on the device's process, calls on the host's.
    let calls_process = u64::from(std::process::id());
    let work = |name| {
        slices(name)
            .filter(|event| event["pid"] != calls_process)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        work("fill").len(),
        1,
        "the fill in the graph is no work of its own"
    );
    assert_eq!(work("graph").len(), 1);
    assert_eq!(work("copy device to host")[0]["args"]["bytes"], 4096);
    assert_eq!(work("host call")[0]["args"]["failure"], "OUT_OF_RANGE");
    assert_eq!(slices("queue_create").count(), 2);
    assert!(slices("queue_synchronize").any(|event| event["args"]["code"] == "OUT_OF_RANGE"));
    for slice in of("X") {
        assert!(slice["ts"].as_f64().unwrap() >= 0.0 && slice["dur"].as_f64().unwrap() >= 0.0);
    }
    let counted: Vec<_> = of("C")
        .map(|event| event["args"]["bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(counted, [4096, 0]);
    let named: Vec<_> = of("M")
        .map(|event| event["args"]["name"].to_string())
        .collect();
    for name in [
        "device 0 of host",
        "calls of the driver host",
        "queue 1",
        "queue 2",
    ] {
        assert!(
            named.contains(&format!("\"{name}\"")),
            "{name} in {named:?}"
        );
    }

    // Each arrow has one start and one end, in slices that are there, and does not lead back in time.
    let mut arrows: HashMap<(String, u64), Ends<'_>> = HashMap::new();
    for event in events
        .iter()
        .filter(|event| event["ph"] == "s" || event["ph"] == "f")
    {
        let key = (event["cat"].to_string(), event["id"].as_u64().unwrap());
        let ends = arrows.entry(key).or_default();
        if event["ph"] == "s" {
            ends.0.push(event)
        } else {
            ends.1.push(event)
        }
        let at = event["ts"].as_f64().unwrap();
        let around = of("X").any(|slice| {
            let start = slice["ts"].as_f64().unwrap();
            slice["pid"] == event["pid"]
                && slice["tid"] == event["tid"]
                && (start..=start + slice["dur"].as_f64().unwrap() + 0.001).contains(&at)
        });
        assert!(around, "{event} is in no slice");
    }
    for ((kind, id), (from, to)) in &arrows {
        assert_eq!((from.len(), to.len()), (1, 1), "{kind} {id}");
        assert!(
            from[0]["ts"].as_f64() <= to[0]["ts"].as_f64(),
            "{kind} {id}"
        );
    }
    let kinds = |kind: &str| arrows.keys().filter(|(k, _)| k.contains(kind)).count();
    // fill, record, wait, copy, host call, graph; and from the record to the wait.
    assert_eq!((kinds("submit"), kinds("event")), (6, 1));
}
