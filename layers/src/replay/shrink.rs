//! Reduces a recording that fails to a small one that still fails, by delta debugging (Zeller and
//! Hildebrandt, 2002) over its calls. When a call is removed, the calls that need its results are
//! removed too.

use std::collections::{HashMap, HashSet};

use super::recording::{Recording, Step};
use crate::Entry;
use crate::record::Value;

/// Finds a small recording for which `fails` still holds. No single call can be left out of it.
///
/// `fails` is asked for smaller and smaller recordings; it holds for the one that is given. Where the failure
/// needs only one queue, only one is left, so that no accident of order between queues is mistaken for it.
pub fn shrink(recording: &Recording, mut fails: impl FnMut(&Recording) -> bool) -> Recording {
    let on_one = on_one_queue(recording);
    let start = match on_one {
        Some(on_one) if fails(&on_one) => on_one,
        _ => recording.clone(),
    };
    without_calls(&start, &mut fails)
}

/// The recording with all work of each device on its first queue; `None` if that changes nothing.
fn on_one_queue(recording: &Recording) -> Option<Recording> {
    let mut first: HashMap<&Value, u32> = HashMap::new();
    let mut instead: HashMap<u32, u32> = HashMap::new();
    for step in &recording.steps {
        if let (Entry::queue_create, Some(device), Some(Value::Object(queue))) =
            (step.entry, step.arguments.get(1), step.outputs.first())
        {
            let first = *first.entry(device).or_insert(*queue);
            if first != *queue {
                instead.insert(*queue, first);
            }
        }
    }
    if instead.is_empty() {
        return None;
    }
    let mut merged = recording.clone();
    merged.steps.retain_mut(|step| {
        let of_another = [step.outputs.first(), step.arguments.first()]
            .into_iter()
            .flatten()
            .any(|value| matches!(value, Value::Object(id) if instead.contains_key(id)));
        for value in &mut step.arguments {
            if let Value::Object(id) = value {
                *id = instead.get(id).copied().unwrap_or(*id);
            }
        }
        // The first queue stays until its own end, and after that no work of the others can be put on it.
        let end = matches!(step.entry, Entry::queue_create | Entry::queue_destroy);
        !(end && of_another)
    });
    Some(merged)
}

fn without_calls(recording: &Recording, fails: &mut impl FnMut(&Recording) -> bool) -> Recording {
    let needs = needs(&recording.steps);
    let mut kept: Vec<usize> = (0..recording.steps.len()).collect();
    let mut pieces = 2;
    while kept.len() > 1 {
        let size = kept.len().div_ceil(pieces);
        let mut smaller = None;
        for piece in kept.chunks(size).rev() {
            let gone: HashSet<usize> = piece.iter().copied().collect();
            let rest = closed(&kept, &gone, &needs);
            if rest.len() < kept.len() && fails(&part(recording, &rest)) {
                smaller = Some(rest);
                break;
            }
        }
        match smaller {
            Some(rest) => {
                kept = rest;
                pieces = (pieces - 1).max(2);
            }
            None if size == 1 => break,
            None => pieces = (pieces * 2).min(kept.len()),
        }
    }
    part(recording, &kept)
}

/// For each step the steps that it cannot be without.
fn needs(steps: &[Step]) -> Vec<Vec<usize>> {
    let mut made: HashMap<u32, usize> = HashMap::new();
    // Mappings by the reservation that they lie in, and the recording that each queue is in.
    let mut maps: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut begun: HashMap<u32, usize> = HashMap::new();
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (at, step) in steps.iter().enumerate() {
        for id in step.uses() {
            needs[at].extend(made.get(&id));
            if step.entry.submits() || step.entry == Entry::virtual_unmap {
                needs[at].extend(maps.get(&id).into_iter().flatten());
            }
        }
        match (step.entry, &step.arguments[..]) {
            (Entry::virtual_map, [_, Value::List(params)]) => {
                if let Some(Value::Address(id, _)) = params.first() {
                    maps.entry(*id).or_default().push(at);
                }
            }
            (Entry::graph_record_begin, [Value::Object(queue), ..]) => {
                begun.insert(*queue, at);
            }
            (Entry::graph_record_end, [Value::Object(queue), ..]) => {
                if let Some(begin) = begun.remove(queue) {
                    needs[at].push(begin);
                    needs[begin].push(at);
                }
            }
            _ => {}
        }
        for id in step.makes() {
            made.entry(id).or_insert(at);
        }
    }
    needs
}

/// `kept` without `gone`, and without all calls that need results of `gone`.
fn closed(kept: &[usize], gone: &HashSet<usize>, needs: &[Vec<usize>]) -> Vec<usize> {
    let mut left: HashSet<usize> = kept
        .iter()
        .copied()
        .filter(|at| !gone.contains(at))
        .collect();
    loop {
        let before = left.len();
        let whole = |at: &usize| needs[*at].iter().all(|need| left.contains(need));
        let next: HashSet<usize> = left.iter().copied().filter(whole).collect();
        left = next;
        if left.len() == before {
            break;
        }
    }
    kept.iter()
        .copied()
        .filter(|at| left.contains(at))
        .collect()
}

fn part(recording: &Recording, steps: &[usize]) -> Recording {
    Recording {
        driver: recording.driver.clone(),
        version: recording.version.clone(),
        visible: recording.visible.clone(),
        steps: steps
            .iter()
            .map(|at| recording.steps[*at].clone())
            .collect(),
        cut: false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Recording, Step, shrink};
    use crate::Entry;
    use crate::record::Value;

    fn step(number: u64, entry: Entry, uses: &[u32], makes: &[u32]) -> Step {
        Step {
            number,
            entry,
            arguments: uses.iter().map(|id| Value::Object(*id)).collect(),
            code: Some(0),
            outputs: makes.iter().map(|id| Value::Object(*id)).collect(),
            ran: Vec::new(),
            source: Vec::new(),
            destination: Vec::new(),
        }
    }

    #[test]
    fn what_is_needed_stays_and_the_rest_goes() {
        // Twenty queues, each with a few fills; it fails where queue 7 has its second fill and queue 9 any.
        let mut recording = Recording::default();
        for queue in 1..=20u32 {
            let number = u64::from(queue) * 10;
            let fill = |at| step(number + at, Entry::fill, &[queue], &[]);
            recording
                .steps
                .push(step(number, Entry::queue_create, &[0], &[queue]));
            recording.steps.extend([fill(1), fill(2), fill(3)]);
        }
        let mut tries = 0;
        let small = shrink(&recording, |part| {
            tries += 1;
            let has = |number| part.steps.iter().any(|step| step.number == number);
            // A call without what made its queue must never be tried.
            for step in &part.steps {
                assert!(
                    has(step.number / 10 * 10),
                    "call {} is torn off",
                    step.number
                );
            }
            has(72) && (has(91) || has(93))
        });
        let numbers: Vec<_> = small.steps.iter().map(|step| step.number).collect();
        assert_eq!(numbers.len(), 4, "{numbers:?}");
        assert_eq!(numbers[..2], [70, 72]);
        assert!(tries < 200, "{tries} tries");
    }
}
