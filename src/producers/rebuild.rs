//! Rebuilds: which stages an update computes anew from all rows of their feeders, and how.
//!
//! A stage is computed anew because the caller says so, or because its definition is another than the stored one and the
//! caller allows that. Its old rows are compared with the new ones, so what it feeds gets the difference. Where its old
//! tables have other columns or another order, new ones take their place, and every stage that it feeds is computed anew
//! too. That values of a stage may be null from now on changes nothing: what is stored fits.

use std::collections::{BTreeMap, BTreeSet};

use arrow_schema::{DataType, Field, FieldRef};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{NodeEntry, PipelineManifest};
use super::graph::{Graph, Node};
use super::tables::KeyAndValue;
use crate::error::{Error, ErrorKind, Result};

/// Which stages an update computes anew.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RebuildOptions {
    /// These, whether or not their definition has changed.
    pub stages: BTreeSet<String>,
    /// All stages whose definition has changed. Without it one that is not among `stages` is an error.
    pub changed: bool,
    /// Only of about this part of the keys of what feeds them, chosen by chance, where their tables stay the same.
    pub sample: Option<f64>,
}

/// How a stage is computed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Rebuild {
    /// The new rows are compared with the old ones.
    Compare,
    /// The old tables cannot hold the new rows; new tables take their place.
    Replace,
}

/// How the declared definition of a stage differs from the stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Difference {
    what: &'static str,
    /// The tables have other columns or another order.
    is_other_table: bool,
}

/// The stages to compute anew. Fails with [`ErrorKind::DefinitionChanged`] if the graph lacks a stored source or stage,
/// or defines one otherwise without that being allowed, with [`ErrorKind::InvalidInput`] if a named stage does not exist.
pub(super) fn find_rebuilds(
    graph: &Graph,
    manifest: &PipelineManifest,
    options: &RebuildOptions,
) -> Result<BTreeMap<String, Rebuild>> {
    for stored in &manifest.nodes {
        if graph.node(&stored.name).is_none() {
            return Err(changed_error(format!(
                "the pipeline has {:?}, which is not declared; declare all its sources and stages, or rebuild the \
                 stages that it feeds with other feeders and remove it from the pipeline",
                stored.name
            )));
        }
    }
    if let Some(name) = options
        .stages
        .iter()
        .find(|name| !matches!(graph.node(name), Some(Node::Stage(_))))
    {
        return Err(Error::invalid(format!(
            "there is no stage {name:?} to rebuild"
        )));
    }
    let mut rebuilds = BTreeMap::new();
    for node in graph.nodes() {
        let Some(stored) = manifest.node(node.name()) else {
            // It is filled because it is new.
            check_removed(node, manifest, options)?;
            continue;
        };
        let name = node.name();
        let difference = find_difference(node, stored)?;
        let is_named = options.stages.contains(name);
        let was_stage = !stored.feeders.is_empty();
        if let Some(Difference { what, .. }) = difference
            && !((is_named || options.changed) && was_stage && matches!(node, Node::Stage(_)))
        {
            let remedy = if was_stage {
                "rebuild it, or declare it as it was"
            } else {
                "declare it as it was, or push its rows to a source of another name, with other idempotency keys, and \
                 remove this one"
            };
            return Err(changed_error(format!(
                "the definition of {name:?} has changed: {what}; {remedy}"
            )));
        }
        let Node::Stage(stage) = node else { continue };
        let has_other_source_keys = match (stage.feeders.first(), stored.feeders.first()) {
            (Some(feeder), Some(stored_feeder)) => {
                let declared = graph.node(feeder).map(Node::columns);
                let stored = manifest.node(stored_feeder);
                let stored = stored.map(KeyAndValue::from_entry).transpose()?;
                key_of(declared.as_ref()) != key_of(stored.as_ref())
            }
            _ => false,
        };
        let is_replaced = |name: &String| rebuilds.get(name) == Some(&Rebuild::Replace);
        if has_other_source_keys || difference.is_some_and(|d| d.is_other_table) {
            rebuilds.insert(name.to_owned(), Rebuild::Replace);
        } else if is_named || difference.is_some() || stage.feeders.iter().any(is_replaced) {
            rebuilds.insert(name.to_owned(), Rebuild::Compare);
        }
    }
    Ok(rebuilds)
}

