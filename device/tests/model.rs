//! The lock-free parts of the host driver under loom: all interleavings of a few threads, with the
//! reorderings that the memory model allows. It compiles the driver's own source with loom's atomics.

mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
}

#[path = "../src/host/point.rs"]
mod point;

use loom::sync::Arc;
use loom::thread;
use point::Point;

static PLACES: [u64; 2] = [0, 1];

/// One thread moves a point twice while another reads it: a value always comes with its own place. (That
/// writers exclude each other is plain: an odd version is taken by compare-exchange.)
#[test]
fn a_point_is_never_read_half_written() {
    let mut model = loom::model::Builder::new();
    // All mistakes in the orderings that were tried show with two preemptions; without a bound the
    // search takes a minute.
    model.preemption_bound = Some(2);
    model.check(|| {
        let point: Arc<Point<u64>> = Arc::new(Point::default());
        let writer = {
            let point = Arc::clone(&point);
            thread::spawn(move || {
                for place in &PLACES {
                    point.write(place, *place);
                }
            })
        };
        for _ in 0..2 {
            if let Ok(Some((place, value))) = point.try_read() {
                assert_eq!(*place, value);
            }
        }
        writer.join().unwrap();
        assert_eq!(
            point.read().map(|(place, value)| (*place, value)),
            Some((1, 1))
        );
    });
}
