//! Communicators of the driver `host`, whose ranks are devices of this process: what the conformance suite
//! leaves to each driver. That is how long work waits, and what it keeps from going on meanwhile.

use std::sync::mpsc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use outrigger_device::{
    Code, Comm, CommParams, CopyKind, DType, Driver, Elements, Queue, Reduction, sys,
};

const RANKS: u32 = 3;
const LONG: Duration = Duration::from_secs(60);

fn open() -> Driver {
    let spec = format!("host?devices={RANKS}&memory=64M");
    Driver::open(&spec.parse().unwrap()).unwrap()
}

/// All ranks of a communicator, on a device each.
fn join(driver: &Driver, timeout: Duration) -> Vec<Comm> {
    let collectives = driver.collectives().unwrap();
    let id = collectives.id().unwrap();
    let rank = |rank| CommParams {
        id: &id,
        rank_count: RANKS,
        rank,
        timeout: Some(timeout),
    };
    scope(|scope| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|index| scope.spawn(move || collectives.create(index, &rank(index)).unwrap()))
            .collect();
        ranks.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn sum(memory: u64, count: u64) -> Elements {
    Elements {
        send: memory,
        receive: memory,
        count,
        dtype: DType::I32,
        reduction: Reduction::SUM,
    }
}

struct Rank<'a> {
    driver: &'a Driver,
    comm: Comm,
    queue: Queue,
    memory: u64,
}

impl Rank<'_> {
    /// Fills the memory with the number of the rank, from 1.
    fn fill(&self, size: u64) {
        let pattern = (self.comm.rank() as i32 + 1).to_ne_bytes();
        // SAFETY: the allocation is larger.
        unsafe { self.queue.fill(self.memory, size, &pattern).unwrap() };
    }

    fn read(&self, at: u64) -> i32 {
        let mut back = [0; 4];
        let address = back.as_mut_ptr() as u64;
        // SAFETY: within the allocation; the copy has finished when `back` is read.
        unsafe {
            self.queue
                .copy(address, self.memory + at, 4, CopyKind::DeviceToHost)
                .unwrap();
        }
        self.queue.synchronize().unwrap();
        i32::from_ne_bytes(back)
    }
}

const MEMORY: u64 = 4 << 20;

fn ranks(driver: &Driver, timeout: Duration) -> Vec<Rank<'_>> {
    let all = join(driver, timeout).into_iter();
    all.map(|comm| Rank {
        driver,
        queue: driver.queue_create(comm.device(), 0).unwrap(),
        memory: driver.memory_alloc(comm.device(), MEMORY).unwrap(),
        comm,
    })
    .collect()
}

fn end(ranks: Vec<Rank<'_>>) {
    for rank in ranks {
        // SAFETY: the tests have waited for its work.
        unsafe { rank.driver.memory_free(rank.memory).unwrap() };
    }
}

#[test]
fn one_thread_waits_for_the_work_of_all_ranks() {
    let driver = open();
    let ranks = ranks(&driver, LONG);
    // More than is shown at a time, and no multiple of it or of the ranks.
    let count = 200_001;
    for rank in &ranks {
        rank.fill(4 * count);
        for _ in 0..3 {
            // SAFETY: the memory has room, and is freed after the work.
            unsafe {
                rank.comm
                    .all_reduce(&rank.queue, &sum(rank.memory, count))
                    .unwrap()
            };
        }
    }
    for rank in ranks.iter().rev() {
        for at in [0, 4 * 65_535, 4 * (count - 1)] {
            assert_eq!(
                rank.read(at),
                6 * 3 * 3,
                "rank {} at {at}",
                rank.comm.rank()
            );
        }
    }
    end(ranks);
}

