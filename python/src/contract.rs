//! The contract of stores for `pds.doctor`.

use pds::Error;
use pds::store::contract::ContractCheck;
use pyo3::prelude::*;

use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

/// A rule of the contract.
#[derive(Debug, IntoPyObject)]
struct ContractCheckFields {
    name: &'static str,
    /// What a store does that keeps the rule.
    expectation: &'static str,
}

/// The rules, the simplest first.
#[pyfunction]
fn contract_checks() -> Vec<ContractCheckFields> {
    let fields = |check: ContractCheck| ContractCheckFields {
        name: check.name(),
        expectation: check.expectation(),
    };
    ContractCheck::ALL.map(fields).into()
}

/// Checks the rule of this name in an empty folder.
#[pyfunction]
fn check_contract(py: Python<'_>, store: &StoreHandle, name: &str) -> PyResult<()> {
    let check = ContractCheck::ALL.into_iter().find(|c| c.name() == name);
    let unknown = || Error::other(format!("internal error: no rule is called {name:?}"));
    let check = into_py_result(py, check.ok_or_else(unknown))?;
    let store = into_py_result(py, store.store())?;
    run(py, move || async move { check.run(&store).await })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(contract_checks, module)?)?;
    module.add_function(wrap_pyfunction!(check_contract, module)?)
}
