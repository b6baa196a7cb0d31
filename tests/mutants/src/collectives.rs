//! Defects of communicators.

use std::collections::HashMap;

use outrigger_device::{Code, NO_OUTCOME, params, sys};
use parking_lot::Mutex;

use crate::calls::change;
use crate::mutant::{mutants, types::*};

/// The rank of each communicator, by its handle.
type Ranks = Mutex<HashMap<usize, u32>>;

/// A reduction whose result differs from that of a sum.
const MAX: u32 = sys::OTR_REDUCE_MAX;

mutants! {
    /// The second element and all behind it of a sum are greatest ones.
    sum_is_a_maximum_behind_the_first [R51] (()) {
        comm_all_reduce(self, next, queue, comm, send, receive, count, dtype, reduction) {
            if reduction != sys::OTR_REDUCE_SUM || count < 2 || dtype != sys::OTR_DTYPE_F32 {
                return next.comm_all_reduce(queue, comm, send, receive, count, dtype, reduction);
            }
            let code = next.comm_all_reduce(queue, comm, send, receive, 1, dtype, reduction);
            if code != Code::OK.0 {
                return code;
            }
            next.comm_all_reduce(queue, comm, send + 4, receive + 4, count - 1, dtype, MAX)
        }
    }

    /// Only whole blocks of 64 Ki elements are reduced.
    the_last_elements_are_forgotten [R51] (()) {
        comm_all_reduce(self, next, queue, comm, send, receive, count, dtype, reduction) {
            let whole = if count > 1 << 16 { count & !0xffff } else { count };
            next.comm_all_reduce(queue, comm, send, receive, whole, dtype, reduction)
        }
    }

    /// An average is a sum.
    average_is_a_sum [R51] (()) {
        comm_all_reduce(self, next, queue, comm, send, receive, count, dtype, reduction) {
            let reduction = match reduction {
                sys::OTR_REDUCE_AVG => sys::OTR_REDUCE_SUM,
                other => other,
            };
            next.comm_all_reduce(queue, comm, send, receive, count, dtype, reduction)
        }
    }

    /// The root of a `reduce` is always rank 0.
    reduce_ignores_the_root [R51] (()) {
        comm_reduce(self, next, queue, comm, send, receive, count, dtype, reduction, root) {
            let code = next.comm_reduce(queue, comm, send, receive, 0, dtype, reduction, root);
            if code != Code::OK.0 {
                return code;
            }
            next.comm_reduce(queue, comm, send, receive, count, dtype, reduction, 0)
        }
    }

    /// A `reduce` writes on all ranks.
    reduce_writes_everywhere [R50] (()) {
        comm_reduce(self, next, queue, comm, send, receive, count, dtype, reduction, root) {
            let code = next.comm_reduce(queue, comm, send, receive, 0, dtype, reduction, root);
            if code != Code::OK.0 {
                return code;
            }
            next.comm_all_reduce(queue, comm, send, receive, count, dtype, reduction)
        }
    }

    /// A `broadcast` comes from rank 0, whatever its root.
    broadcast_ignores_the_root [R49] (()) {
        comm_broadcast(self, next, queue, comm, address, size, root) {
            let code = next.comm_broadcast(queue, comm, address, 0, root);
            if code != Code::OK.0 {
                return code;
            }
            next.comm_broadcast(queue, comm, address, size, 0)
        }
    }

    /// `all_gather` puts a rank's own part in the first place.
    gather_begins_with_the_own_part [R50] (()) {
        comm_all_gather(self, next, queue, comm, send, receive, size) {
            let code = next.comm_all_gather(queue, comm, send, receive, size);
            if code != Code::OK.0 || size == 0 || send == receive {
                return code;
            }
            let apart = send.abs_diff(receive) >= size;
            if apart {
                next.copy(queue, &params::copy(receive, send, size, sys::OTR_COPY_DEVICE_TO_DEVICE))
            } else {
                code
            }
        }
    }

    /// `all_gather` does not work in place.
    gather_in_place_forgets [R50] (()) {
        comm_all_gather(self, next, queue, comm, send, receive, size) {
            let own = send.wrapping_sub(receive);
            let in_place = size > 0 && own.is_multiple_of(size) && own / size < 4;
            if in_place && own > 0 {
                next.fill(queue, &params::fill(send, size, [0u8].as_ptr().cast(), 1));
            }
            next.comm_all_gather(queue, comm, send, receive, size)
        }
    }

    /// `reduce_scatter` gives every rank the share of rank 0.
    shares_are_all_the_first [R51] (()) {
        comm_reduce_scatter(self, next, queue, comm, send, receive, count, dtype, reduction) {
            let code =
                next.comm_reduce_scatter(queue, comm, send, receive, 0, dtype, reduction);
            if code != Code::OK.0 {
                return code;
            }
            next.comm_all_reduce(queue, comm, send, receive, count, dtype, reduction)
        }
    }

    /// A call writes its result once more than it should, one element further.
    one_element_too_many [R50] (()) {
        comm_broadcast(self, next, queue, comm, address, size, root) {
            let code = next.comm_broadcast(queue, comm, address, size, root);
            if code == Code::OK.0 && size > 64 {
                // The byte behind the result may be no memory, and then this fails.
                next.fill(queue, &params::fill(address + size, 4, [0u8].as_ptr().cast(), 1));
            }
            code
        }
    }

    /// Calls run on a queue of their own, and not in the order of the queue that they were given to.
    calls_leave_the_order_of_their_queue [R49] (Mutex<HashMap<usize, (usize, u32)>>) {
        comm_create(self, next, driver, device, params, comm) {
            let code = next.comm_create(driver, device, params, comm);
            if code == Code::OK.0 {
                let mut queue = std::ptr::null_mut();
                next.queue_create(driver, device, std::ptr::null(), &mut queue);
                self.state.lock().insert((*comm).addr(), (queue.expose_provenance(), device));
            }
            code
        }
        comm_all_reduce(self, next, queue, comm, send, receive, count, dtype, reduction) {
            // A call of no elements does nothing, and has the code that the host would be told.
            let code = next.comm_all_reduce(queue, comm, send, receive, 0, dtype, reduction);
            let Some((own, _)) = self.state.lock().get(&comm.addr()).copied() else {
                return code;
            };
            if code != Code::OK.0 {
                return code;
            }
            let own = std::ptr::with_exposed_provenance_mut(own);
            next.comm_all_reduce(own, comm, send, receive, count, dtype, reduction)
        }
        comm_destroy(self, next, comm) {
            if let Some((own, _)) = self.state.lock().remove(&comm.addr()) {
                next.queue_destroy(std::ptr::with_exposed_provenance_mut(own));
            }
            next.comm_destroy(comm)
        }
    }

    /// A submission waits until the work is done.
    submissions_wait_for_the_others [R49] (()) {
        comm_all_reduce(self, next, queue, comm, send, receive, count, dtype, reduction) {
            match next.comm_all_reduce(queue, comm, send, receive, count, dtype, reduction) {
                code if code == Code::OK.0 => next.queue_synchronize(queue, &mut { NO_OUTCOME }),
                code => code,
            }
        }
    }

    /// Rank 1 comes to no call.
    a_rank_is_left_behind [R49] (Ranks) {
        comm_create(self, next, driver, device, params, comm) {
            let code = next.comm_create(driver, device, params, comm);
            if code == Code::OK.0 {
                self.state.lock().insert((*comm).addr(), (*params).rank);
            }
            code
        }
        comm_broadcast(self, next, queue, comm, address, size, root) {
            let rank = self.state.lock().get(&comm.addr()).copied();
            let size = if rank == Some(1) { 0 } else { size };
            next.comm_broadcast(queue, comm, address, size, root)
        }
    }

    /// A rank that was lost is the failure of another kind.
    a_lost_rank_has_the_wrong_code [R52] (()) {
        comm_query(self, next, comm, outcome) {
            change(next.comm_query(comm, outcome), outcome, |told| match Code(told) {
                Code::PEER_LOST => Code::EXECUTION.0,
                _ => told,
            })
        }
        queue_synchronize(self, next, queue, outcome) {
            change(next.queue_synchronize(queue, outcome), outcome, |told| match Code(told) {
                Code::PEER_LOST => Code::EXECUTION.0,
                _ => told,
            })
        }
    }

    /// `abort` does nothing.
    abort_is_ignored [R54] (()) {
        comm_abort(self, _next, _comm) { Code::OK.0 }
    }

    /// A communicator that has failed says that it is well.
    a_failure_is_kept_secret [R52] (()) {
        comm_query(self, next, comm, outcome) {
            change(next.comm_query(comm, outcome), outcome, |_| Code::OK.0)
        }
    }

    /// A `create` that not all ranks come to has the code of a wrong argument.
    a_rank_that_never_joins_is_an_argument [R48] (()) {
        comm_create(self, next, driver, device, params, comm) {
            match next.comm_create(driver, device, params, comm) {
                code if code == Code::PEER_LOST.0 => Code::INVALID_ARGUMENT.0,
                code => code,
            }
        }
    }

    /// An id that is not good any more counts as none.
    a_used_id_has_the_wrong_code [R48] (()) {
        comm_create(self, next, driver, device, params, comm) {
            match next.comm_create(driver, device, params, comm) {
                code if code == Code::NOT_FOUND.0 => Code::INVALID_HANDLE.0,
                code => code,
            }
        }
    }

    /// Transfers of one call go one after the other.
    transfers_wait_for_each_other [R53] (()) {
        comm_exchange(self, next, queue, comm, exchange) {
            let Some(whole) = exchange.as_ref().filter(|one| one.count > 1) else {
                return next.comm_exchange(queue, comm, exchange);
            };
            for at in 0..whole.count as usize {
                let one = sys::otr_exchange {
                    transfers: whole.transfers.add(at),
                    count: 1,
                    ..*whole
                };
                match next.comm_exchange(queue, comm, &one) {
                    code if code == Code::OK.0 => {}
                    code => return code,
                }
            }
            Code::OK.0
        }
    }

    /// The last byte of a transfer is not moved.
    the_last_byte_is_not_sent [R53] (()) {
        comm_exchange(self, next, queue, comm, exchange) {
            let Some(whole) = exchange.as_ref().filter(|one| !one.transfers.is_null()) else {
                return next.comm_exchange(queue, comm, exchange);
            };
            let list = std::slice::from_raw_parts(whole.transfers, whole.count as usize);
            let shorter: Vec<_> = list
                .iter()
                .map(|one| sys::otr_transfer { size: one.size.saturating_sub(1), ..*one })
                .collect();
            let one = sys::otr_exchange { transfers: shorter.as_ptr(), ..*whole };
            next.comm_exchange(queue, comm, &one)
        }
    }
}
