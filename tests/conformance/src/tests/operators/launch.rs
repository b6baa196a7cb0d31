//! R45 to R47: operators as work of queues, with the rules that hold for all commands.

use outrigger_device::{Code, Operator};

use super::library::Library;
use super::sample::{Launch, Sample};
use crate::test::tests;
use crate::tests::graph_recording::{begin, launch, try_end};
use crate::tests::kit::{block, fail, fails_once, threads};
use crate::verdict::{answers, equal};
use crate::{Context, Gate, Verdict};

tests! { "ops.launch":
    /// An operator is launched on any operands of its signature, one after the other, with workspaces that hold
    /// anything.
    on_other_operands: R46 R47, needs Operators, run |c| each(c, on_other_operands);
    /// Scalars are those of the launch.
    with_other_scalars: R45 R46, needs Operators, run |c| each(c, with_other_scalars);
    /// A launch is executed in its turn, and its call was copied before.
    in_the_order_of_the_queue: R16 R30 R46, needs Operators, run |c| each(c, in_the_order_of_the_queue);
    /// A launch behind a failure is not executed.
    behind_a_failure: R20, needs Operators, run |c| each(c, behind_a_failure);
    /// One operator is launched on several queues at a time.
    on_several_queues: R8 R46 R47, needs Operators, limit 60, run |c| each(c, on_several_queues);
    /// An operator is prepared for one device, and others have their own.
    on_its_device: R46, needs Operators TwoDevices;
    /// Operators come and go while others work, from several threads, and leave nothing.
    operators_come_and_go: R8 R10 R47, needs Operators, run |c| each(c, operators_come_and_go);
    /// A recorded launch is executed with each launch of the graph, or it is refused and left out.
    in_a_graph: R31 R34, needs Operators Graphs, run |c| each(c, in_a_graph);
}

/// Does a test with each operator of the samples that the driver has.
fn each(context: &Context, test: fn(&Library, Sample, &Operator, u64) -> Verdict) -> Verdict {
    let (taken, _) = Sample::sorted(&context.open()?)?;
    if taken.is_empty() {
        context.note("the driver has none of the operators of this test");
    }
    for sample in taken {
        context.step(sample.what());
        let library = Library::new(context, 0)?;
        let (operator, bytes) = sample.prepared(&library.bench, 0)?;
        test(&library, sample, &operator, bytes)?;
        drop(operator);
        library.bench.finish()?;
    }
    Ok(())
}

fn on_other_operands(
    library: &Library,
    sample: Sample,
    operator: &Operator,
    bytes: u64,
) -> Verdict {
    let launches = (0..5).map(|seed| Launch::new(library, sample, bytes, 51 * seed));
    let launches = launches.collect::<Verdict<Vec<_>>>()?;
    for turn in ["the first time", "the second time"] {
        for launch in &launches {
            launch.submit(&library.queue, operator)?;
        }
        library.queue.synchronize()?;
        for launch in &launches {
            launch.is_done(library, turn)?;
        }
    }
    Ok(())
}

fn with_other_scalars(
    library: &Library,
    sample: Sample,
    operator: &Operator,
    bytes: u64,
) -> Verdict {
    if sample.name != "add" {
        return Ok(());
    }
    for scalars in [&[][..], &[2.0], &[-0.5], &[0.0], &[]] {
        let launch = Launch::scaled(library, sample, bytes, 7, scalars)?;
        launch.submit(&library.queue, operator)?;
        library.queue.synchronize()?;
        launch.is_done(library, &format!("with the scalars {scalars:?}"))?;
    }
    Ok(())
}

fn in_the_order_of_the_queue(
    library: &Library,
    sample: Sample,
    operator: &Operator,
    bytes: u64,
) -> Verdict {
    let (queue, gate) = (&library.queue, Gate::new());
    let launch = Launch::new(library, sample, bytes, 1)?;
    launch.set_inputs(queue, 98)?;
    queue.synchronize()?;
    block(queue, &gate)?;
    // Only in between do the inputs have what the output follows from.
    launch.set_inputs(queue, 1)?;
    launch.submit(queue, operator)?;
    launch.set_inputs(queue, 99)?;
    gate.open();
    queue.synchronize()?;
    launch.is_done(library, "in the order of the queue")
}

