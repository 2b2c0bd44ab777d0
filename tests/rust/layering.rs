//! No module uses one above it.

use std::path::Path;

/// From the floor up.
const LAYERS: [&str; 10] = [
    "error", "clock", "hash", "sort", "store", "parquet", "part", "dataset", "table", "odf",
];

#[test]
fn no_module_uses_a_higher_layer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut violations = Vec::new();
    for (height, layer) in LAYERS.iter().enumerate() {
        for file in files(&src, layer) {
            let text = std::fs::read_to_string(&file).unwrap();
            let used = used_modules(&text);
            for higher_layer in &LAYERS[height + 1..] {
                if used.iter().any(|module| module == higher_layer) {
                    violations.push(format!("{} uses {higher_layer}", file.display()));
                }
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn module_names_are_found_in_every_spelling() {
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
        assert_eq!(used_modules(text), modules, "{text}");
    }
}

/// The modules of the crate that a file names, however it is spelled; comments are passed over.
fn used_modules(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let tokens = tokens(&code);
    let mut modules = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        if token != "crate" || tokens.get(index + 1).is_none_or(|next| next != "::") {
            continue;
        }
        match tokens.get(index + 2).map(String::as_str) {
            Some("{") => modules.extend(first_names(&tokens[index + 3..])),
            Some(name) => modules.push(name.to_owned()),
            None => {}
        }
    }
    modules
}

/// The first name of each entry of a list in braces, which is open.
fn first_names(tokens: &[String]) -> Vec<String> {
    let (mut depth, mut expects_name, mut names) = (1, true, Vec::new());
    for token in tokens {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => {
                expects_name = true;
                continue;
            }
            name if depth == 1 && expects_name => names.push(name.to_owned()),
            _ => {}
        }
        expects_name = false;
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
    let mut rust_files = Vec::new();
    let mut folders = vec![src.join(layer)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                rust_files.push(path);
            }
        }
    }
    assert!(!rust_files.is_empty(), "{layer} has no files");
    rust_files
}
