//! The rules of transforms and their inputs. The messages are those of the Open Data Fabric's own implementation.

use serde_json::Value;

use super::fields::{get, get_list, get_text, invalid_event};
use super::multihash::DatasetId;
use crate::error::Result;

pub(super) fn check_inputs(event: &Value) -> Result<()> {
    let inputs = get_list(event, "inputs");
    if inputs.is_empty() {
        return Err(invalid_event("Transform must have at least one input"));
    }
    let mut input_ids = Vec::new();
    for input in &inputs {
        let id = get_text(input, "datasetRef").and_then(|r| r.parse::<DatasetId>().ok());
        if id.is_none() || get(input, "alias").is_none() {
            let message = "Transform inputs must be resolved to dataset IDs and specify aliases";
            return Err(invalid_event(message));
        }
        if input_ids.contains(&id) {
            let message = format!(
                "Transform contains duplicate inputs: {}",
                id.map(|id| id.to_string()).unwrap_or_default()
            );
            return Err(invalid_event(message));
        }
        input_ids.push(id);
    }
    Ok(())
}

pub(super) fn check_queries(transform: Option<&Value>) -> Result<()> {
    let Some(transform) = transform else {
        return Ok(());
    };
    if get(transform, "query").is_some() {
        return Err(invalid_event("Transform queries must be normalized"));
    }
    let queries = get_list(transform, "queries");
    let Some((last, others)) = queries.split_last() else {
        return Err(invalid_event("Transform must have at least one query"));
    };
    if get(last, "alias").is_some() {
        let message =
            "Last query in a transform must have no alias and will be treated as an output";
        return Err(invalid_event(message));
    }
    if others.iter().any(|query| get(query, "alias").is_none()) {
        let message = "In a transform all queries except the last one must have aliases";
        return Err(invalid_event(message));
    }
    Ok(())
}

pub(super) fn check_query_input(before: &Value, now: &Value) -> Result<()> {
    let (block, offset) = (get(now, "newBlockHash"), get(now, "newOffset"));
    let (from_block, from_offset) = (get(now, "prevBlockHash"), get(now, "prevOffset"));
    if block.is_some() && block == from_block {
        return Err(invalid_event("Invalid input block interval"));
    }
    if offset.is_some() && offset == from_offset {
        return Err(invalid_event("Invalid input offset interval"));
    }
    let last = |new: &str, prev: &str| get(before, new).or_else(|| get(before, prev)).cloned();
    if from_block != last("newBlockHash", "prevBlockHash").as_ref() {
        let message = "Input prevBlockHash does not correspond to the last block included in the \
                       previous query";
        return Err(invalid_event(message));
    }
    if from_offset != last("newOffset", "prevOffset").as_ref() {
        let message = "Input prevOffset does not correspond to the last offset included in the \
                       previous query";
        return Err(invalid_event(message));
    }
    if offset.is_some() && block.is_none() {
        let message =
            "Input specifies a non-empty offset interval, but its block interval is empty";
        return Err(invalid_event(message));
    }
    Ok(())
}

/// Returns a dataset's identity in its canonical spelling, and any other reference unchanged.
pub(super) fn canonicalize_reference(reference: &str) -> String {
    let id = reference.parse::<DatasetId>().map(|id| id.to_string());
    id.unwrap_or_else(|_| reference.to_owned())
}
