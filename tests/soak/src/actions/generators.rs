//! Random number generators, and the accounts of fallbacks.

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, ignore, json, made, text};

pub(crate) const ACTIONS: &[Action] = &[
    action("generators", 2, create),
    action("generators", 1, destroy),
    action("generators", 6, draw),
    action("fallbacks", 4, fall_back),
    action("fallbacks", 2, account),
];

fn create(actor: &mut Actor) {
    let device = actor.any_device();
    let generators = &actor.world.generators;
    if generators.len() >= 8 {
        return destroy(actor);
    }
    let own = actor.rng.bool();
    let id = made(|out| match own {
        true => call!(generator_create(device, out)),
        false => call!(generator_default(device, out)),
    });
    if let Ok(id) = id {
        generators.add((id, own));
    }
}

fn destroy(actor: &mut Actor) {
    if let Some(generator) = actor.world.generators.take(&mut actor.rng) {
        let destroyed = call!(generator_destroy(generator.0));
        match (destroyed, generator.1) {
            (Ok(()), true) => actor.world.gone(generator.0),
            (Ok(()), false) => {
                crate::library::problem("generator_destroy: takes a default one (H12)")
            }
            (Err(_), _) => (),
        }
    }
}

fn draw(actor: &mut Actor) {
    let generator = actor
        .world
        .generators
        .pick(&mut actor.rng)
        .map(|generator| generator.0);
    let generator = actor.or_garbage(generator);
    let (mut seed, mut offset) = (0, 0);
    let number = actor.rng.u64(..1000);
    let _ = match actor.rng.u32(..9) {
        0 => call!(generator_seed(generator, number)),
        1 => call!(generator_state(generator, &mut seed, &mut offset)),
        2 => call!(generator_set_state(generator, number, number)),
        _ => call!(generator_reserve(generator, number, &mut seed, &mut offset)),
    };
}

fn fall_back(actor: &mut Actor) {
    let name = *actor
        .rng
        .choice(&[c"soak", c"sort", c"topk"])
        .unwrap_or(&c"soak");
    if made::<u32>(|out| call!(fallback_begin(name.as_ptr(), out))).is_ok() {
        let (time, bytes) = (actor.rng.u64(..1000), actor.rng.u64(..1000));
        let _ = call!(fallback_end(name.as_ptr(), time, bytes));
    }
}

fn account(actor: &mut Actor) {
    match actor.rng.u32(..10) {
        0 => drop(call!(fallback_set_mode(actor.rng.u32(..4)))),
        1 => ignore(made::<u32>(|out| call!(fallback_mode(out)))),
        2 => drop(call!(fallback_reset())),
        3 => drop(call!(fallback_set_policy(
            c"framework:warn,host:silent".as_ptr()
        ))),
        4 => ignore(text(|out| call!(fallback_policy(out)))),
        5 => ignore(json(|out| call!(operator_report(out)))),
        // Timed calls wait, so timing is never on for long.
        6 => {
            let _ = call!(operator_timing(1));
            let _ = call!(operator_timing(0));
        }
        8 => {
            let id = actor.rng.u32(..4);
            let _ = call!(operator_keep_whole(0, &id, actor.rng.u32(..2)));
        }
        7 => ignore(made::<u32>(|out| {
            call!(operator_offered(0, actor.rng.u32(..4), out))
        })),
        _ => ignore(json(|out| call!(fallback_report(out)))),
    }
}
