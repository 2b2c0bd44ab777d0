//! Graphs: the sources and stages that a process declares, checked against one another and against what is stored.
//!
//! A [`Graph`] has the names, types, functions and operators of a pipeline in the order of their declaration. A stage
//! comes after those that feed it, so there are no circles. Each call of the facade builds the graph; a manifest has
//! the same without functions ([`NodeEntry`]), and `rebuild` compares the two. Nothing here reads or writes. Errors are
//! `InvalidInput` and name the source or stage.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::{Field, FieldRef};
use serde_json::Value;

use super::format::{NodeEntry, ValueOrder};
use super::functions::{FunctionDigest, Preserve};
use super::keys::check_key_type;
use super::operators::{FeederColumns, Operator, PlannedOrder, StageFunction};
use super::tables::KeyAndValue;
use crate::error::{Error, Result};

/// The longest name of a source or stage, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A source, whose rows callers push.
#[derive(Debug, Clone)]
pub struct SourceNode {
    /// The name.
    pub name: String,
    /// The type of the key, and whether it may be null.
    pub key: Field,
    /// The type of the value, and whether it may be null.
    pub value: Field,
    /// Whether the greatest key comes first.
    pub descending: bool,
    /// Whether a key that is pushed with the rows that it has counts as unchanged.
    pub skip_unchanged: bool,
}

/// A stage.
#[derive(Debug, Clone)]
pub struct StageNode {
    /// The name.
    pub name: String,
    /// The names of its feeders, in the order of their values.
    pub feeders: Vec<String>,
    /// Whether it gets the values of each feeder apart.
    pub join: bool,
    /// The source key as it is stored, where that is not the key of the feeders alone.
    pub source_key: Option<FieldRef>,
    /// The order of the values of a key, if it has one.
    pub order_by: Option<Arc<PlannedOrder>>,
    /// Of each key the function needs no more than so many first rows, if its feeder has an order.
    pub first_rows: Option<u64>,
    /// The type of the target key, and whether it may be null.
    pub key: Field,
    /// The type of the value, and whether it may be null.
    pub value: Field,
    /// Whether the greatest target key comes first.
    pub descending: bool,
    /// Whether keys whose rows stay the same are left out of its update.
    pub skip_unchanged: bool,
    /// What else defines it, such as the version of its function.
    pub definition: BTreeMap<String, Value>,
    /// The function.
    pub function: StageFunction,
    /// A digest of the function, if it has one.
    pub function_digest: Option<FunctionDigest>,
    /// The hook that preserves values.
    pub preserve: Option<Arc<dyn Preserve>>,
}

impl StageNode {
    /// The stage with the values of a key in an order; `declared` are the nodes before it. Fails with
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if they cannot be, or have no key with more than one.
    pub fn with_order(self, order: &ValueOrder, declared: &[Node]) -> Result<Self> {
        let planned = || {
            if !matches!(self.function, StageFunction::Produce(_)) {
                let message = "aggregates and joins of rows have no order of their own";
                return Err(Error::invalid(message));
            }
            let first = self
                .feeders
                .first()
                .and_then(|name| declared.iter().find(|node| node.name() == name))
                .ok_or_else(|| Error::invalid("its feeder is not declared before it"))?;
            PlannedOrder::plan(order, &self.key, &self.value, &first.columns().key)
        };
        let planned = planned().map_err(|e| e.context(format!("stage {:?}", self.name)))?;
        Ok(Self {
            source_key: Some(Arc::new(planned.source_key())),
            order_by: Some(Arc::new(planned)),
            ..self
        })
    }

