//! The id and the time of a commit, as they are in pointers and manifests.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// The id of a commit: 128 random bits, as 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct CommitId(String);

impl TryFrom<String> for CommitId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl CommitId {
    /// Formats 128 random bits.
    pub fn new(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// Parses 32 lowercase hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        let is_hex_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() == 32 && text.bytes().all(is_hex_digit) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!(
            "commit_id must be 32 hexadecimal digits in lower case, not {text:?}"
        )))
    }

    /// The 128 bits.
    pub(super) fn to_bits(&self) -> u128 {
        u128::from_str_radix(&self.0, 16).unwrap_or_default()
    }

    /// The 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A time in UTC, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimestampMicros(i64);

impl TimestampMicros {
    /// Truncates a time to microseconds.
    pub fn new(time: DateTime<Utc>) -> Self {
        Self(time.timestamp_micros())
    }

    pub(super) fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// The time one millisecond later.
    #[must_use]
    pub fn next_millisecond(self) -> Self {
        Self(self.0.saturating_add(1000))
    }
}

impl Serialize for TimestampMicros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = DateTime::<Utc>::from_timestamp_micros(self.0).unwrap_or_default();
        serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl<'de> Deserialize<'de> for TimestampMicros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        DateTime::parse_from_rfc3339(&text)
            .map(|time| Self(time.timestamp_micros()))
            .map_err(serde::de::Error::custom)
    }
}
