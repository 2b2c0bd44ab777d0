//! The URLs of stores: scheme, container and prefix.

use url::Url;

use super::path;
use std::string::FromUtf8Error;

use crate::error::{Error, Result};

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Memory,
    File,
    S3,
    Azure,
    Gcs,
}

pub(super) fn split_url(url: &str) -> Result<(Scheme, String, String)> {
    // The URL may hold secrets, so errors name only the scheme.
    let (scheme_name, rest) = url.split_once("://").ok_or_else(|| {
        Error::invalid("a store's URL must begin with memory://, file://, s3://, az:// or gs://")
    })?;
    let (container, folder) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = folder.trim_end_matches('/').to_owned();
    let scheme = match scheme_name {
        "memory" => Scheme::Memory,
        "file" => {
            let parsed = Url::parse(url)
                .map_err(|e| Error::invalid(format!("malformed file:// URL: {e}")))?;
            if !rest.starts_with('/') || parsed.query().is_some() {
                return Err(Error::invalid(
                    "a file:// URL must have an absolute path and no query: file:///folder",
                ));
            }
            let decoded = percent_decode(rest).map_err(|e| {
                Error::invalid("the path of the file:// URL is not UTF-8").with_source(e)
            })?;
            return Ok((Scheme::File, decoded, String::new()));
        }
        "s3" | "s3a" => Scheme::S3,
        "az" => Scheme::Azure,
        "gs" => Scheme::Gcs,
        other => {
            let message =
                format!("unknown scheme {other}://; there are memory, file, s3, az and gs");
            return Err(Error::invalid(message));
        }
    };
    if scheme != Scheme::Memory && rest.contains('?') {
        return Err(Error::invalid(
            "a store's URL must not have a query; pass tokens and signatures as options, e.g. azure_storage_sas_token",
        ));
    }
    path::parse_folder(&prefix)?;
    if scheme != Scheme::Memory
        && (container.is_empty() || container.contains(['@', ':', '?', '#']))
    {
        return Err(Error::invalid(
            "missing or invalid bucket/container name in URL; pass credentials as options",
        ));
    }
    Ok((scheme, container.to_owned(), prefix))
}

/// Decodes `%XX` once; a `%` that begins no escape stands for itself.
pub(crate) fn percent_decode(text: &str) -> Result<String, FromUtf8Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail
            .get(..2)
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let escape = hex.filter(|_| first == b'%').and_then(|hex| {
            let digits = std::str::from_utf8(hex).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        bytes.push(escape.unwrap_or(first));
        rest = if escape.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes)
}
