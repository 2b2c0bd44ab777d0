//! No module uses one above or beside it, and no modules use one another in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From the floor up.
const LAYERS: [&str; 12] = [
    "error",
    "clock",
    "sync",
    "store",
    "parquet",
    "files",
    "versions",
    "dataset",
    "table",
    "producers",
    "odf",
    "attach",
];
/// Those that stand beside one another: what two of them share is in a layer below.
const SIBLINGS: [&str; 4] = ["dataset", "table", "producers", "odf"];

#[test]
fn no_module_uses_a_higher_layer_or_a_sibling() {
    let modules = Modules::load();
    let mut violations = Vec::new();
    for (module, used) in modules.uses() {
        let layer = top(&module);
        let height = LAYERS.iter().position(|name| *name == layer);
        let is_above = |other: &&String| {
            let is_sibling = |name: &str| name != layer && SIBLINGS.contains(&name);
            LAYERS.iter().position(|name| *name == top(other)) > height
                || SIBLINGS.contains(&layer) && is_sibling(top(other))
        };
        // The test support and the crate's root stand beside the layers.
        if height.is_some() {
            violations.extend(
                used.iter()
                    .filter(is_above)
                    .map(|o| format!("{module} uses {o}")),
            );
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn no_modules_use_one_another_in_a_circle() {
    let circles = circles(&Modules::load().uses());
    assert!(circles.is_empty(), "{circles:#?}");
}

/// As `CONTRIBUTING.md` asks, so that a name says which type it is wherever it is imported.
#[test]
fn types_that_leave_their_file_have_names_of_their_own() {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (module, code) in Modules::load().sources {
        for name in visible_types(&code) {
            modules.entry(name).or_default().push(module.clone());
        }
    }
    assert!(modules.len() > 400, "{}", modules.len());
    modules.retain(|_, modules| modules.len() > 1);
    assert!(modules.is_empty(), "{modules:#?}");
}

#[test]
fn visible_types_are_seen() {
    let code = "pub struct A;\nstruct B;\n    pub(super) enum C<T> {}\npub(in crate::x) trait D: E {}\npub fn f() {}\n";
    assert_eq!(visible_types(code), ["A", "C", "D"]);
}

#[test]
fn every_layer_is_there() {
    let modules = Modules::load();
    for layer in LAYERS {
        assert!(modules.sources.contains_key(layer), "{layer}");
    }
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    for (text, expected) in [
        ("use crate::table::Table;", vec!["table::Table"]),
        (
            "use crate::{odf, store::{Store, path}, table as t};",
            vec!["odf", "store::Store", "store::path", "table"],
        ),
        (
            "use crate::{\n    error::{Error, Result},\n    dataset::*,\n};",
            vec!["error::Error", "error::Result", "dataset::*"],
        ),
        ("use crate :: { self, odf };", vec!["", "odf"]),
        (
            "fn f() { crate::odf::chain::g(crate::table::h::<u8>) }",
            vec!["odf::chain::g", "table::h"],
        ),
        (
            "pub(in crate::store) use crate::sync;",
            vec!["store", "sync"],
        ),
        ("use super::super::table;", vec!["table"]),
        (
            "use super::{chain::{self, Chain}, head};",
            vec!["a::chain", "a::chain::Chain", "a::head"],
        ),
        ("use self::c::D;", vec!["a::b::c::D"]),
        (
            "// As crate::table::Table does.\nuse crate::sort;",
            vec!["sort"],
        ),
        ("let text = \"crate::odf\";", vec![]),
    ] {
        assert_eq!(paths_of("a::b", text), expected, "{text}");
    }
}

#[test]
fn circles_are_found() {
    let uses = |edges: &[(&str, &[&str])]| {
        let entries = edges.iter().map(|(from, to)| {
            let to = to.iter().map(|name| (*name).to_owned()).collect();
            ((*from).to_owned(), to)
        });
        entries.collect::<BTreeMap<String, BTreeSet<String>>>()
    };
    let all = circles(&uses(&[
        ("a", &["b"]),
        ("b", &["c"]),
        ("c", &["a", "d"]),
        ("d", &["e"]),
        ("e", &["d"]),
        ("f", &["a"]),
    ]));
    assert_eq!(all, ["a b c", "d e"]);
    assert!(circles(&uses(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
}

/// The crate's modules by path, such as `table::commit`, with their code.
struct Modules {
    sources: BTreeMap<String, String>,
    /// Modules of `mod.rs`: what they name of their own children is no use.
    parents: BTreeSet<String>,
}

impl Modules {
    fn load() -> Self {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut sources, mut parents) = (BTreeMap::new(), BTreeSet::new());
        for file in rust_files(&src) {
            let relative = file.strip_prefix(&src).unwrap().with_extension("");
            let mut names: Vec<_> = relative.iter().map(|n| n.to_str().unwrap()).collect();
            if names == ["lib"] {
                continue;
            }
            let is_parent = names.last() == Some(&"mod");
            if is_parent {
                names.pop();
            }
            let module = names.join("::");
            if is_parent {
                parents.insert(module.clone());
            }
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
            sources.insert(module, code.to_owned());
        }
        Self { sources, parents }
    }

    /// The modules that each module uses, re-exports followed to where the name is defined.
    fn uses(&self) -> BTreeMap<String, BTreeSet<String>> {
        let exports = self.exports();
        let mut uses = BTreeMap::new();
        for (module, code) in &self.sources {
            let mut targets = BTreeSet::new();
            for path in paths_of(module, code) {
                let Some((mut target, mut name)) = self.split(&path) else {
                    continue;
                };
                while let Some((next, next_name)) = exports.get(&(target.clone(), name.clone())) {
                    (target, name) = (next.clone(), next_name.clone());
                }
                let is_child = target.starts_with(&format!("{module}::"));
                if target != *module && !(is_child && self.parents.contains(module)) {
                    targets.insert(target);
                }
            }
            uses.insert(module.clone(), targets);
        }
        uses
    }

    /// What `mod.rs` hands out of its children: module and name to module and name.
    fn exports(&self) -> BTreeMap<(String, String), (String, String)> {
        let mut exports = BTreeMap::new();
        for module in &self.parents {
            for statement in self.sources[module].split(';') {
                let Some((_, tree)) = statement.split_once(" use ") else {
                    continue;
                };
                let path = tree.trim_start();
                let is_absolute = ["crate", "self", "super"]
                    .iter()
                    .any(|p| path.starts_with(p));
                let tree = if is_absolute {
                    path.to_owned()
                } else {
                    format!("self::{path}")
                };
                for path in paths_of(module, &tree) {
                    if let Some((target, name)) = self.split(&path)
                        && target != *module
                        && !name.is_empty()
                    {
                        exports.insert((module.clone(), name.clone()), (target, name));
                    }
                }
            }
        }
        exports
    }

    /// A path as the deepest module in it and the name after that.
    fn split(&self, path: &str) -> Option<(String, String)> {
        let names: Vec<&str> = path.split("::").collect();
        let depths = (1..=names.len()).rev();
        depths
            .map(|depth| (names[..depth].join("::"), names.get(depth)))
            .find(|(module, _)| self.sources.contains_key(module))
            .map(|(module, name)| (module, name.copied().unwrap_or_default().to_owned()))
    }
}

/// The names of structs, enums and traits that are not private.
fn visible_types(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in code.lines().map(str::trim_start) {
        let mut words = line.split_whitespace().peekable();
        if !words.next().is_some_and(|word| word.starts_with("pub")) {
            continue;
        }
        // The rest of `pub(in …)`.
        words.next_if(|word| word.ends_with(')'));
        if words
            .next_if(|word| matches!(*word, "struct" | "enum" | "trait"))
            .is_some()
            && let Some(name) = words.next()
        {
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
            names.push(name[..end.unwrap_or(name.len())].to_owned());
        }
    }
    names
}

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// The paths of the crate that the code of a module names, from the crate's root; comments and literals are passed over.
fn paths_of(module: &str, text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
        .replace("'\"'", "' '");
    let tokens = tokens(&code);
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_root = matches!(tokens[at].as_str(), "crate" | "self" | "super")
            && (at == 0 || tokens[at - 1] != "::")
            && tokens.get(at + 1).is_some_and(|next| next == "::");
        at = if is_root {
            read_tree(&tokens, at, &[], &mut paths)
        } else {
            at + 1
        };
    }
    paths.iter().map(|path| absolute(module, path)).collect()
}

/// Reads a path or a tree of `use` from `at`; returns where it ends.
fn read_tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        let is_name = token.chars().all(|c| c.is_alphanumeric() || c == '_') || token == "*";
        if token == "{" && !path.is_empty() {
            at += 1;
            while tokens.get(at).is_some_and(|token| token != "}") {
                at = if tokens[at] == "," {
                    at + 1
                } else {
                    read_tree(tokens, at, &path, paths)
                };
            }
            return at + 1;
        } else if !is_name {
            break;
        }
        path.push(token.clone());
        at += 1;
        match tokens.get(at).map(String::as_str) {
            Some("::") => at += 1,
            Some("as") => {
                at += 2;
                break;
            }
            _ => break,
        }
    }
    paths.push(path);
    at
}

/// A path from the crate's root.
fn absolute(module: &str, path: &[String]) -> String {
    let mut names: Vec<&str> = module.split("::").collect();
    for (position, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" => names.clear(),
            "super" => drop(names.pop()),
            "self" if position == 0 => {}
            // `{self, …}` names the module before it.
            "self" => break,
            name => names.push(name),
        }
    }
    names.join("::")
}

/// The groups of modules that use one another, directly or not, each with its modules in order.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reachable = |from: &String| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            for next in uses.get(module).into_iter().flatten() {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> = uses
        .keys()
        .map(|module| (module, reachable(module)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, reached) in &reach {
        if reached.contains(module) {
            let members = reached
                .iter()
                .filter(|other| reach.get(*other).is_some_and(|back| back.contains(module)));
            circles.insert(members.map(|m| m.as_str()).collect::<Vec<_>>().join(" "));
        }
    }
    circles.into_iter().collect()
}

/// Names, `::`, and other characters one by one; literals are left out.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let (mut is_open, mut is_literal, mut is_escaped) = (false, false, false);
    for c in code.chars() {
        if is_literal {
            is_literal = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        let is_name = c.is_alphanumeric() || c == '_';
        match tokens.last_mut() {
            _ if c == '"' => is_literal = true,
            Some(last) if is_name && is_open => last.push(c),
            Some(last) if c == ':' && last == ":" => last.push(c),
            _ if c.is_whitespace() => {}
            _ => tokens.push(c.to_string()),
        }
        is_open = is_name;
    }
    tokens
}

fn rust_files(src: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![src.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files
}
