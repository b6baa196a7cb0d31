//! R53: bytes that go from rank to rank.

use super::*;

tests! { "stream.collectives":
    /// An `exchange` moves bytes between all ranks, also to themselves, whatever comes first in its list.
    exchange: R53, needs Collectives CollectivesExchange TwoDevices;
    /// The pieces that one rank sends another arrive in order, over several exchanges.
    exchanges_keep_the_order: R53, needs Collectives CollectivesExchange TwoDevices;
    /// An `exchange` of two ranks waits for no other rank.
    an_exchange_is_of_those_that_it_names: R53, needs Collectives CollectivesExchange TwoDevices;
}

pub(super) fn send(address: u64, size: u64, peer: u32) -> sys::otr_transfer {
    sys::otr_transfer {
        address,
        size,
        peer,
        direction: sys::OTR_TRANSFER_SEND,
    }
}

pub(super) fn receive(address: u64, size: u64, peer: u32) -> sys::otr_transfer {
    let direction = sys::OTR_TRANSFER_RECEIVE;
    sys::otr_transfer {
        direction,
        ..send(address, size, peer)
    }
}

/// The bytes that one rank sends another: their number differs for each pair.
fn letter(from: u32, to: u32) -> Vec<u8> {
    let size = 150_000 + 1000 * from as usize + 10_000 * to as usize;
    pattern(size, u64::from(1000 + 10 * from + to))
}

fn exchange(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let count = ranks.len() as u32;
        let mut places = Vec::new();
        for rank in ranks {
            let (mut out, mut back, mut kept) = (Vec::new(), Vec::new(), Vec::new());
            for peer in 0..count {
                let bytes = letter(rank.number(), peer);
                out.push(send(rank.holding(&bytes)?, bytes.len() as u64, peer));
                let size = letter(peer, rank.number()).len();
                let place = rank.memory(size as u64)?;
                back.push(receive(place, size as u64, peer));
                kept.push((place, size));
            }
            // Some send first, some receive first; some go through the ranks the other way.
            let transfers: Vec<_> = match rank.number() % 3 {
                0 => out.into_iter().chain(back).collect(),
                1 => back.into_iter().chain(out.into_iter().rev()).collect(),
                _ => out
                    .into_iter()
                    .rev()
                    .chain(back.into_iter().rev())
                    .collect(),
            };
            rank.exchange(&transfers)?;
            places.push(kept);
        }
        for (rank, kept) in ranks.iter().zip(places) {
            for (peer, (place, size)) in kept.into_iter().enumerate() {
                let right = letter(peer as u32, rank.number());
                equal!(
                    rank.read(place, size)?,
                    right,
                    "from rank {peer} to {}",
                    rank.number()
                );
            }
        }
        Ok(())
    })
}

fn exchanges_keep_the_order(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let (first, last) = (&ranks[0], &ranks[1]);
        let (mut sent, mut places) = (Vec::new(), Vec::new());
        for index in 0..6usize {
            let bytes = pattern(1 + 3000 * index, index as u64);
            sent.push((first.holding(&bytes)?, bytes.len() as u64));
            places.push((last.memory(bytes.len() as u64)?, bytes));
        }
        let out = |range: std::ops::Range<usize>| -> Vec<_> {
            sent[range]
                .iter()
                .map(|(place, size)| send(*place, *size, 1))
                .collect()
        };
        let back = |range: std::ops::Range<usize>| -> Vec<_> {
            let into = places[range].iter();
            into.map(|(place, bytes)| receive(*place, bytes.len() as u64, 0))
                .collect()
        };
        // The two sides cut it in other places.
        for range in [0..1, 1..4, 4..6] {
            first.exchange(&out(range))?;
        }
        for range in [0..3, 3..6] {
            last.exchange(&back(range))?;
        }
        for (index, (place, bytes)) in places.iter().enumerate() {
            equal!(last.read(*place, bytes.len())?, *bytes, "number {index}");
        }
        // An exchange of nothing is one, too.
        first.exchange(&[])?;
        first.exchange(&[send(0, 0, 1)])?;
        last.exchange(&[receive(0, 0, 0)])?;
        Ok(())
    })
}

fn an_exchange_is_of_those_that_it_names(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        // An exchange of one rank with itself, while no other rank comes.
        let rank = &ranks[1];
        let (from, to) = (rank.holding(&own_bytes(1, 5000))?, rank.memory(5000)?);
        rank.exchange(&[receive(to, 5000, 1), send(from, 5000, 1)])?;
        equal!(
            rank.read(to, 5000)?,
            own_bytes(1, 5000),
            "what a rank sent itself"
        );
        // An exchange of the last two, before the first one comes.
        let (one, other) = (&ranks[ranks.len() - 1], &ranks[ranks.len() - 2]);
        let (from, to) = (one.holding(&own_bytes(7, 5000))?, other.memory(5000)?);
        one.exchange(&[send(from, 5000, other.number())])?;
        other.exchange(&[receive(to, 5000, one.number())])?;
        equal!(
            other.read(to, 5000)?,
            own_bytes(7, 5000),
            "between two ranks"
        );
        Ok(())
    })
}
