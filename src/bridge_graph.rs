//! Graphs of the C++ bridge: each object is destroyed with its C++ object, replays or not.

use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error};

use crate::bridge::{Buffer, GraphFormat, Result, Stream};

/// A capture in progress.
pub(crate) struct Capture {
    stream: hooks::Ref<hooks::Stream>,
    ended: bool,
}

/// Nodes and edges.
pub(crate) struct Graph(hooks::Ref<hooks::Graph>);

/// A graph that can be replayed.
pub(crate) struct GraphExec(hooks::Ref<hooks::GraphExec>);

pub(crate) fn begin_capture(stream: &Stream) -> Result<Box<Capture>> {
    let stream = stream.inner.clone();
    stream.capture_begin(hooks::CaptureMode::ThreadLocal, None)?;
    Ok(Box::new(Capture {
        stream,
        ended: false,
    }))
}

#[expect(clippy::boxed_local, reason = "C++ hands objects over as boxes")]
pub(crate) fn end_capture(mut capture: Box<Capture>) -> Result<Box<Graph>> {
    capture.ended = true;
    Ok(Box::new(Graph(capture.stream.capture_end()?)))
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended {
            // Given up: there is nobody to tell, and the stream is usable either way.
            let _ = self.stream.capture_abort("its object was destroyed");
            let _ = self.stream.capture_end();
        }
    }
}

impl Graph {
    pub(crate) fn name_buffer(&self, name: &str, buffer: &Buffer) -> Result<()> {
        self.0.name_buffer(name, buffer.address, buffer.size)
    }

    pub(crate) fn name_scalar(&self, name: &str, node: u32, index: u32) -> Result<()> {
        self.0.name_scalar(name, node, index)
    }

    pub(crate) fn node_count(&self) -> u32 {
        self.0.info().nodes
    }

    pub(crate) fn dump(&self, format: GraphFormat) -> Result<String> {
        let format = match format {
            GraphFormat::Dot => hooks::DumpFormat::Dot,
            GraphFormat::Json => hooks::DumpFormat::Json,
            GraphFormat::Svg => hooks::DumpFormat::Svg,
            // C++ can pass any number as an enumerator.
            other => {
                return Err(Error::new(
                    Code::INVALID_ARGUMENT,
                    format!(
                        "graph format {} is unknown: it is Dot, Json or Svg",
                        other.repr
                    ),
                ));
            }
        };
        Ok(self.0.dump(&format!("graph {:#x}", self.0.id()), format))
    }

    pub(crate) fn instantiate(&self) -> Result<Box<GraphExec>> {
        let exec = hooks::instantiate(&self.0, hooks::ExecFlags::default())?;
        Ok(Box::new(GraphExec(exec)))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = hooks::destroy_graph(self.0.id());
    }
}

impl GraphExec {
    pub(crate) fn replay(&self, stream: &Stream) -> Result<()> {
        self.0.replay(&stream.inner)
    }

    pub(crate) fn bind(&self, name: &str, buffer: &Buffer) -> Result<()> {
        self.0.bind(self.0.slot(name)?, buffer.address)
    }

    pub(crate) fn bind_scalar(&self, name: &str, value: f64) -> Result<()> {
        let value = hooks::ops::Scalar::F64(value);
        self.0.bind_scalar(self.0.slot(name)?, value)
    }

    pub(crate) fn update(&self, graph: &Graph) -> Result<()> {
        self.0.update(&graph.0)
    }

    pub(crate) fn check(&self, stream: &Stream) -> Result<()> {
        self.0.check(&stream.inner)
    }

    pub(crate) fn profile(&self, stream: &Stream) -> Result<String> {
        Ok(self.0.profile(&stream.inner)?.to_string())
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let _ = hooks::destroy_graph_exec(self.0.id());
    }
}
