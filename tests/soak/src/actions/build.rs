//! Graphs that are built node by node. Nodes with memory follow each other; other nodes depend on any
//! nodes.

use std::sync::atomic::AtomicBool;

use fastrand::Rng;
use outrigger_ffi::otr_graph_info_t;

use super::capture::{BYTES, I64, body, free, operator, settled};
use super::commands::{DEVICE_TO_DEVICE, HOST_TO_DEVICE, SOURCE};
use super::{Action, action};
use crate::actor::Actor;
use crate::guest;
use crate::library::{Outcome, call, filled, made, text};
use crate::world::Graph;

pub(crate) const ACTIONS: &[Action] = &[action("build", 8, build), action("build", 6, look)];

fn build(actor: &mut Actor) {
    let device = actor.device();
    // An odd number, so that it is known how the graph was made.
    let recipe = actor.rng.u64(..) | 1;
    if actor.world.graphs.len() >= super::chaos::GRAPHS {
        return super::execs::destroy_graph(actor);
    }
    if let Some(id) = construct(actor, recipe, device) {
        let used = AtomicBool::new(false);
        actor.world.graphs.add(Graph {
            id,
            device,
            recipe: Some(recipe),
            used,
        });
    }
}

/// A graph that was built as the recipe says.
pub(crate) fn construct(actor: &mut Actor, recipe: u64, device: u32) -> Option<u64> {
    let stream = actor.private(device)?;
    let pool = if actor.chance(4) {
        super::pools::handle_of(actor, device)
    } else {
        0
    };
    let memory = settled(&stream, BYTES)?;
    let graph = made(|out| call!(graph_create(device, pool, out))).ok();
    if let Some(graph) = graph {
        let mut shape = Rng::with_seed(recipe);
        let mut builder = Builder {
            graph,
            device,
            memory,
            inner: None,
            last: None,
            nodes: 0,
        };
        for _ in 0..shape.u32(1..9) {
            builder.add(actor, &mut shape);
        }
        let _ = call!(graph_name_buffer(graph, c"x".as_ptr(), memory, BYTES));
        for node in 0..3 {
            if call!(graph_name_scalar(graph, c"alpha".as_ptr(), node, 0)).is_ok() {
                break;
            }
        }
    }
    // The graph that was built keeps the memory.
    free(device, memory);
    graph
}

/// A graph in the making.
struct Builder {
    graph: u64,
    device: u32,
    memory: u64,
    /// Memory of the graph's own.
    inner: Option<u64>,
    /// The last node that uses memory.
    last: Option<u32>,
    nodes: u32,
}

impl Builder {
    /// Adds a node behind the last one that uses memory.
    fn chain(&mut self, add: impl FnOnce(&Self, *const u32, u32, *mut u32) -> Outcome) {
        let deps: Vec<u32> = self.last.into_iter().collect();
        if let Ok(node) = made(|out| add(self, deps.as_ptr(), deps.len() as u32, out)) {
            self.last = Some(node);
            self.nodes += 1;
        }
    }

    /// Adds a node without memory behind any two; sometimes behind one that is not there.
    fn hang(
        &mut self,
        shape: &mut Rng,
        add: impl FnOnce(&Self, *const u32, u32, *mut u32) -> Outcome,
    ) {
        let deps = [shape.u32(..self.nodes + 1), shape.u32(..self.nodes + 1)];
        let count = if self.nodes == 0 { 0 } else { shape.u32(..3) };
        if made(|out| add(self, deps.as_ptr(), count, out)).is_ok() {
            self.nodes += 1;
        }
    }

