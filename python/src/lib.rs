//! The Python bindings of the engine: they convert arguments and results, wait, and map errors, and do nothing else.

mod alter;
mod commits;
mod contract;
mod credentials;
mod datafusion;
mod datafusion_filters;
mod dataset;
mod delta_export;
mod engine;
mod error;
mod foreign;
mod foreign_upload;
mod handle;
mod iceberg_export;
mod input;
mod item_stream;
mod logging;
mod nested_rows;
mod odf;
mod odf_results;
mod odf_tasks;
mod odf_values;
mod parts;
mod pipeline;
mod pipeline_results;
mod pipeline_upkeep;
mod predicate;
mod preview;
mod producer_calls;
mod progress;
mod rewrite_tasks;
mod row_calls;
mod row_values;
mod runtime;
mod scan;
mod scan_tasks;
mod staged_rows;
mod store;
mod table;
mod table_create;
mod table_import;
mod table_results;
mod task_changes;
mod vacuum;
mod value;
mod verify;

use pyo3::prelude::*;

/// The native half of `pds`.
#[pymodule]
fn _pds(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<parts::StagedPart>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<item_stream::ItemStream>()?;
    runtime::register_fork_hooks(module)?;
    store::register(module)?;
    contract::register(module)?;
    module.add_class::<scan::OpenDataset>()?;
    module.add_class::<parts::PartIndex>()?;
    module.add_class::<progress::ProgressHandle>()?;
    logging::register(module)?;
    datafusion::register(module)?;
    dataset::register(module)?;
    scan::register(module)?;
    scan_tasks::register(module)?;
    delta_export::register(module)?;
    iceberg_export::register(module)?;
    verify::register(module)?;
    staged_rows::register(module)?;
    table_create::register(module)?;
    table_import::register(module)?;
    task_changes::register(module)?;
    rewrite_tasks::register(module)?;
    vacuum::register(module)?;
    alter::register(module)?;
    odf::register(module)?;
    odf_tasks::register(module)?;
    odf_values::register(module)?;
    engine::register(module)?;
    nested_rows::register(module)?;
    row_calls::register(module)?;
    row_values::register(module)?;
    pipeline::register(module)?;
    pipeline_upkeep::register(module)?;
    preview::register(module)?;
    table::register(module)
}