#[test]
fn who_waits_for_a_rank_keeps_no_other_queue_from_its_work() {
    let driver = open();
    let ranks = ranks(&driver, LONG);
    let first = &ranks[0];
    // SAFETY: as above.
    unsafe {
        first
            .comm
            .all_reduce(&first.queue, &sum(first.memory, 4))
            .unwrap()
    };
    first.queue.flush().unwrap();
    let other = driver.queue_create(0, 0).unwrap();
    let (said, heard) = mpsc::channel();
    for _ in 0..1000 {
        let said = said.clone();
        other
            .host_call(move |_| {
                let _ = said.send(());
                Ok(())
            })
            .unwrap();
    }
    other.synchronize().unwrap();
    assert_eq!(heard.try_iter().count(), 1000);
    assert!(!first.queue.query().unwrap());
    for rank in &ranks[1..] {
        // SAFETY: as above.
        unsafe {
            rank.comm
                .all_reduce(&rank.queue, &sum(rank.memory, 4))
                .unwrap()
        };
    }
    for rank in &ranks {
        rank.queue.synchronize().unwrap();
    }
    end(ranks);
}

#[test]
fn calls_on_two_queues_run_in_the_order_of_their_submission() {
    let driver = open();
    let ranks = ranks(&driver, LONG);
    let mut seconds = Vec::new();
    for rank in &ranks {
        rank.fill(64);
        rank.queue.synchronize().unwrap();
        let second = driver.queue_create(rank.comm.device(), 0).unwrap();
        // The queue of the first call is held up, and the second may not pass.
        let (go, gate) = mpsc::channel::<()>();
        rank.queue
            .host_call(move |_| {
                let _ = gate.recv_timeout(LONG);
                Ok(())
            })
            .unwrap();
        // SAFETY: as above.
        unsafe {
            rank.comm
                .all_reduce(&rank.queue, &sum(rank.memory, 4))
                .unwrap();
            rank.comm.broadcast(&second, rank.memory, 4, 0).unwrap();
        }
        second.flush().unwrap();
        rank.queue.flush().unwrap();
        sleep(Duration::from_millis(5));
        assert!(!second.query().unwrap());
        go.send(()).unwrap();
        seconds.push(second);
    }
    for (rank, second) in ranks.iter().zip(&seconds) {
        second.synchronize().unwrap();
        assert_eq!(rank.read(0), 6);
    }
    end(ranks);
}

#[test]
fn a_rank_that_does_not_come_is_an_error_after_the_timeout() {
    let driver = open();
    let limit = Duration::from_millis(200);
    let ranks = ranks(&driver, limit);
    let start = Instant::now();
    for rank in &ranks[..2] {
        // SAFETY: as above.
        unsafe {
            rank.comm
                .all_reduce(&rank.queue, &sum(rank.memory, 4))
                .unwrap()
        };
    }
    for rank in &ranks[..2] {
        let error = rank.queue.synchronize().unwrap_err();
        assert_eq!(error.code(), Code::PEER_LOST);
        assert!(error.message().contains("all_reduce"), "{error}");
        let why = rank.comm.query().unwrap_err();
        assert!(why.message().contains("rank 2"), "{why}");
    }
    assert!(start.elapsed() >= limit);
    // SAFETY: refused.
    let late = unsafe {
        ranks[2]
            .comm
            .all_reduce(&ranks[2].queue, &sum(ranks[2].memory, 4))
    };
    assert_eq!(late.unwrap_err().code(), Code::PEER_LOST);
    end(ranks);
}

#[test]
fn transfers_larger_than_a_mailbox_cross_each_other() {
    let driver = open();
    let ranks = ranks(&driver, LONG);
    let size = MEMORY / 4;
    let one = |address, peer, direction| sys::otr_transfer {
        address,
        size,
        peer,
        direction,
    };
    for rank in &ranks {
        rank.fill(size);
        let mut transfers = Vec::new();
        // All of the sends first: each waits for room, and none for another.
        for peer in 0..RANKS {
            transfers.push(one(rank.memory, peer, sys::OTR_TRANSFER_SEND));
        }
        for peer in 0..RANKS {
            let place = rank.memory + size * u64::from(1 + peer);
            transfers.push(one(place, peer, sys::OTR_TRANSFER_RECEIVE));
        }
        // SAFETY: the memory has room for four parts.
        unsafe { rank.comm.exchange(&rank.queue, &transfers).unwrap() };
    }
    for rank in &ranks {
        for peer in 0..RANKS {
            let start = size * u64::from(1 + peer);
            for at in [start, start + size - 4] {
                assert_eq!(rank.read(at), peer as i32 + 1);
            }
        }
    }
    end(ranks);
}
