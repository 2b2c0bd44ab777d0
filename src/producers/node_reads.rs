//! What each source and stage reads in an update: it has a store of its own, which counts.
//!
//! What is kept of a run in the process is not read again, so its bytes count for the stage that read them first.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::graph::{Graph, Node};
use crate::store::Store;
use crate::store::metrics::{ReadCounter, ReadCounts};

/// The counters of the sources and stages of a plan, by name.
#[derive(Debug)]
pub(super) struct NodeReads(BTreeMap<String, Arc<ReadCounter>>);

impl NodeReads {
    pub(super) fn new(graph: &Graph) -> Self {
        let names = graph.nodes().iter().map(Node::name);
        let counters = names.map(|name| (name.to_owned(), Arc::default()));
        Self(counters.collect())
    }

    /// The store through which a source or stage reads.
    pub(super) fn store_of(&self, name: &str, store: &Store) -> Store {
        match self.0.get(name) {
            Some(counter) => store.with_read_counter(counter),
            None => store.clone(),
        }
    }

    /// What a source or stage has read in this process.
    pub(super) fn counts_of(&self, name: &str) -> ReadCounts {
        let counter = self.0.get(name);
        counter.map(|counter| counter.counts()).unwrap_or_default()
    }
}
