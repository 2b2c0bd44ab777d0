//! The engine's log records as those of Python's `logging`, under `pds`.

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

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
        let text = record.args().to_string();
        let level = match record.level() {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug | Level::Trace => 10,
        };
        // A record that cannot be delivered is no reason to fail what it tells of.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", (name,))?;
            logger.call_method1("log", (level, "%s", text))?;
            Ok(())
        });
    }

    fn flush(&self) {}
}

/// Sends records from `level` up (Python's numbers) to Python. Costs nothing while it is not called.
#[pyfunction]
fn enable_logging(level: u8) {
    // A second call only changes the level.
    let _ = log::set_logger(&PythonLog);
    log::set_max_level(match level {
        0..=10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        _ => LevelFilter::Error,
    });
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(enable_logging, module)?)
}
