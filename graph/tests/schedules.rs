//! Schedules and recordings of random graphs, compared with slow and simple models: sets of the nodes that come before,
//! and a search for needed nodes that ends when it finds no more.

use std::collections::BTreeSet;
use std::collections::HashMap;

use outrigger_graph::{
    Access, Buffer, Dag, Kind, Lane, Mark, NodeId, NodeSpec, Recorder, Schedule,
};
use proptest::collection::vec;
use proptest::prelude::*;

const KINDS: [Kind; 8] = [
    Kind::Kernel,
    Kind::Copy,
    Kind::Fill,
    Kind::Host,
    Kind::Conditional,
    Kind::Empty,
    Kind::Alloc,
    Kind::Free,
];

fn spec(kind: Kind, cost_ns: u32, effects: bool) -> NodeSpec<()> {
    NodeSpec {
        kind,
        label: kind.name().into(),
        scope: None,
        cost_ns,
        effects,
        command: (),
    }
}

/// A random node. Its numbers are taken modulo the number of things that they choose from.
#[derive(Clone, Debug)]
struct Plan {
    kind: Kind,
    cost_ns: u32,
    effects: bool,
    deps: Vec<u32>,
    accesses: Vec<(u32, bool, bool)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    // Most nodes are kernels, and most run soon after the node before, so that there are chains.
    let kind = prop_oneof![3 => Just(Kind::Kernel), 2 => proptest::sample::select(&KINDS[..])];
    let cost = prop_oneof![Just(0), 1..500u32, 5_000..200_000u32];
    let dep = prop_oneof![2 => 0..3u32, 1 => any::<u32>()];
    let access = (0..6u32, any::<bool>(), any::<bool>());
    (
        kind,
        cost,
        proptest::bool::weighted(0.3),
        vec(dep, 0..4),
        vec(access, 0..4),
    )
        .prop_map(|(kind, cost_ns, effects, deps, accesses)| Plan {
            kind,
            cost_ns,
            effects,
            deps,
            accesses,
        })
}

fn build(transient: &[bool], plans: &[Plan]) -> Dag<()> {
    let mut graph = Dag::default();
    for (index, &transient) in transient.iter().enumerate() {
        graph.add_buffer(Buffer {
            address: index as u64 * 64,
            size: 64,
            transient,
        });
    }
    for (id, plan) in plans.iter().enumerate() {
        // A dependency is a distance back from the node.
        let dep = |&back: &u32| (id > 0).then(|| (id - 1 - back as usize % id) as NodeId);
        let deps: Vec<_> = plan.deps.iter().filter_map(dep).collect();
        let access = |&(buffer, reads, writes): &(u32, bool, bool)| Access {
            buffer,
            reads,
            writes,
        };
        let accesses: Vec<_> = match plan.kind.runs() {
            true => plan.accesses.iter().map(access).collect(),
            false => Vec::new(),
        };
        let added = graph.add(
            0,
            spec(plan.kind, plan.cost_ns, plan.effects),
            &deps,
            &accesses,
        );
        assert_eq!(added, Some(id as NodeId));
    }
    graph
}

/// For each node, all nodes that run before it, directly or not.
fn before<C>(graph: &Dag<C>) -> Vec<BTreeSet<NodeId>> {
    let mut sets: Vec<BTreeSet<NodeId>> = Vec::new();
    for (_, node) in graph.nodes() {
        let mut set = BTreeSet::new();
        for &dep in graph.deps(node) {
            set.insert(dep);
            set.extend(&sets[dep as usize]);
        }
        sets.push(set);
    }
    sets
}

