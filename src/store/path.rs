//! The rules of paths in a store: relative, separated by `/`, and unable to leave the store's root.

use object_store::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// The longest key that object stores accept.
const MAX_KEY_BYTES: usize = 1024;
/// The longest file name that file systems accept.
const MAX_SEGMENT_BYTES: usize = 255;

/// Checks `path` and turns it into an object key, byte for byte.
///
/// [`ErrorKind::InvalidPath`] for an empty path, empty segments (so also a leading or trailing `/`), `.`, `..`,
/// backslashes, NUL and control characters, keys above 1024 and names above 255 bytes.
pub fn parse(path: &str) -> Result<Path> {
    if path.is_empty() {
        return Err(invalid_path(path, "is empty"));
    }
    parse_folder(path)
}

/// Returns the canonical spelling of a path: backslashes become slashes; empty segments and `.` are dropped.
/// `/a//b/`, `./a/b` and `a\\b` become `a/b`; `...` is an ordinary name.
///
/// [`ErrorKind::InvalidPath`] for a path that is empty after that, and for what [`parse`] refuses.
pub fn normalize(path: &str) -> Result<String> {
    let segments: Vec<&str> = path
        .split(['/', '\\'])
        .filter(|segment| !matches!(*segment, "" | "."))
        .collect();
    let normal = segments.join("/");
    if normal.is_empty() {
        return Err(invalid_path(path, "is empty"));
    }
    parse_folder(&normal)?;
    Ok(normal)
}

/// As [`parse`], but the empty path is the root.
pub fn parse_folder(path: &str) -> Result<Path> {
    if path.is_empty() {
        return Ok(Path::ROOT);
    }
    if path.len() > MAX_KEY_BYTES {
        return Err(invalid_path(path, "is longer than 1024 bytes"));
    }
    for segment in path.split('/') {
        let fault = match segment {
            "" => Some("has an empty segment"),
            "." | ".." => Some("has a '.' or '..' segment"),
            s if s.contains('\\') => Some("has a backslash"),
            s if s.chars().any(char::is_control) => Some("has a control character"),
            s if s.len() > MAX_SEGMENT_BYTES => Some("has a name longer than 255 bytes"),
            _ => None,
        };
        if let Some(fault) = fault {
            return Err(invalid_path(path, fault));
        }
    }
    Path::parse(path).map_err(|e| invalid_path(path, "is not a valid object key").with_source(e))
}

fn invalid_path(path: &str, fault: &str) -> Error {
    Error::new(ErrorKind::InvalidPath, format!("path {path:?} {fault}")).with_path(path)
}

/// `folder/name`, where `folder` may be the root.
pub fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_could_escape_or_be_misread() {
        for bad in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\\b", "a\0b", "a\nb",
            "a\u{85}b",
        ] {
            assert_eq!(
                parse(bad).unwrap_err().kind(),
                ErrorKind::InvalidPath,
                "{bad:?}"
            );
        }
        assert!(parse(&"x".repeat(256)).is_err());
        assert!(parse(&"ab/".repeat(400)).is_err());
    }

    #[test]
    fn spellings_of_one_path() {
        for same in [
            "a/b",
            "/a/b",
            "a//b",
            "a/b/",
            "./a/b",
            "a/./b",
            "a\\b",
            "\\a/\\b\\",
            "//a/.//b/.",
        ] {
            assert_eq!(normalize(same).unwrap(), "a/b", "{same:?}");
        }
        assert_eq!(normalize(".../ a").unwrap(), ".../ a");
        for bad in [
            "", ".", "/", "\\", "././/", "..", "a/..", "..\\a", "a\0", "a\n/b", "\u{85}",
        ] {
            assert_eq!(
                normalize(bad).unwrap_err().kind(),
                ErrorKind::InvalidPath,
                "{bad:?}"
            );
        }
    }

    #[test]
    fn keeps_every_other_byte() {
        for good in [
            "a",
            "a b/c",
            "100%25/x%",
            "ünï/日本",
            "a#1",
            "k=v/..x",
            "~a+b?c*[d]",
        ] {
            assert_eq!(parse(good).unwrap().as_ref(), good);
        }
    }
}
