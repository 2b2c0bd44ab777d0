//! Timestamps: 16 bytes in a block, RFC 3339 as text.

use chrono::{DateTime, Datelike, NaiveDate, NaiveTime, SecondsFormat, Timelike, Utc};

use crate::error::{Error, Result};

/// A time in UTC, to the nanosecond.
pub type UtcDateTime = DateTime<Utc>;

/// Encodes a time: year `i32`, day of the year `u16`, two bytes of zero, second of the day `u32`, nanosecond `u32`.
pub(super) fn to_bytes(moment: &UtcDateTime) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..4].copy_from_slice(&moment.year().to_le_bytes());
    // A year has 366 days at most.
    let day = u16::try_from(moment.ordinal()).unwrap_or(0);
    bytes[4..6].copy_from_slice(&day.to_le_bytes());
    bytes[8..12].copy_from_slice(&moment.num_seconds_from_midnight().to_le_bytes());
    bytes[12..16].copy_from_slice(&moment.nanosecond().to_le_bytes());
    bytes
}

/// Decodes a time of the years 0 to 9999; others are [`crate::ErrorKind::BlockCorrupted`].
pub(super) fn from_bytes(bytes: &[u8; 16]) -> Result<UtcDateTime> {
    let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    let year = i32::from_le_bytes(word(0));
    let day = u16::from_le_bytes([bytes[4], bytes[5]]);
    let seconds = u32::from_le_bytes(word(8));
    let nanoseconds = u32::from_le_bytes(word(12));
    // RFC 3339 has no other years.
    let year_of_text = Some(year).filter(|year| (0..=9999).contains(year));
    let date = year_of_text.and_then(|year| NaiveDate::from_yo_opt(year, day.into()));
    let time = NaiveTime::from_num_seconds_from_midnight_opt(seconds, nanoseconds);
    let (Some(date), Some(time)) = (date, time) else {
        let message = format!(
            "invalid timestamp: year {year}, day {day}, second {seconds}, nanosecond {nanoseconds}"
        );
        return Err(Error::block_corrupted(message));
    };
    Ok(date.and_time(time).and_utc())
}

/// Formats a time as RFC 3339, with as many digits of the second as it needs.
pub fn to_text(moment: &UtcDateTime) -> String {
    moment.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// Parses RFC 3339. Other text is [`crate::ErrorKind::InvalidInput`].
pub fn from_text(text: &str) -> Result<UtcDateTime> {
    let time = DateTime::parse_from_rfc3339(text).map_err(|e| {
        let message = format!("{text:?} is not an RFC 3339 timestamp (e.g. 2020-01-31T12:00:00Z)");
        Error::invalid(message).with_source(e)
    })?;
    Ok(time.to_utc())
}
