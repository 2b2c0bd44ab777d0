//! Blocks as YAML, in the spelling and order of the specification.
//!
//! [`format_block`] writes the YAML of a block, [`parse`] reads it into a [`ParsedBlock`]. Text is written plain if
//! every YAML reader takes it for text, as a literal block if it has several lines, and in double quotes otherwise.
//!
//! Errors of [`parse`] are [`crate::ErrorKind::InvalidInput`]: text that is too long, is nested too deeply or is not
//! YAML, a `kind` other than `MetadataBlock`, and fields that are missing or have another type. The fields of the
//! event are checked when the block is encoded.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::layout::{EVENT, FieldType, TableLayout, UnionLayout};
use crate::error::{Error, Result};

/// The longest text that is parsed, in bytes.
const MAX_YAML_BYTES: usize = 64 << 20;
/// The most levels that are parsed: attributes are JSON of up to 128 levels, and lie within other levels of the
/// block.
const MAX_YAML_DEPTH: usize = 200;
/// Words that some YAML readers do not take for text.
const RESERVED_WORDS: [&str; 11] = [
    "null", "true", "false", "yes", "no", "on", "off", "y", "n", "~", "nan",
];

/// The fields of the manifest of a block.
#[derive(Debug)]
pub(super) struct ParsedBlock {
    pub version: i32,
    pub system_time: String,
    pub prev_block_hash: Option<String>,
    pub sequence_number: u64,
    pub event: Value,
}

/// A YAML value whose fields keep the order of declaration.
enum Node {
    Scalar(String),
    /// Text of several lines.
    Lines(String),
    Map(Vec<(String, Self)>),
    List(Vec<Self>),
}

/// Converts JSON that has no layout.
fn node_from_json(value: &Value) -> Node {
    match value {
        Value::String(text) => node_from_text(text),
        Value::Array(items) => Node::List(items.iter().map(node_from_json).collect()),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (format_scalar(key), node_from_json(value)));
            Node::Map(fields.collect())
        }
        other => Node::Scalar(other.to_string()),
    }
}

fn node_from_table(
    layout: &'static TableLayout,
    kind: Option<&str>,
    fields: &Map<String, Value>,
) -> Node {
    let kind_entry = kind.map(|kind| ("kind".to_owned(), Node::Scalar(format_scalar(kind))));
    let field_entries = layout.fields.iter().filter_map(|field| {
        let value = fields.get(field.name).filter(|value| !value.is_null())?;
        Some((
            field.name.to_owned(),
            node_from_field(&field.field_type, value),
        ))
    });
    Node::Map(kind_entry.into_iter().chain(field_entries).collect())
}

fn node_from_union(union: &'static UnionLayout, value: &Value) -> Node {
    let kind = value.get("kind").and_then(Value::as_str);
    let layout = kind.and_then(|kind| union.variant_by_name(kind));
    match (layout, value.as_object()) {
        (Some((_, layout)), Some(fields)) => node_from_table(layout, kind, fields),
        _ => node_from_json(value),
    }
}

fn node_from_field(field_type: &'static FieldType, value: &Value) -> Node {
    match (field_type, value) {
        (FieldType::Tables(_) | FieldType::Unions(_), Value::Array(items)) => Node::List(
            items
                .iter()
                .map(|item| node_from_field(field_type, item))
                .collect(),
        ),
        (FieldType::Table(layout) | FieldType::Tables(layout), Value::Object(fields)) => {
            node_from_table(layout, None, fields)
        }
        (FieldType::Union(union) | FieldType::Unions(union), value) => {
            node_from_union(union, value)
        }
        // A time is text to the specification's readers, however it looks.
        (FieldType::Time, Value::String(text)) => Node::Scalar(text.clone()),
        (_, value) => node_from_json(value),
    }
}

fn node_from_text(text: &str) -> Node {
    let can_be_literal = text.contains('\n')
        && !text.starts_with([' ', '\n', '\t'])
        && !text.ends_with("\n\n")
        && text.chars().all(|c| c == '\n' || is_printable(c))
        && text
            .lines()
            .all(|line| !line.ends_with(' ') && !line.ends_with('\t'));
    if can_be_literal {
        Node::Lines(text.to_owned())
    } else {
        Node::Scalar(format_scalar(text))
    }
}

fn is_printable(c: char) -> bool {
    let other = matches!(
        c,
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    );
    !c.is_control() && !other
}