/// The nodes that run and whose results somebody sees. The search ends when it finds no more.
fn needed(graph: &Dag<()>) -> BTreeSet<NodeId> {
    let mut found: BTreeSet<NodeId> = BTreeSet::new();
    loop {
        let seen = |buffer: u32, id: NodeId| {
            let mut later = found.range(id + 1..);
            !graph.buffers()[buffer as usize].transient
                || later.any(|&reader| {
                    let accesses = graph.accesses(graph.node(reader).expect("known"));
                    accesses.iter().any(|one| one.reads && one.buffer == buffer)
                })
        };
        let more: Vec<NodeId> = graph
            .nodes()
            .filter(|(id, node)| {
                let mut accesses = graph.accesses(node).iter();
                let useful =
                    node.spec.effects || accesses.any(|one| one.writes && seen(one.buffer, *id));
                node.spec.kind.runs() && useful && !found.contains(id)
            })
            .map(|(id, _)| id)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The place of each node: its segment, its chunk, and its index among the steps.
fn places(schedule: &Schedule) -> HashMap<NodeId, (usize, u32, usize)> {
    let mut places = HashMap::new();
    for (segment, chunks) in schedule.segments.iter().enumerate() {
        for chunk in chunks.clone() {
            for step in schedule.chunks[chunk as usize].clone() {
                let place = (segment, chunk, step as usize);
                let old = places.insert(schedule.steps[step as usize], place);
                assert_eq!(old, None, "a node runs once");
            }
        }
    }
    places
}

/// Whether ranges follow each other without gaps from 0 to `end`, none of them empty.
fn tiles(ranges: &[std::ops::Range<u32>], end: usize) -> bool {
    let mut at = 0;
    let follow = ranges.iter().all(|range| {
        let follows = range.start == at && range.end > range.start;
        at = range.end;
        follows
    });
    follow && at as usize == end
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_schedule_respects_all_edges_and_drops_what_nobody_sees(
        transient in vec(any::<bool>(), 6),
        plans in vec(plan(), 0..40),
        threads in 0..9u32,
    ) {
        let graph = build(&transient, &plans);
        let schedule = graph.schedule(threads);
        prop_assert!(tiles(&schedule.chunks, schedule.steps.len()), "{schedule:?}");
        prop_assert!(tiles(&schedule.segments, schedule.chunks.len()), "{schedule:?}");
        let regions: Vec<_> = schedule.regions.iter().map(|one| one.segments.clone()).collect();
        prop_assert!(tiles(&regions, schedule.segments.len()), "{schedule:?}");
        for region in &schedule.regions {
            let range = region.segments.start as usize..region.segments.end as usize;
            let wide = schedule.segments[range].iter().any(|segment| segment.len() > 1);
            prop_assert_eq!(region.team, wide, "a team runs what is wide, and nobody else does");
        }

        let places = places(&schedule);
        let needed = needed(&graph);
        let runs: BTreeSet<NodeId> = places.keys().copied().collect();
        prop_assert_eq!(&runs, &needed);
        let works = graph.nodes().filter(|(_, node)| node.spec.kind.runs());
        let dead: Vec<NodeId> = works.map(|(id, _)| id).filter(|id| !needed.contains(id)).collect();
        prop_assert_eq!(&schedule.dropped, &dead);
        let cost = |id: &NodeId| match graph.node(*id).expect("known").spec.cost_ns {
            0 => 100,
            known => u64::from(known),
        };
        prop_assert_eq!(schedule.cost_ns, needed.iter().map(cost).sum::<u64>());

        // Also for edges that lead over nodes without work.
        for (id, earlier) in (0..).zip(before(&graph)) {
            let Some(&(segment, chunk, step)) = places.get(&id) else { continue };
            for other in earlier {
                let Some(&(its_segment, its_chunk, its_step)) = places.get(&other) else { continue };
                let ordered = its_segment < segment || (its_chunk == chunk && its_step < step);
                prop_assert!(ordered, "{other} runs before {id}: {schedule:?}");
            }
        }
        if threads < 2 {
            prop_assert!(!schedule.is_parallel());
            prop_assert!(schedule.segments.len() <= 1);
            prop_assert!(schedule.steps.is_sorted(), "serially in the order of recording");
        }
    }
}

/// `width` chains of `length` nodes between a first and a last node.
fn wide(width: u32, length: u32, cost_ns: u32) -> Dag<()> {
    let mut graph = Dag::default();
    let mut add = |deps: &[NodeId], cost_ns| {
        let added = graph.add(0, spec(Kind::Kernel, cost_ns, true), deps, &[]);
        added.expect("its dependencies are known")
    };
    let first = add(&[], 1);
    let ends: Vec<NodeId> = (0..width)
        .map(|_| (0..length).fold(first, |last, _| add(&[last], cost_ns)))
        .collect();
    add(&ends, 1);
    graph
}

#[test]
fn levels_run_in_parallel_exactly_where_that_pays() {
    // 8 chains of 5 nodes. Each chain is one chunk.
    let schedule = wide(8, 5, 10_000).schedule(4);
    let widths: Vec<usize> = schedule
        .segments
        .iter()
        .map(ExactSizeIterator::len)
        .collect();
    assert_eq!(widths, [1, 8, 1]);
    for chunk in &schedule.chunks[1..9] {
        let steps = &schedule.steps[chunk.start as usize..chunk.end as usize];
        assert_eq!(steps.len(), 5);
        assert!(steps.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
    // Not parallel: too little work, one chain, or one thread.
    for (width, cost, threads) in [(8, 10, 4), (1, 1_000_000, 4), (8, 10_000, 1)] {
        let schedule = wide(width, 5, cost).schedule(threads);
        assert_eq!(schedule.segments.len(), 1, "{width} {cost} {threads}");
        assert!(!schedule.is_parallel());
    }
}

/// An event of a random recording. Its numbers are taken modulo the number of things that they choose from.
#[derive(Clone, Debug)]
enum Step {
    Record { lane: u32 },
    Mark { lane: u32 },
    Wait { lane: u32, mark: usize },
    Fork { mark: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (lane, mark) = (any::<u32>(), any::<usize>());
    prop_oneof![
        4 => lane.prop_map(|lane| Step::Record { lane }),
        2 => lane.prop_map(|lane| Step::Mark { lane }),
        2 => (lane, mark).prop_map(|(lane, mark)| Step::Wait { lane, mark }),
        1 => mark.prop_map(|mark| Step::Fork { mark }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    /// The model keeps, for each stream and each event, the set of all nodes that come before it.
    #[test]
    fn recorded_edges_are_those_of_streams_and_events(steps in vec(step(), 0..60)) {
        let mut recorder = Recorder::<()>::default();
        let mut lanes: Vec<BTreeSet<NodeId>> = vec![BTreeSet::new()];
        let mut marks: Vec<(Mark, BTreeSet<NodeId>)> = vec![(recorder.mark(0), BTreeSet::new())];
        let mut expected = Vec::new();
        for step in steps {
            let lane_of = |lane: u32| lane as usize % lanes.len();
            match step {
                Step::Record { lane } => {
                    let lane = lane_of(lane);
                    let id = recorder.record(lane as Lane, spec(Kind::Kernel, 0, true), &[]);
                    prop_assert_eq!(id, Some(expected.len() as NodeId));
                    expected.push(lanes[lane].clone());
                    lanes[lane].extend(id);
                }
                Step::Mark { lane } => {
                    let lane = lane_of(lane);
                    marks.push((recorder.mark(lane as Lane), lanes[lane].clone()));
                }
                Step::Wait { lane, mark } => {
                    let lane = lane_of(lane);
                    let (mark, known) = &marks[mark % marks.len()];
                    recorder.wait(lane as Lane, mark);
                    lanes[lane].extend(known);
                }
                Step::Fork { mark } => {
                    let (mark, known) = &marks[mark % marks.len()];
                    prop_assert_eq!(recorder.fork(mark) as usize, lanes.len());
                    lanes.push(known.clone());
                }
            }
        }
        prop_assert_eq!(before(recorder.graph()), expected);
        prop_assert_eq!(recorder.lanes() as usize, lanes.len());
        match recorder.check_joined() {
            Ok(()) => prop_assert!(lanes.iter().all(|known| known.is_subset(&lanes[0]))),
            Err(unjoined) => {
                prop_assert!(lanes[unjoined.lane as usize].contains(&unjoined.node));
                prop_assert!(!lanes[0].contains(&unjoined.node));
            }
        }
    }
}

#[test]
fn one_schedule_serves_only_graphs_that_use_buffers_alike_node_by_node() {
    let graph = |shapes: &[&[(u32, bool, bool)]]| {
        let plans: Vec<Plan> = shapes
            .iter()
            .map(|accesses| Plan {
                kind: Kind::Copy,
                cost_ns: 0,
                effects: false,
                deps: vec![0],
                accesses: accesses.to_vec(),
            })
            .collect();
        build(&[false, true], &plans)
    };
    // The same accesses in the same order, but by other nodes: in one of the graphs the last node is dead.
    let (write, read) = ((0, false, true), (0, true, false));
    let into = (1, false, true);
    let one = graph(&[&[write], &[read], &[into]]);
    let other = graph(&[&[write], &[read, into], &[]]);
    assert!(one.same_shape(&other, |(), ()| Ok(())).is_ok());
    assert!(!one.same_use(&other));
    assert!(one.same_use(&one.clone()));
}
