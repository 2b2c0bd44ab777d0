//! Files of runs that an update opens, or reads anew, before it begins.
//!
//! A lookup opens the files of a table and then reads pages of them: it waits for the store twice. A process that keeps
//! nothing of the files opens those of all tables that the update looks at at once.

use std::collections::BTreeSet;

use super::format::StoredRun;
use super::graph::{Node, StageNode};
use super::operators::StageFunction;
use super::plan::Plan;
use crate::error::Result;
use crate::parquet::file::TAIL_BYTES;
use crate::run::{RunFile, forget, open_ahead};

/// The most files that are opened ahead.
const MAX_FILES: usize = 256;

impl Plan {
    /// Opens the files of runs in which the update looks up keys, or which it merges with what it adds. In which of the
    /// files of a long run the keys are is not known yet.
    pub(super) async fn open_runs(&self) -> Result<()> {
        // Their files are opened again by each lookup.
        if self.pipeline.store().local().is_some() {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        let mut files = Vec::new();
        for (reader, run) in self.runs_to_open() {
            if let [file] = run.files.files.as_slice()
                && files.len() < MAX_FILES
                && names.insert(&file.name)
            {
                files.push((self.store_of(reader), file.clone()));
            }
        }
        open_ahead(self.pipeline.root(), files).await
    }

    /// The runs, each with the name of the source or stage that reads it. An update of a source may look up no key: it
    /// reads the small runs that it merges with what it adds.
    fn runs_to_open(&self) -> Vec<(&str, &StoredRun)> {
        let mut changed: BTreeSet<&str> = BTreeSet::new();
        let mut runs = Vec::new();
        for node in self.graph.nodes() {
            let name = node.name();
            let is_changed = match node {
                Node::Source(_) => {
                    let input = self.sources.get(name);
                    input.is_some_and(|input| !input.is_empty())
                }
                Node::Stage(stage) => {
                    let mut feeders = stage.feeders.iter();
                    feeders.any(|feeder| changed.contains(feeder.as_str()))
                }
            };
            if !is_changed {
                continue;
            }
            match node {
                Node::Source(source) => {
                    let is_read = source.skip_unchanged || self.feeds_aggregate(name);
                    let content = self.stored_content(name).iter();
                    let content = content.filter(|run| is_read || run.size_bytes() <= TAIL_BYTES);
                    runs.extend(content.map(|run| (name, run)));
                }
                Node::Stage(stage) if !self.is_whole(stage) => {
                    runs.extend(self.runs_of_lookups(node, stage, &changed));
                }
                // It reads all rows of its feeders.
                Node::Stage(_) => {}
            }
            changed.insert(name);
        }
        runs
    }

    /// The runs in which a stage looks up keys: those of its own tables, and of feeders without changes.
    fn runs_of_lookups<'a>(
        &'a self,
        node: &'a Node,
        stage: &'a StageNode,
        changed: &BTreeSet<&str>,
    ) -> Vec<(&'a str, &'a StoredRun)> {
        let others = stage.feeders.iter();
        let others = others.filter(|name| !changed.contains(name.as_str()));
        let mut runs: Vec<&StoredRun> = others
            .flat_map(|name| self.stored_content(name))
            .chain(self.stored_content(&stage.name))
            .collect();
        // Aggregates and joins have none that are read.
        if matches!(stage.function, StageFunction::Produce(_)) {
            runs.extend(self.base_runs(node, |entry| &entry.mappings));
        }
        let name = stage.name.as_str();
        runs.into_iter().map(|run| (name, run)).collect()
    }

    /// Whether an aggregate reads what the changed rows of a source were.
    fn feeds_aggregate(&self, source: &str) -> bool {
        self.graph.nodes().iter().any(|node| match node {
            Node::Stage(stage) => {
                matches!(stage.function, StageFunction::Fold(_))
                    && stage.feeders.iter().any(|name| name == source)
            }
            Node::Source(_) => false,
        })
    }

    /// Makes rebuilds read what the store has, whatever this process keeps of it: checks are made of them.
    pub(super) fn forget_rebuilt(&self) {
        let mut files: Vec<RunFile> = Vec::new();
        for node in self.graph.nodes() {
            let Node::Stage(stage) = node else { continue };
            if !self.rebuilds.contains_key(&stage.name) {
                continue;
            }
            let tables = stage.feeders.iter().chain([&stage.name]);
            for entry in tables.filter_map(|name| self.base.node(name)) {
                let runs = entry.content.iter().chain(&entry.mappings);
                files.extend(runs.flat_map(|run| run.files.files.iter().cloned()));
            }
        }
        if !files.is_empty() {
            forget(self.pipeline.store(), self.pipeline.root(), &files);
        }
    }
}
