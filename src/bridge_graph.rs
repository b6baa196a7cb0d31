//! Graphs of the C++ bridge: each object is destroyed with its C++ object, replays or not.

use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error};

use crate::bridge::{Buffer, GraphFormat, Guarded, Result, Stream};

/// A capture in progress.
pub(crate) struct Capture {
    stream: Guarded<hooks::Ref<hooks::Stream>>,
    ended: bool,
}

/// Nodes and edges.
pub(crate) struct Graph(Guarded<hooks::Ref<hooks::Graph>>);

/// A graph that can be replayed.
pub(crate) struct GraphExec(Guarded<hooks::Ref<hooks::GraphExec>>);

pub(crate) fn begin_capture(stream: &Stream) -> Result<Box<Capture>> {
    let stream = stream.inner.get()?.clone();
    stream.capture_begin(hooks::CaptureMode::ThreadLocal, None)?;
    Ok(Box::new(Capture {
        stream: Guarded::new(stream),
        ended: false,
    }))
}

#[expect(clippy::boxed_local, reason = "C++ hands objects over as boxes")]
pub(crate) fn end_capture(mut capture: Box<Capture>) -> Result<Box<Graph>> {
    capture.ended = true;
    let graph = capture.stream.get()?.capture_end()?;
    Ok(Box::new(Graph(Guarded::new(graph))))
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(stream) = self.stream.get()
        {
            // Given up: there is nobody to tell, and the stream is usable either way.
            let _ = stream.capture_abort("its object was destroyed");
            let _ = stream.capture_end();
        }
    }
}

impl Graph {
    pub(crate) fn name_buffer(&self, name: &str, buffer: &Buffer) -> Result<()> {
        self.0.get()?.name_buffer(name, buffer.address, buffer.size)
    }

    pub(crate) fn name_scalar(&self, name: &str, node: u32, index: u32) -> Result<()> {
        self.0.get()?.name_scalar(name, node, index)
    }

    pub(crate) fn node_count(&self) -> Result<u32> {
        Ok(self.0.get()?.info().nodes)
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
        let graph = self.0.get()?;
        Ok(graph.dump(&format!("graph {:#x}", graph.id()), format))
    }

    pub(crate) fn instantiate(&self) -> Result<Box<GraphExec>> {
        let exec = hooks::instantiate(self.0.get()?, hooks::ExecFlags::default())?;
        Ok(Box::new(GraphExec(Guarded::new(exec))))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(graph) = self.0.get() {
            let _ = hooks::destroy_graph(graph.id());
        }
    }
}

impl GraphExec {
    pub(crate) fn replay(&self, stream: &Stream) -> Result<()> {
        self.0.get()?.replay(stream.inner.get()?)
    }

    pub(crate) fn bind(&self, name: &str, buffer: &Buffer) -> Result<()> {
        let exec = self.0.get()?;
        exec.bind(exec.slot(name)?, buffer.address)
    }

    pub(crate) fn bind_scalar(&self, name: &str, value: f64) -> Result<()> {
        let value = hooks::ops::Scalar::F64(value);
        let exec = self.0.get()?;
        exec.bind_scalar(exec.slot(name)?, value)
    }

    pub(crate) fn update(&self, graph: &Graph) -> Result<()> {
        self.0.get()?.update(graph.0.get()?)
    }

    pub(crate) fn check(&self, stream: &Stream) -> Result<()> {
        self.0.get()?.check(stream.inner.get()?)
    }

    pub(crate) fn profile(&self, stream: &Stream) -> Result<String> {
        Ok(self.0.get()?.profile(stream.inner.get()?)?.to_string())
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if let Ok(exec) = self.0.get() {
            let _ = hooks::destroy_graph_exec(exec.id());
        }
    }
}
