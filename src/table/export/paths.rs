//! Paths of data files in a log: those of URIs.

use std::fmt::Write as _;

/// What a path of a URI has as it is, beside letters and digits. Source: RFC 2396, section 3.3.
const UNESCAPED: &[u8] = b"-_.!~*'()@&=+$,/";

/// Whether a path is another text as a path of a URI.
pub(in crate::table) fn needs_encoding(path: &str) -> bool {
    !path
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || UNESCAPED.contains(&byte))
}

/// A path as a URI has it.
pub(in crate::table) fn encode_path(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || UNESCAPED.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
