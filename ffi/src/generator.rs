//! Random number generators: Philox 4x32-10 counters.

use outrigger_hooks as hooks;

use crate::guard::Out;
use crate::otr_generator_t;

api! {
    /// Makes a generator for a device. It is the caller's until otr_generator_destroy. Its outputs are
    /// those of Philox 4x32-10. Its state is a seed, and the number of 128-bit outputs that were drawn.
    fn otr_generator_create(device: u32, generator: *mut otr_generator_t) {
        let out = Out::new(generator, "generator")?;
        out.set(hooks::create_generator(device)?.id());
        Ok(())
    }

    /// The default generator of a device. It belongs to the runtime.
    fn otr_generator_default(device: u32, generator: *mut otr_generator_t) {
        let out = Out::new(generator, "generator")?;
        out.set(hooks::runtime()?.found(device)?.default_generator().id());
        Ok(())
    }

    /// Destroys a generator. OTR_ERR_INVALID_ARGUMENT for the default one of a device.
    fn otr_generator_destroy(generator: otr_generator_t) {
        hooks::destroy_generator(generator)
    }

    /// Seeds a generator and goes back to the start of its sequence. In a capture, each replay does so.
    fn otr_generator_seed(generator: otr_generator_t, seed: u64) {
        hooks::generator(generator)?.seed(seed)
    }

    /// The seed, and the offset of the next output (in 128-bit outputs). On a thread whose current stream
    /// captures they stand for the state of a replay at this place: to be set in the same capture.
    fn otr_generator_state(generator: otr_generator_t, seed: *mut u64, offset: *mut u64) {
        let (seed_out, offset_out) = (Out::new(seed, "seed")?, Out::new(offset, "offset")?);
        let (seed, offset) = hooks::generator(generator)?.state();
        seed_out.set(seed);
        offset_out.set(offset);
        Ok(())
    }

    /// Sets the next output: the 128-bit output number `offset` in the sequence of `seed`. In a capture, each
    /// replay does so. OTR_ERR_CAPTURE for a state of another capture.
    fn otr_generator_set_state(generator: otr_generator_t, seed: u64, offset: u64) {
        hooks::generator(generator)?.set_state(seed, offset)
    }

    /// Reserves the next `count` 128-bit outputs (four 32-bit numbers each). Returns the seed, and the
    /// offset at which they start.
    fn otr_generator_reserve(
        generator: otr_generator_t,
        count: u64,
        seed: *mut u64,
        offset: *mut u64,
    ) {
        let (seed_out, offset_out) = (Out::new(seed, "seed")?, Out::new(offset, "offset")?);
        let (seed, offset) = hooks::generator(generator)?.reserve(count);
        seed_out.set(seed);
        offset_out.set(offset);
        Ok(())
    }
}
