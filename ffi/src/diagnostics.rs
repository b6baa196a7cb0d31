//! Logs and traces for hosts without a `tracing` subscriber of their own: `OUTRIGGER_LOG`, and files in
//! Chrome's JSON format, which Perfetto opens. While they are off, they cost one load per event.

use std::ffi::c_char;
use std::fs::File;
use std::io::BufWriter;
use std::sync::OnceLock;

use outrigger_hooks::{Code, Error, Result};
use parking_lot::Mutex;
use tracing_chrome::{ChromeLayer, ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::guard::text;

type Logged = Layered<Option<Box<dyn Layer<Registry> + Send + Sync>>, Registry>;
type TraceLayer = Option<ChromeLayer<Logged>>;
type TraceSwitch = reload::Handle<TraceLayer, Logged>;

static RUNNING: Mutex<Option<FlushGuard>> = Mutex::new(None);

/// Installs the subscriber of the process, once: logs to standard error if `OUTRIGGER_LOG` is set,
/// and the switch for traces.
pub(crate) fn install() -> Result<&'static TraceSwitch> {
    static SWITCH: OnceLock<Result<TraceSwitch, (Code, String)>> = OnceLock::new();
    let switch = SWITCH.get_or_init(|| {
        let log: Option<Box<dyn Layer<Registry> + Send + Sync>> =
            match std::env::var("OUTRIGGER_LOG") {
                Ok(directives) if !directives.is_empty() => {
                    let filter = EnvFilter::try_new(&directives).map_err(|error| {
                        (
                            Code::INVALID_ARGUMENT,
                            format!("OUTRIGGER_LOG={directives}: {error}"),
                        )
                    })?;
                    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
                    Some(layer.with_filter(filter).boxed())
                }
                _ => None,
            };
        let (trace, switch) = reload::Layer::new(None);
        let subscriber = Registry::default().with(log).with(trace);
        tracing::subscriber::set_global_default(subscriber).map_err(|_| {
            let text = "the process has a tracing subscriber of its own, which sees all events of \
                        the targets outrigger::*";
            (Code::UNSUPPORTED, text.to_owned())
        })?;
        Ok(switch)
    });
    switch
        .as_ref()
        .map_err(|(code, text)| Error::new(*code, text.clone()))
}

fn set(switch: &TraceSwitch, layer: TraceLayer) -> Result<()> {
    switch
        .reload(layer)
        .map_err(|error| Error::new(Code::INTERNAL, error.to_string()))
}

api! {
    /// Writes a trace to a file in Chrome's JSON format, which Perfetto opens, until otr_trace_end. The
    /// trace holds fallbacks, the log of the drivers, and the work of the built-in driver by stream
    /// (operators, copies, fills, host calls). For the work of any other driver use the layer `trace`.
    fn otr_trace_begin(path: *const c_char) {
        let path = text(path, "path")?;
        let mut running = RUNNING.lock();
        if running.is_some() {
            return Err(Error::new(Code::BUSY, "a trace is being written: end it first"));
        }
        let switch = install()?;
        let file = File::create(path).map_err(|error| {
            Error::new(Code::INVALID_ARGUMENT, format!("{path} cannot be written: {error}"))
        })?;
        let (layer, guard) =
            ChromeLayerBuilder::new().writer(BufWriter::new(file)).include_args(true).build();
        set(switch, Some(layer))?;
        *running = Some(guard);
        Ok(())
    }

    /// Ends the trace and closes its file.
    fn otr_trace_end() {
        let guard = RUNNING.lock().take();
        let Some(guard) = guard else {
            return Err(Error::new(Code::INVALID_ARGUMENT, "no trace is being written"));
        };
        set(install()?, None)?;
        drop(guard); // writes what is left and closes the file
        Ok(())
    }
}
