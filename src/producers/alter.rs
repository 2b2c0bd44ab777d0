//! Removing and renaming the sources and stages of a stored pipeline.
//!
//! These commits change no row, but the graph: an update that was planned before them is planned again, and then finds
//! that it declares another graph.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::format::{NodeEntry, PipelineManifest};
use super::rebuild::version_of;
use super::{Committed, Pipeline};
use crate::error::{Error, Result};
use crate::versions::commit::commit;
use crate::versions::{Change, CommitOperation};

/// Removes sources and stages with their rows. Fails with [`crate::ErrorKind::NotFound`] if one does not exist, with
/// [`crate::ErrorKind::InvalidInput`] if a stage that stays is fed by one of them.
pub async fn remove(
    pipeline: &Pipeline,
    names: BTreeSet<String>,
    timeout: Duration,
) -> Result<Committed> {
    commit(pipeline, &GraphChange::Remove(names), timeout).await
}

/// Gives a source or stage another name. Fails with [`crate::ErrorKind::NotFound`] if one does not exist, with
/// [`crate::ErrorKind::InvalidInput`] if the name is taken or cannot be a name.
pub async fn rename(
    pipeline: &Pipeline,
    old: &str,
    new: &str,
    timeout: Duration,
) -> Result<Committed> {
    super::graph::check_name(new)?;
    let change = GraphChange::Rename {
        old: old.to_owned(),
        new: new.to_owned(),
    };
    commit(pipeline, &change, timeout).await
}

#[derive(Debug)]
enum GraphChange {
    Remove(BTreeSet<String>),
    Rename { old: String, new: String },
}

impl Change<PipelineManifest> for GraphChange {
    fn apply(&self, base: &PipelineManifest) -> Result<(PipelineManifest, CommitOperation)> {
        let mut next = base.clone();
        next.data_version = base.version + 1;
        for node in &mut next.nodes {
            node.update = None;
        }
        let operation = match self {
            Self::Remove(names) => {
                for name in names {
                    let version = version_of(base.find_node(name)?).unwrap_or_default();
                    next.removed.insert(name.clone(), version);
                }
                next.nodes.retain(|node| !names.contains(&node.name));
                let is_fed = |node: &&NodeEntry| node.feeders.iter().any(|f| names.contains(f));
                if let Some(fed) = next.nodes.iter().find(is_fed) {
                    return Err(Error::invalid(format!(
                        "stage {:?} is fed by {:?}; remove it too, or rebuild it with other feeders first",
                        fed.name, fed.feeders
                    )));
                }
                CommitOperation::new("remove", [("names", json!(names))])
            }
            Self::Rename { old, new } => {
                base.find_node(old)?;
                next.removed.remove(new);
                if base.node(new).is_some() {
                    return Err(Error::invalid(format!(
                        "there is a source or stage {new:?} already"
                    )));
                }
                let names = next.nodes.iter_mut();
                for name in names.flat_map(|n| std::iter::once(&mut n.name).chain(&mut n.feeders)) {
                    if name == old {
                        name.clone_from(new);
                    }
                }
                let details: [(&str, Value); 2] = [("from", json!(old)), ("to", json!(new))];
                CommitOperation::new("rename", details)
            }
        };
        Ok((next, operation))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}