    fn add(&mut self, actor: &mut Actor, shape: &mut Rng) {
        let other = self.inner.unwrap_or(self.memory);
        match shape.u32(..12) {
            0 => self.chain(|this, deps, count, out| {
                let pattern = 3u32;
                let pattern = (&raw const pattern).cast();
                call!(graph_add_fill(
                    this.graph, deps, count, other, BYTES, pattern, 4, out
                ))
            }),
            1 => self.chain(|this, deps, count, out| {
                let (to, from) = (this.memory, SOURCE.as_ptr() as u64);
                call!(graph_add_copy(
                    this.graph,
                    deps,
                    count,
                    to,
                    from,
                    BYTES,
                    HOST_TO_DEVICE,
                    out
                ))
            }),
            2 if other != self.memory => self.chain(|this, deps, count, out| {
                call!(graph_add_copy(
                    this.graph,
                    deps,
                    count,
                    other,
                    this.memory,
                    BYTES,
                    DEVICE_TO_DEVICE,
                    out
                ))
            }),
            3 => self.chain(|this, deps, count, out| {
                guest::kernel(shape, this.memory, 4, |kernel| {
                    call!(graph_add_host_kernel(this.graph, deps, count, kernel, out))
                })
            }),
            4 | 5 => self.chain(|this, deps, count, out| {
                let mut outcome = Err(outrigger_device::Code::UNSUPPORTED);
                operator(
                    actor,
                    shape,
                    &[this.memory, this.memory, other],
                    |id, one| {
                        outcome = call!(graph_add_operator(this.graph, deps, count, id, one, out));
                    },
                );
                outcome
            }),
            6 => self.allocate_or_free(),
            7 => self.conditional(actor, shape),
            8 => {
                let world = actor.world;
                let most = u32::MAX;
                self.chain(|this, deps, count, out| {
                    guest::host_node(world, shape, most, &[this.memory], |host| {
                        call!(graph_add_host(this.graph, deps, count, host, out))
                    })
                });
            }
            9 => self.child(actor),
            _ => self.hang(shape, |this, deps, count, out| {
                call!(graph_add_empty(this.graph, deps, count, out))
            }),
        }
    }

    fn allocate_or_free(&mut self) {
        if let Some(inner) = self.inner.take() {
            return self.chain(|this, deps, count, out| {
                call!(graph_add_free(this.graph, deps, count, inner, out))
            });
        }
        let mut address = 0;
        self.chain(|this, deps, count, out| {
            call!(graph_add_alloc(
                this.graph,
                deps,
                count,
                BYTES,
                &mut address,
                out
            ))
        });
        self.inner = (address != 0).then_some(address);
    }

    fn conditional(&mut self, actor: &mut Actor, shape: &mut Rng) {
        let kind = shape.u32(1..5); // 4 is none
        let set = u64::from(shape.bool());
        let memory = self.memory;
        self.chain(|this, deps, count, out| {
            let pattern = (&raw const set).cast();
            call!(graph_add_fill(
                this.graph, deps, count, memory, 8, pattern, 8, out
            ))
        });
        let Some(body) = body(self.device, memory) else {
            return;
        };
        let bodies = [body];
        self.chain(|this, deps, count, out| {
            let (graph, bodies) = (this.graph, bodies.as_ptr());
            call!(graph_add_conditional(
                graph, deps, count, kind, memory, I64, bodies, 1, out
            ))
        });
        if call!(graph_destroy(body)).is_ok() {
            actor.world.gone(body);
        }
    }

    /// The nodes of another graph, of one without memory.
    fn child(&mut self, actor: &mut Actor) {
        let child = actor
            .world
            .graphs
            .pick_where(&mut actor.rng, |graph| graph.recipe.is_none());
        let child = actor.or_garbage(child.map(|child| child.id));
        self.chain(|this, deps, count, out| {
            call!(graph_add_child(this.graph, deps, count, child, out))
        });
    }
}

/// Looks at any graph, also while others destroy it or make it executable.
fn look(actor: &mut Actor) {
    let graph = actor
        .world
        .graphs
        .pick(&mut actor.rng)
        .map(|graph| graph.id);
    let graph = actor.or_garbage(graph);
    let whole = size_of::<otr_graph_info_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    if actor.chance(4) {
        let format = actor.rng.u32(..5);
        let _ = text(|out| call!(graph_dump(graph, format, out)));
    } else {
        let _ = filled::<otr_graph_info_t>(size, |info| call!(graph_info(graph, info)));
    }
}
