//! Passes the engine's log records on to Python's `logging`, to loggers under `pds`.

use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pds::store::secrets::mask_urls;
use pyo3::prelude::*;

/// Whether the logger `pds` has a handler that does nothing.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

struct PythonLog;

impl Log for PythonLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pds")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let name = record.target().replace("::", ".");
        let text = mask_urls(&record.args().to_string());
        let level = match record.level() {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug | Level::Trace => 10,
        };
        // A record that cannot be delivered must not fail the operation that logged it.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logging = py.import("logging")?;
            if !IS_QUIET.swap(true, Ordering::Relaxed) {
                // Without it, warnings go to stderr in a program that has no handler.
                let root = logging.call_method1("getLogger", ("pds",))?;
                let handler = logging.call_method0("NullHandler")?;
                root.call_method1("addHandler", (handler,))?;
            }
            let logger = logging.call_method1("getLogger", (name,))?;
            logger.call_method1("log", (level, "%s", text))?;
            Ok(())
        });
    }

    fn flush(&self) {}
}

/// Sends records of `level` and above (Python's numbers) to Python; without a call, those of `INFO` and above.
#[pyfunction]
fn enable_logging(level: u8) {
    log::set_max_level(match level {
        0..=10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        31..=40 => LevelFilter::Error,
        _ => LevelFilter::Off,
    });
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Every extension module has its own copy of `log`, so nothing else sets the logger of this one.
    let _ = log::set_logger(&PythonLog);
    log::set_max_level(LevelFilter::Info);
    module.add_function(wrap_pyfunction!(enable_logging, module)?)
}