    /// A stage that an operator computes from the rows of feeders, which are among the nodes that are declared before it.
    /// Where the key is theirs, so is its order, whatever `descending` is. Fails with
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the operator cannot be computed from them.
    pub fn of_operator(
        name: &str,
        feeders: Vec<String>,
        operator: &Operator,
        descending: bool,
        declared: &[Node],
    ) -> Result<Self> {
        let of_stage = |e: Error| e.context(format!("stage {name:?}"));
        let of_feeders = feeders
            .iter()
            .map(|feeder| {
                let node = declared.iter().find(|node| node.name() == feeder);
                node.and_then(|node| node.as_feeder(declared))
                    .ok_or_else(|| Error::invalid(format!("{feeder:?} is not declared before it")))
            })
            .collect::<Result<Vec<_>>>()
            .map_err(of_stage)?;
        let planned = operator.plan(name, &of_feeders).map_err(of_stage)?;
        Ok(Self {
            name: name.to_owned(),
            feeders,
            join: matches!(planned.function, StageFunction::Join(_)),
            source_key: planned.source_key.map(Arc::new),
            order_by: None,
            first_rows: planned.first_rows,
            key: planned.key,
            value: planned.value,
            descending: if planned.has_key_of_feeders {
                of_feeders.first().is_some_and(|feeder| feeder.descending)
            } else {
                descending
            },
            skip_unchanged: false,
            definition: BTreeMap::from([("operator".to_owned(), planned.definition)]),
            function: planned.function,
            function_digest: None,
            preserve: None,
        })
    }
}

/// A source or a stage.
#[derive(Debug, Clone)]
pub enum Node {
    /// A source.
    Source(SourceNode),
    /// A stage.
    Stage(StageNode),
}

impl Node {
    /// The name.
    pub fn name(&self) -> &str {
        match self {
            Self::Source(source) => &source.name,
            Self::Stage(stage) => &stage.name,
        }
    }

    /// What operators see of it; None if one of its own feeders is not among those that are declared.
    fn as_feeder(&self, declared: &[Self]) -> Option<FeederColumns> {
        let columns = self.columns();
        let identity = match self {
            Self::Source(_) => columns.key.clone(),
            Self::Stage(stage) => {
                let first = stage.feeders.first()?;
                let first = declared.iter().find(|node| node.name() == first)?;
                match &stage.source_key {
                    Some(own) => own.as_ref().clone(),
                    None => first.columns().key,
                }
            }
        };
        Some(FeederColumns {
            name: self.name().to_owned(),
            key: columns.key,
            value: columns.value,
            descending: columns.descending,
            identity,
            // A hook may have made others of the values that were ordered.
            order_by: columns.order_by.filter(|_| !self.has_hook()),
        })
    }

    fn has_hook(&self) -> bool {
        // A task does not run it, so has none.
        let is_declared = |stage: &StageNode| stage.definition.contains_key("preserve");
        matches!(self, Self::Stage(stage) if stage.preserve.is_some() || is_declared(stage))
    }

    fn order_by(&self) -> Option<&ValueOrder> {
        match self {
            Self::Source(_) => None,
            Self::Stage(stage) => stage.order_by.as_ref().map(|order| order.declared()),
        }
    }

    pub(super) fn columns(&self) -> KeyAndValue {
        let (key, value, descending) = match self {
            Self::Source(n) => (&n.key, &n.value, n.descending),
            Self::Stage(n) => (&n.key, &n.value, n.descending),
        };
        let has_state =
            matches!(self, Self::Stage(n) if matches!(n.function, StageFunction::Fold(_)));
        KeyAndValue {
            key: key.clone(),
            value: value.clone(),
            descending,
            has_state,
            source_key: match self {
                Self::Source(_) => None,
                Self::Stage(n) => n.source_key.as_deref().cloned(),
            },
            order_by: self.order_by().cloned(),
        }
    }

    /// Its entry in a manifest, without runs.
    pub(super) fn entry(&self) -> Result<NodeEntry> {
        let columns = self.columns();
        let types = [&columns.key, &columns.value].map(|field| field.data_type().to_string());
        let arrow_schema = columns.encode()?;
        let mut entry = NodeEntry {
            name: self.name().to_owned(),
            feeders: Vec::new(),
            join: false,
            types,
            arrow_schema,
            descending: columns.descending,
            skip_unchanged: false,
            order_by: columns.order_by,
            definition: BTreeMap::new(),
            function_digests: BTreeMap::new(),
            content: Vec::new(),
            mappings: Vec::new(),
            update: None,
            state: None,
            consumed: None,
        };
        match self {
            Self::Source(source) => entry.skip_unchanged = source.skip_unchanged,
            Self::Stage(stage) => {
                entry.feeders.clone_from(&stage.feeders);
                entry.join = stage.join;
                entry.skip_unchanged = stage.skip_unchanged;
                entry.definition.clone_from(&stage.definition);
            }
        }
        Ok(entry)
    }
}

