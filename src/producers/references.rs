//! What a pipeline's versions reference: what a vacuum has to keep.

use std::collections::HashSet;

use super::format::PipelineManifest;
use super::{Pipeline, names};
use crate::error::Result;
use crate::versions::{Vacuumable, Versioned};

impl Vacuumable for PipelineManifest {
    type References = HashSet<String>;

    const FOLDERS: &'static [&'static str] = &names::FOLDERS;

    fn base_version(path: &str) -> Option<u64> {
        names::base_version(path)
    }

    fn references_of(&self) -> HashSet<String> {
        self.references().map(str::to_owned).collect()
    }

    fn add_references(references: &mut HashSet<String>, others: HashSet<String>) {
        references.extend(others);
    }

    async fn load_references(references: HashSet<String>, _: &Pipeline) -> Result<HashSet<String>> {
        Ok(references)
    }
}
