//! Defects of copies and fills.

use std::collections::BTreeMap;

use outrigger_device::{Code, sys};
use outrigger_layers::fail;
use parking_lot::Mutex;

use crate::Shared;
use crate::mutant::{mutants, types::*};
use crate::queues::Side;

mutants! {
    /// Copies of more than a byte leave out the last one.
    copy_short [R16] (()) {
        copy(self, next, queue, copy) {
            let size = if copy.size > 1 { copy.size - 1 } else { copy.size };
            next.copy(queue, &sys::otr_copy { size, ..*copy })
        }
    }

    /// A copy to the device begins where the allocation does, whatever the offset.
    copy_ignores_offset [R13] (Mutex<BTreeMap<u64, u64>>) {
        memory_alloc(self, next, driver, device, params, address) {
            let code = next.memory_alloc(driver, device, params, address);
            if code == Code::OK.0 {
                self.state.lock().insert(*address, params.size);
            }
            code
        }
        memory_free(self, next, driver, address) {
            let code = next.memory_free(driver, address);
            if code == Code::OK.0 {
                self.state.lock().remove(&address);
            }
            code
        }
        copy(self, next, queue, copy) {
            let (to, size) = (copy.dst, copy.size);
            let dst = match self.state.lock().range(..=to).next_back() {
                Some((base, length)) if copy.kind == sys::OTR_COPY_HOST_TO_DEVICE && copy.rows <= 1
                    && to - base < *length && to - base + size <= *length => *base,
                _ => to,
            };
            next.copy(queue, &sys::otr_copy { dst, ..*copy })
        }
    }

    /// Copies overtake what was submitted to their queue before.
    copy_overtakes [R16] (Side) {
        queue_create(self, next, driver, device, params, queue) {
            self.state.create(next, driver, device, params, queue)
        }
        queue_destroy(self, next, queue) { self.state.destroy(next, queue) }
        copy(self, next, queue, copy) {
            self.state.beside(next, queue, |side| next.copy(side, copy))
        }
    }

    /// Fills overtake what was submitted to their queue before.
    fill_overtakes [R16] (Side) {
        queue_create(self, next, driver, device, params, queue) {
            self.state.create(next, driver, device, params, queue)
        }
        queue_destroy(self, next, queue) { self.state.destroy(next, queue) }
        fill(self, next, queue, fill) {
            self.state.beside(next, queue, |side| next.fill(side, fill))
        }
    }

    /// A copy of 0 bytes is refused.
    copy_of_nothing_refused [R25] (()) {
        copy(self, next, queue, copy) {
            if copy.size == 0 {
                return outrigger_layers::fail(Code::INVALID_ARGUMENT, "there is nothing to copy");
            }
            next.copy(queue, copy)
        }
    }

    /// A fill of 0 bytes looks at its address.
    fill_of_nothing_looks [R25] (()) {
        fill(self, next, queue, fill) {
            let size = if fill.size == 0 { u64::from(fill.pattern_size) } else { fill.size };
            next.fill(queue, &sys::otr_fill { size, ..*fill })
        }
    }

    /// An unknown kind of copy is taken, and does nothing.
    unknown_copy_taken [R7] (()) {
        copy(self, next, queue, copy) {
            if copy.kind == 0 || copy.kind > sys::OTR_COPY_HOST_TO_HOST {
                return Code::OK.0;
            }
            next.copy(queue, copy)
        }
    }

    /// A range that leaves its allocation is taken, and does nothing.
    range_unchecked [R7] (()) {
        fill(self, next, queue, fill) {
            match next.fill(queue, fill) {
                code if code == Code::INVALID_ARGUMENT.0 && fill.size > 0 && !fill.pattern.is_null()
                    && fill.size.is_multiple_of(u64::from(fill.pattern_size.max(1))) => {
                    if matches!(fill.pattern_size, 1 | 2 | 4 | 8 | 16) { Code::OK.0 } else { code }
                }
                code => code,
            }
        }
    }

    /// Fills of more than one pattern leave out the last.
    fill_short [R28] (()) {
        fill(self, next, queue, fill) {
            let (step, size) = (u64::from(fill.pattern_size), fill.size);
            let size = if size > step { size - step } else { size };
            next.fill(queue, &sys::otr_fill { size, ..*fill })
        }
    }

    /// Fills write one pattern too many, where that stays within the allocation.
    fill_long [R28] (()) {
        fill(self, next, queue, fill) {
            let size = fill.size.saturating_add(u64::from(fill.pattern_size));
            if fill.size > 0 && next.fill(queue, &sys::otr_fill { size, ..*fill }) == Code::OK.0 {
                return Code::OK.0;
            }
            next.fill(queue, fill)
        }
    }

    /// Only the first byte of a pattern is repeated.
    fill_by_bytes [R28] (()) {
        fill(self, next, queue, fill) {
            let right = matches!(fill.pattern_size, 1 | 2 | 4 | 8 | 16)
                && fill.size.is_multiple_of(u64::from(fill.pattern_size));
            let pattern_size = if right { 1 } else { fill.pattern_size };
            next.fill(queue, &sys::otr_fill { pattern_size, ..*fill })
        }
    }

    /// Patterns of 16 bytes are refused.
    fill_of_16_refused [R28] (()) {
        fill(self, next, queue, fill) {
            if fill.pattern_size == 16 {
                return outrigger_layers::fail(Code::INVALID_ARGUMENT, "the pattern is too long");
            }
            next.fill(queue, fill)
        }
    }

    /// A size that is no multiple of the pattern is cut down to one.
    fill_odd_size_taken [R28] (()) {
        fill(self, next, queue, fill) {
            let rest = fill.size.checked_rem(u64::from(fill.pattern_size)).unwrap_or(0);
            next.fill(queue, &sys::otr_fill { size: fill.size - rest, ..*fill })
        }
    }

    /// Copies between devices leave out the last byte.
    peer_copy_short [R16] (()) {
        peer_copy(self, next, queue, copy) {
            let size = if copy.size > 1 { copy.size - 1 } else { copy.size };
            next.peer_copy(queue, &sys::otr_copy { size, ..*copy })
        }
    }

    /// A copy of several rows is refused, and moves the first one all the same.
    copy_of_rows_half_done [R4] (()) {
        copy(self, next, queue, copy) {
            if copy.rows > 1 {
                next.copy(queue, &sys::otr_copy { rows: 1, ..*copy });
                return fail(Code::UNSUPPORTED, "there is a copy of one row alone");
            }
            next.copy(queue, copy)
        }
    }

    /// A copy of several rows moves the first one alone.
    copy_of_rows_moves_one [R25] (()) {
        copy(self, next, queue, copy) {
            next.copy(queue, &sys::otr_copy { rows: 1, ..*copy })
        }
    }

    /// Rows are taken to lie one behind the other where they go.
    copy_of_rows_ignores_pitch [R25] (()) {
        copy(self, next, queue, copy) {
            next.copy(queue, &sys::otr_copy { dst_pitch: copy.size, ..*copy })
        }
    }

    /// A pitch that is less than a row is taken.
    copy_of_rows_takes_any_pitch [R7] (()) {
        copy(self, next, queue, copy) {
            let (dst_pitch, src_pitch) = (copy.dst_pitch.max(copy.size), copy.src_pitch.max(copy.size));
            next.copy(queue, &sys::otr_copy { dst_pitch, src_pitch, ..*copy })
        }
    }

    /// Copies between ranges that touch are refused.
    copy_between_neighbours_refused [R26] (()) {
        copy(self, next, queue, copy) {
            let (dst, src, size) = (copy.dst, copy.src, copy.size);
            if size > 0 && (dst.checked_add(size) == Some(src) || src.checked_add(size) == Some(dst)) {
                return fail(Code::INVALID_ARGUMENT, "the ranges overlap");
            }
            next.copy(queue, copy)
        }
    }

    /// A copy from host memory clears its source.
    copy_clears_its_source [R26] (()) {
        copy(self, next, queue, copy) {
            let code = next.copy(queue, copy);
            let size = copy.size;
            if code == Code::OK.0 && copy.kind == sys::OTR_COPY_HOST_TO_DEVICE && size > 0 {
                let source = Shared(std::ptr::with_exposed_provenance_mut(copy.src as usize));
                crate::calls::submit(next, queue, 0, move |upstream| {
                    let source = source;
                    // The host keeps its memory until the copy has finished, and not longer: within it is
                    // where the test looks.
                    source.0.cast::<u8>().write_bytes(0, size as usize);
                    upstream
                });
            }
            code
        }
    }
}