/// Formats text on one line: plain, or in double quotes.
fn format_scalar(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if is_printable(c) => quoted.push(c),
            // Writing to a String cannot fail.
            c => drop(write!(quoted, "\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether every YAML reader takes the plain text for text.
fn is_plain(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || "_./".contains(c);
    let is_inner = |c: char| is_word(c) || " -+=:(),'@*%;!?<>|&$".contains(c);
    let is_special = RESERVED_WORDS.contains(&text.to_ascii_lowercase().as_str());
    // In all versions of YAML, numbers and times begin with a digit or a dot.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let has_end = text.ends_with([' ', ':']) || text.contains(": ");
    text.starts_with(is_word) && text.chars().all(is_inner) && !has_end && !is_special && !is_number
}

fn write_node(out: &mut String, node: &Node, indent: usize) {
    match node {
        Node::Scalar(text) => {
            out.push_str(text);
            out.push('\n');
        }
        Node::Lines(text) => {
            out.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
            for line in text.lines() {
                if !line.is_empty() {
                    out.extend(std::iter::repeat_n(' ', indent.max(2)));
                }
                out.push_str(line);
                out.push('\n');
            }
        }
        Node::Map(fields) if fields.is_empty() => out.push_str("{}\n"),
        Node::List(items) if items.is_empty() => out.push_str("[]\n"),
        Node::Map(fields) => write_map(out, fields, indent),
        Node::List(items) => write_list(out, items, indent),
    }
}

/// Longer keys are marked with `?`. The limit of YAML is 1024 characters with the quotes.
const IMPLICIT_KEY_CHARS: usize = 1_000;

/// Writes the fields of a map. The caller has indented the first one.
fn write_map(out: &mut String, fields: &[(String, Node)], indent: usize) {
    for (index, (key, value)) in fields.iter().enumerate() {
        if index > 0 {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        let is_long = key.chars().count() > IMPLICIT_KEY_CHARS;
        if is_long {
            out.push_str("? ");
            out.push_str(key);
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
        } else {
            out.push_str(key);
        }
        out.push(':');
        match value {
            Node::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent + 2));
                write_node(out, value, indent + 2);
            }
            // Lists are not indented below their key.
            Node::List(items) if !items.is_empty() => {
                let indent = if is_long { indent + 2 } else { indent };
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
                write_node(out, value, indent);
            }
            _ => {
                out.push(' ');
                write_node(out, value, indent + 2);
            }
        }
    }
}

fn write_list(out: &mut String, items: &[Node], indent: usize) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push_str("- ");
        write_node(out, item, indent + 2);
    }
}

/// Formats a block as YAML.
pub(super) fn format_block(
    version: i32,
    system_time: &str,
    prev_block_hash: Option<&str>,
    sequence_number: u64,
    event: &Value,
) -> String {
    let node = |name: &str, text: String| (name.to_owned(), Node::Scalar(text));
    let mut content = vec![node("systemTime", system_time.to_owned())];
    content.extend(prev_block_hash.map(|hash| node("prevBlockHash", hash.to_owned())));
    content.push(node("sequenceNumber", sequence_number.to_string()));
    content.push(("event".to_owned(), node_from_union(&EVENT, event)));
    let manifest = Node::Map(vec![
        node("kind", "MetadataBlock".to_owned()),
        node("version", version.to_string()),
        ("content".to_owned(), Node::Map(content)),
    ]);
    let mut out = String::new();
    write_node(&mut out, &manifest, 0);
    out
}

/// Parses the YAML of a block.
pub(super) fn parse(text: &str) -> Result<ParsedBlock> {
    if text.len() > MAX_YAML_BYTES {
        let message = format!(
            "the YAML has {} bytes; at most {MAX_YAML_BYTES} are allowed",
            text.len()
        );
        return Err(Error::invalid(message));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_YAML_DEPTH },
    };
    let manifest: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|e| Error::invalid(format!("the YAML cannot be parsed: {e}")))?;
    let kind = manifest.get("kind").and_then(Value::as_str);
    if kind != Some("MetadataBlock") {
        let actual_kind = kind.unwrap_or("missing");
        let message =
            format!("the YAML is not a block: expected kind MetadataBlock, found {actual_kind}");
        return Err(Error::invalid(message));
    }
    let missing = |name: &str| Error::invalid(format!("the YAML has no valid {name}"));
    let version = manifest
        .get("version")
        .and_then(Value::as_i64)
        .and_then(|version| i32::try_from(version).ok());
    let content = manifest.get("content").ok_or_else(|| missing("content"))?;
    let optional_text = |name: &str| match content.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(missing(name)),
    };
    let sequence_number = content.get("sequenceNumber").and_then(Value::as_u64);
    Ok(ParsedBlock {
        version: version.ok_or_else(|| missing("version"))?,
        system_time: optional_text("systemTime")?.ok_or_else(|| missing("systemTime"))?,
        prev_block_hash: optional_text("prevBlockHash")?,
        sequence_number: sequence_number.ok_or_else(|| missing("sequenceNumber"))?,
        event: content
            .get("event")
            .cloned()
            .ok_or_else(|| missing("event"))?,
    })
}
