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
            for above in &LAYERS[height + 1..] {
                let paths = [
                    format!("crate::{above}::"),
                    format!("crate::{above};"),
                    format!("crate::{above}::{{"),
                ];
                if paths.iter().any(|p| text.contains(p.as_str())) {
                    wrong.push(format!("{} uses {above}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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
