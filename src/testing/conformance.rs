//! The contract of a store, for tests of stores.

use crate::error::Result;
use crate::store::Store;
use crate::store::contract::ContractCheck;

/// Checks all that pds relies on, in an empty store, and leaves it empty. The error names the rule that is broken.
pub async fn check_store(store: &Store) -> Result<()> {
    for check in ContractCheck::ALL {
        check
            .run(store)
            .await
            .map_err(|e| e.context(check.name()))?;
    }
    Ok(())
}
