//! No module uses one above it.

use std::path::Path;

/// From the floor up.
const LAYERS: [&str; 10] = [
    "error", "clock", "hash", "sort", "store", "parquet", "part", "dataset", "table", "odf",
];

#[test]
fn no_module_looks_up() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for (height, layer) in LAYERS.iter().enumerate() {
        for file in files(&src, layer) {
            let text = std::fs::read_to_string(&file).unwrap();
            let used = modules_of(&text);
            for above in &LAYERS[height + 1..] {
                if used.iter().any(|module| module == above) {
                    wrong.push(format!("{} uses {above}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    for (text, modules) in [
        ("use crate::table::Table;", vec!["table"]),
        (
            "use crate::{odf, store::{Store, path}, table as t};",
            vec!["odf", "store", "table"],
        ),
        (
            "use crate::{\n    error::{Error, Result},\n    dataset::*,\n};",
            vec!["error", "dataset"],
        ),
        ("use crate :: { self, odf };", vec!["self", "odf"]),
        (
            "fn f() { crate::odf::chain::g(crate::table::h) }",
            vec!["odf", "table"],
        ),
        (
            "pub(in crate::store) use crate::hash;",
            vec!["store", "hash"],
        ),
        ("use super::super::table;", vec![]),
        (
            "// As crate::table::Table does.\nuse crate::sort;",
            vec!["sort"],
        ),
    ] {
        assert_eq!(modules_of(text), modules, "{text}");
    }
}

/// The modules of the crate that a file names, however it is spelled; comments are passed over.
fn modules_of(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let tokens = tokens(&code);
    let mut modules = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token != "crate" || tokens.get(at + 1).is_none_or(|next| next != "::") {
            continue;
        }
        match tokens.get(at + 2).map(String::as_str) {
            Some("{") => modules.extend(first_names(&tokens[at + 3..])),
            Some(name) => modules.push(name.to_owned()),
            None => {}
        }
    }
    modules
}

/// The first name of each entry of a list in braces, which is open.
fn first_names(tokens: &[String]) -> Vec<String> {
    let (mut depth, mut begins, mut names) = (1, true, Vec::new());
    for token in tokens {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => {
                begins = true;
                continue;
            }
            name if depth == 1 && begins => names.push(name.to_owned()),
            _ => {}
        }
        begins = false;
        if depth == 0 {
            break;
        }
    }
    names
}

/// Names, `::`, and other characters one by one.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut is_open = false;
    for c in code.chars() {
        let is_name = c.is_alphanumeric() || c == '_';
        match tokens.last_mut() {
            Some(last) if is_name && is_open => last.push(c),
            Some(last) if c == ':' && last == ":" => last.push(c),
            _ if c.is_whitespace() => {}
            _ => tokens.push(c.to_string()),
        }
        is_open = is_name;
    }
    tokens
}

fn files(src: &Path, layer: &str) -> Vec<std::path::PathBuf> {
    let single = src.join(format!("{layer}.rs"));
    if single.exists() {
        return vec![single];
    }
    let mut found = Vec::new();
    let mut folders = vec![src.join(layer)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{layer} has no files");
    found
}
