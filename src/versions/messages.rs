//! What the processes of one operation send one another: JSON, compressed with zstd.
//!
//! A task gets its part of the work as a message, and answers with another, such as the list of the files that it wrote,
//! for the process that commits them. Nothing stores them, and they have no format version.

use std::io::Read;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

const MAX_MESSAGE_BYTES: u64 = 256 << 20;
const ZSTD_LEVEL: i32 = 3;

/// Packs a message: a list of staged files, or the change of a task.
pub fn pack_message<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let fail =
        |e: std::io::Error| Error::other("the message of a task cannot be packed").with_source(e);
    let json = serde_json::to_vec(message).map_err(|e| fail(e.into()))?;
    if json.len() as u64 > MAX_MESSAGE_BYTES {
        let message = "one task has more files than one message can name; make the files larger or the tasks smaller";
        return Err(Error::invalid(message));
    }
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(fail)
}

/// Unpacks a message. [`crate::ErrorKind::InvalidInput`] for bytes that are none.
pub fn unpack_message<T: DeserializeOwned>(message: &[u8]) -> Result<T> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Error::invalid(format!(
            "these bytes are not the message of a task: {reason}"
        ))
    };
    let mut json = Vec::new();
    let decoder = zstd::Decoder::new(message).map_err(|e| invalid(&e))?;
    let mut decoder = decoder.take(MAX_MESSAGE_BYTES);
    decoder.read_to_end(&mut json).map_err(|e| invalid(&e))?;
    serde_json::from_slice(&json).map_err(|e| invalid(&e))
}

/// As [`unpack_message`], for the messages of all tasks.
pub fn unpack_messages<T: DeserializeOwned>(messages: &[Vec<u8>]) -> Result<Vec<T>> {
    messages
        .iter()
        .map(|message| unpack_message(message))
        .collect()
}
