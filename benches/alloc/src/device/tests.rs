//! The device's checks see what is wrong, and nothing else.

use super::*;

const BLOCK: u64 = 512;

fn device() -> Device {
    Device::new(Kind {
        capacity: 8 << 20,
        lag: 100,
        virtual_memory: true,
        checked: true,
    })
}

fn streams(which: &[usize]) -> [bool; STREAMS] {
    let mut streams = [false; STREAMS];
    for &stream in which {
        streams[stream] = true;
    }
    streams
}

#[test]
fn memory_that_is_shared_or_missing_is_seen() {
    let device = device();
    let segment = device.segment_alloc(2 << 20).unwrap();
    device.begin_use(segment, 2 * BLOCK, 0);
    assert!(device.complaints().is_empty());
    device.begin_use(segment + BLOCK, BLOCK, 0);
    assert_eq!(device.complaints().len(), 1);
    device.begin_use(segment + (2 << 20) - BLOCK, 2 * BLOCK, 0);
    assert!(device.complaints()[1].contains("nothing is mapped"));
}

#[test]
fn another_stream_has_to_come_behind_the_work_on_memory() {
    // Each turn: the same bytes on stream 0, then on stream 1, with something in between.
    let reuse = |between: &dyn Fn(&Device)| {
        let device = device();
        let segment = device.segment_alloc(2 << 20).unwrap();
        device.tick(1);
        device.begin_use(segment, BLOCK, 0);
        device.tick(2);
        device.end_use(segment, BLOCK, &streams(&[0]));
        between(&device);
        device.begin_use(segment, BLOCK, 1);
        device.complaints().len()
    };
    assert_eq!(reuse(&|_| ()), 1, "nothing in between");
    assert_eq!(reuse(&|device| device.tick(102)), 0, "time");
    assert_eq!(reuse(&Device::finish), 0, "an idle device");
    let wait = |device: &Device| {
        device
            .fence_wait(&device.fence(StreamId(0)).unwrap())
            .unwrap()
    };
    assert_eq!(reuse(&wait), 0, "a wait");
    let order = |device: &Device| {
        let fence = device.fence(StreamId(0)).unwrap();
        // Through a third stream, too.
        assert!(device.order(StreamId(2), &fence));
        let fence = device.fence(StreamId(2)).unwrap();
        assert!(device.order(StreamId(1), &fence));
    };
    assert_eq!(reuse(&order), 0, "a wait on the device");
    let wrong = |device: &Device| {
        device
            .fence_wait(&device.fence(StreamId(2)).unwrap())
            .unwrap()
    };
    assert_eq!(reuse(&wrong), 1, "a wait for another stream");
}

#[test]
fn memory_that_is_worked_on_is_not_given_back() {
    let device = device();
    let segment = device.segment_alloc(2 << 20).unwrap();
    device.tick(1);
    device.begin_use(segment, BLOCK, 0);
    device.end_use(segment, BLOCK, &streams(&[0, 1]));
    device.segment_free(segment);
    assert_eq!(device.complaints().len(), 1);
    assert_eq!(device.used(), 0);
    assert_eq!(device.leftovers(), None);
}

#[test]
fn memory_that_is_worked_on_is_seen_through_all_its_addresses() {
    let device = device();
    let range = device.reserve(4 << 20, GRANULARITY).unwrap();
    let physical = device.create(GRANULARITY).unwrap();
    device.map(range, &[physical]).unwrap();
    device.map(range + GRANULARITY, &[physical]).unwrap();
    device.tick(1);
    device.begin_use(range, BLOCK, 0);
    device.begin_use(range + GRANULARITY, BLOCK, 0);
    assert_eq!(device.complaints().len(), 1, "the same bytes twice");
    device.end_use(range, BLOCK, &streams(&[0]));
    device.begin_use(range + GRANULARITY, BLOCK, 1);
    assert_eq!(
        device.complaints().len(),
        3,
        "again, and pending on stream 0"
    );
    device.unmap(range, GRANULARITY);
    assert_eq!(device.complaints().len(), 4, "unmapped too early");
}
