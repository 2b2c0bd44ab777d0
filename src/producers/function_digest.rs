//! Digests of the functions of stages. They tell that a function has changed though its stage declares the same version,
//! which is a warning before anything is computed, not another definition: a digest changes with what gives the same
//! results, too, and does not see what the function calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::format::{NodeEntry, PipelineManifest};
use super::functions::ChangedFunctionHook;
use super::graph::{Graph, Node, StageNode};
use super::rebuild::Rebuild;
use crate::error::Result;
use crate::files::run_blocking;

impl StageNode {
    fn has_other_function(&self, stored: &NodeEntry) -> bool {
        self.function_digest.as_ref().is_some_and(|declared| {
            let digest = stored.function_digests.get(&declared.runtime);
            digest.is_some_and(|digest| *digest != declared.digest)
        })
    }

    /// The digests that are stored with the stage; `kept` is what is stored of it if its rows stay. The digests of other
    /// runtimes stay with them, but beside another function.
    pub(super) fn function_digests(&self, kept: Option<&NodeEntry>) -> BTreeMap<String, String> {
        let kept = kept.filter(|stored| !self.has_other_function(stored));
        let mut digests = kept.map_or_else(BTreeMap::new, |stored| stored.function_digests.clone());
        if let Some(declared) = &self.function_digest {
            digests.insert(declared.runtime.clone(), declared.digest.clone());
        }
        digests
    }
}

/// Calls the hook for each stage that is not computed anew and has another function than the stored one, once.
pub(super) async fn report_changed_functions(
    graph: &Graph,
    base: &PipelineManifest,
    rebuilds: &BTreeMap<String, Rebuild>,
    hook: Option<&Arc<dyn ChangedFunctionHook>>,
    reported: &mut BTreeSet<String>,
) -> Result<()> {
    let Some(hook) = hook else {
        return Ok(());
    };
    for node in graph.nodes() {
        let (Node::Stage(stage), Some(stored)) = (node, base.node(node.name())) else {
            continue;
        };
        let is_rebuilt = rebuilds.contains_key(&stage.name);
        if !is_rebuilt && stage.has_other_function(stored) && reported.insert(stage.name.clone()) {
            let (hook, name) = (Arc::clone(hook), stage.name.clone());
            run_blocking(move || hook.report(&name)).await?;
        }
    }
    Ok(())
}
