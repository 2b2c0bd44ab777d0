//! A user's callable as a source of credentials.

use std::collections::HashMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use pds::store::builder::CredentialSource;
use pds::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::CallableFailure;
use crate::runtime::spawn_python;

/// A Python function that returns a mapping of credentials, in which `expires_at` is a datetime or None.
#[derive(Debug)]
pub(crate) struct PyCredentialProvider(pub(crate) Py<PyAny>);

type CredentialValues = (HashMap<String, String>, Option<DateTime<Utc>>);

#[async_trait]
impl CredentialSource for PyCredentialProvider {
    async fn fetch(&self) -> Result<CredentialValues> {
        let call = Python::attach(|py| self.0.clone_ref(py));
        spawn_python(move |py| fetch(call.bind(py)))
            .await
            .map_err(|e| {
                e.into_error()
                    .context("the call of the credential provider")
            })?
            .map_err(|e| {
                Error::new(
                    ErrorKind::PermissionDenied,
                    "the credential provider raised an exception",
                )
                .with_source(CallableFailure(e))
            })
    }
}

fn fetch(call: &Bound<'_, PyAny>) -> PyResult<CredentialValues> {
    let mapping = call.call0()?;
    let mut values = HashMap::new();
    let mut expiry = None;
    for item in mapping.call_method0("items")?.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = item?.extract()?;
        if value.is_none() {
            continue;
        }
        if name == "expires_at" {
            // A time without a zone is UTC, as everywhere in credentials.
            let expires_at = if value.getattr("tzinfo")?.is_none() {
                let utc = call.py().import("datetime")?.getattr("UTC")?;
                let kwargs = PyDict::new(call.py());
                kwargs.set_item("tzinfo", utc)?;
                value.call_method("replace", (), Some(&kwargs))?
            } else {
                value
            };
            let seconds: f64 = expires_at.call_method0("timestamp")?.extract()?;
            #[expect(clippy::cast_possible_truncation, reason = "milliseconds of a date")]
            let millis = (seconds * 1000.0) as i64;
            expiry = DateTime::from_timestamp_millis(millis);
        } else {
            values.insert(name, value.extract()?);
        }
    }
    Ok((values, expiry))
}