fn behind_a_failure(library: &Library, sample: Sample, operator: &Operator, bytes: u64) -> Verdict {
    let launch = Launch::new(library, sample, bytes, 3)?;
    let before = launch.out.values(library, "before")?;
    fail(&library.queue, Code::EXECUTION)?;
    launch.submit(&library.queue, operator)?;
    fails_once(&library.queue, Code::EXECUTION, "the queue")?;
    equal!(
        launch.out.values(library, "the skipped launch")?,
        before,
        "the output of {}, which is skipped",
        sample.name
    );
    launch.submit(&library.queue, operator)?;
    library.queue.synchronize()?;
    launch.is_done(library, "once the failure was reported")
}

fn on_several_queues(
    library: &Library,
    sample: Sample,
    operator: &Operator,
    bytes: u64,
) -> Verdict {
    const QUEUES: usize = 4;
    let launches = (0..3 * QUEUES as u64).map(|seed| Launch::new(library, sample, bytes, seed));
    let launches = launches.collect::<Verdict<Vec<_>>>()?;
    library.queue.synchronize()?;
    let bench = &library.bench;
    threads(QUEUES, |thread| {
        let queue = bench.queue()?;
        for _ in 0..10 {
            for launch in launches.iter().skip(thread).step_by(QUEUES) {
                launch.submit(&queue, operator)?;
            }
        }
        Ok(queue.synchronize()?)
    })?;
    for launch in &launches {
        launch.is_done(library, "on one of several queues")?;
    }
    Ok(())
}

fn on_its_device(context: &Context) -> Verdict {
    let (taken, _) = Sample::sorted(&context.open()?)?;
    for sample in taken {
        let library = Library::new(context, 1)?;
        let (operator, bytes) = sample.prepared(&library.bench, 1)?;
        let launch = Launch::new(&library, sample, bytes, 4)?;
        launch.submit(&library.queue, &operator)?;
        library.queue.synchronize()?;
        launch.is_done(&library, "on device 1")?;
        let question = sample.question()?;
        // SAFETY: refused, as the queue is of another device.
        let refused = unsafe {
            let other = library.bench.queue_on(0)?;
            other.launch_operator(&operator, &question.call(), 0)
        };
        answers!(
            refused,
            Code::INVALID_DEVICE,
            "an operator of device 1 on a queue of device 0"
        );
        drop(operator);
        library.bench.finish()?;
    }
    Ok(())
}

fn operators_come_and_go(
    library: &Library,
    sample: Sample,
    operator: &Operator,
    bytes: u64,
) -> Verdict {
    let (launch, bench) = (Launch::new(library, sample, bytes, 5)?, &library.bench);
    for _ in 0..20 {
        launch.submit(&library.queue, operator)?;
    }
    threads(4, |_| {
        for _ in 0..50 {
            let kept = [sample.prepared(bench, 0)?, sample.prepared(bench, 0)?];
            equal!(kept[0].1, kept[1].1, "the workspace of one signature");
        }
        Ok(())
    })?;
    library.queue.synchronize()?;
    launch.is_done(library, "while others came and went")
}

fn in_a_graph(library: &Library, sample: Sample, operator: &Operator, bytes: u64) -> Verdict {
    let kept = Launch::new(library, sample, bytes, 6)?;
    let before = kept.out.values(library, "before")?;
    let queue = library.bench.queue()?;
    begin(&queue)?;
    let recorded = match kept.try_submit(&queue, operator)? {
        Ok(()) => true,
        refused => {
            answers!(refused, Code::UNSUPPORTED, "a launch that cannot be kept");
            false
        }
    };
    let graph = try_end(&queue)??;
    equal!(
        kept.out.values(library, "recorded")?,
        before,
        "the output of a recorded {}",
        sample.name
    );
    for turn in ["the first time", "the second time"] {
        launch(&queue, &graph)?;
        queue.synchronize()?;
        if recorded {
            kept.is_done(library, turn)?;
        } else {
            equal!(kept.out.values(library, turn)?, before, "what was left out");
        }
    }
    Ok(())
}