/// Refuses a graph that is another than the stored one; it may have new sources and stages. Errors are those of an update.
pub fn check_definitions(graph: &Graph, manifest: &PipelineManifest) -> Result<()> {
    find_rebuilds(graph, manifest, &RebuildOptions::default()).map(drop)
}

/// Refuses what was removed and comes back as it was: that is a process with an older graph.
fn check_removed(node: &Node, manifest: &PipelineManifest, options: &RebuildOptions) -> Result<()> {
    let name = node.name();
    let Some(removed) = manifest.removed.get(name) else {
        return Ok(());
    };
    if matches!(node, Node::Stage(_))
        && (options.stages.contains(name) || version_of(&node.entry()?) > Some(*removed))
    {
        return Ok(());
    }
    let remedy = match node {
        Node::Stage(_) => "run the newer code, raise the version of its function, or rebuild it",
        Node::Source(_) => "run the newer code, or give it another name",
    };
    Err(changed_error(format!(
        "{name:?} was removed from the pipeline, and this process declares it; {remedy}"
    )))
}

/// The version of the function of a stage.
pub(super) fn version_of(entry: &NodeEntry) -> Option<u64> {
    entry.definition.get("version").and_then(Value::as_u64)
}

/// The type and order of keys.
fn key_of(columns: Option<&KeyAndValue>) -> Option<(&DataType, bool)> {
    columns.map(|columns| (columns.key.data_type(), columns.descending))
}

fn find_difference(node: &Node, stored: &NodeEntry) -> Result<Option<Difference>> {
    let declared = node.entry()?;
    if let (Some(declared), Some(stored_version)) = (version_of(&declared), version_of(stored))
        && declared < stored_version
    {
        return Err(changed_error(format!(
            "stage {:?} is stored with version {stored_version} of its function, and this process declares version \
             {declared}; run the newer code",
            stored.name
        )));
    }
    let types = |columns: &KeyAndValue| {
        let fields = [&columns.key, &columns.value];
        let types = fields.map(|f| (f.data_type().clone(), f.is_nullable()));
        let source_key = columns.source_key.as_ref();
        let source_key = source_key.map(|field| field.data_type().clone());
        (types, columns.has_state, source_key)
    };
    let (mut stored_columns, columns) = (KeyAndValue::from_entry(stored)?, node.columns());
    if matches!(node, Node::Stage(_)) && is_widened(&stored_columns.value, &columns.value) {
        stored_columns.value = columns.value.clone();
    }
    let other_types = [&stored_columns, &columns].map(types);
    let has_other_source_key = other_types[0].2 != other_types[1].2;
    let candidates = [
        (
            "the order of the values of a key",
            has_other_source_key || direction(stored) != direction(&declared),
            stored.order_by != declared.order_by,
        ),
        (
            "the types of its key or value",
            true,
            other_types[0] != other_types[1],
        ),
        (
            "the order of its key",
            true,
            stored.descending != declared.descending,
        ),
        (
            "its feeders",
            false,
            stored.feeders != declared.feeders || stored.join != declared.join,
        ),
        (
            "its version or options",
            false,
            stored.definition != declared.definition,
        ),
    ];
    let differences = || candidates.iter().filter(|(.., differs)| *differs);
    // The first one is named; any of them may ask for new tables.
    let is_other_table = differences().any(|(_, is_other_table, _)| *is_other_table);
    Ok(differences().next().map(|&(what, ..)| Difference {
        what,
        is_other_table,
    }))
}

/// Whether the declared field takes all that the stored one has: they differ at most in what may be null, and the
/// columns of runs are nullable anyway.
pub(super) fn is_widened(stored: &Field, declared: &Field) -> bool {
    if stored.is_nullable() && !declared.is_nullable() {
        return false;
    }
    let (DataType::Struct(fields), DataType::Struct(others)) =
        (stored.data_type(), declared.data_type())
    else {
        return stored.data_type() == declared.data_type();
    };
    let is_alike = |(field, other): (&FieldRef, &FieldRef)| {
        field.name() == other.name()
            && field.metadata() == other.metadata()
            && is_widened(field, other)
    };
    fields.len() == others.len() && fields.iter().zip(others).all(is_alike)
}

/// Whether the values of a key are in an order, and the greatest is first.
fn direction(entry: &NodeEntry) -> Option<bool> {
    entry.order_by.as_ref().map(|order| order.descending)
}

fn changed_error(message: String) -> Error {
    Error::new(ErrorKind::DefinitionChanged, message)
}