/// Sources and stages; a stage comes after those that feed it.
#[derive(Debug, Clone)]
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Refuses names that are empty, too long or there twice, feeders that are not before the stage or there twice,
    /// feeders of one stage that differ in the type or order of their keys, or without a join in the type of their
    /// values, and types that keys cannot have ([`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)).
    pub fn new(nodes: Vec<Node>) -> Result<Self> {
        let mut known: HashMap<String, KeyAndValue> = HashMap::new();
        for node in &nodes {
            let name = node.name();
            check_name(name)?;
            let columns = node.columns();
            check_key_type(columns.key.data_type(), name)?;
            check_is_stored(node, &columns)?;
            if let Node::Stage(stage) = node {
                check_feeders(stage, &known)?;
            }
            if known.insert(name.to_owned(), columns).is_some() {
                return Err(Error::invalid(format!(
                    "there are two stages or sources named {name:?}"
                )));
            }
        }
        Ok(Self { nodes })
    }

    /// The sources and stages, in their order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The fields `key` and `value` of the last source or stage, and whether its greatest key comes first; none without one.
    pub fn last_fields(&self) -> (Vec<Field>, bool) {
        let columns = self.nodes.last().map(Node::columns);
        columns.map_or((Vec::new(), false), |columns| {
            let fields = [(columns.key, "key"), (columns.value, "value")]
                .map(|(field, name)| field.with_name(name));
            (fields.into(), columns.descending)
        })
    }

    pub(super) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name() == name)
    }
}

/// Refuses types that a manifest would give back as others, such as dictionaries of dictionaries.
fn check_is_stored(node: &Node, columns: &KeyAndValue) -> Result<()> {
    let stored = KeyAndValue::from_entry(&node.entry()?)?;
    for (declared, stored) in [(&columns.key, &stored.key), (&columns.value, &stored.value)] {
        if declared.data_type() != stored.data_type() {
            let (name, data_type) = (node.name(), declared.data_type());
            return Err(Error::invalid(format!(
                "{name:?} cannot have the type {data_type}, which would be stored as {}; cast it",
                stored.data_type()
            )));
        }
    }
    Ok(())
}

/// Refuses what cannot be the name of a source or stage.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        return Err(Error::invalid(format!(
            "the name of a source or stage must have 1 to {MAX_NAME_BYTES} bytes and no control characters, not \
             {name:?}"
        )));
    }
    Ok(())
}

fn check_feeders(stage: &StageNode, known: &HashMap<String, KeyAndValue>) -> Result<()> {
    let name = &stage.name;
    let mut first: Option<&KeyAndValue> = None;
    for (at, feeder) in stage.feeders.iter().enumerate() {
        let Some(columns) = known.get(feeder) else {
            return Err(Error::invalid(format!(
                "stage {name:?} is fed by {feeder:?}, which is not declared before it"
            )));
        };
        if stage.feeders[..at].contains(feeder) {
            return Err(Error::invalid(format!(
                "stage {name:?} is fed by {feeder:?} twice"
            )));
        }
        let first = first.get_or_insert(columns);
        let differs = |what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
            let other = &stage.feeders[0];
            Err(Error::invalid(format!(
                "the feeders {other:?} and {feeder:?} of stage {name:?} have different {what}: {a} and {b}"
            )))
        };
        if first.key.data_type() != columns.key.data_type() {
            return differs(
                "types of keys",
                first.key.data_type(),
                columns.key.data_type(),
            );
        }
        if first.descending != columns.descending {
            let order = |c: &KeyAndValue| {
                if c.descending {
                    "descending"
                } else {
                    "ascending"
                }
            };
            return differs("orders of keys", &order(first), &order(columns));
        }
        if !stage.join && first.value.data_type() != columns.value.data_type() {
            return differs(
                "types of values",
                first.value.data_type(),
                columns.value.data_type(),
            );
        }
    }
    match first {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!("stage {name:?} needs a feeder"))),
    }
}
