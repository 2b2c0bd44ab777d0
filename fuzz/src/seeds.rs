//! Writes what the fuzzers begin with, the blocks of the test vectors: `seeds CORPUS`.

use std::path::Path;

use pds_fuzz::odf::block::Block;
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus = std::env::args().nth(1).ok_or("seeds CORPUS")?;
    let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/odf.json"))?;
    for vector in vectors["blocks"].as_array().ok_or("no blocks")? {
        let name = vector["name"].as_str().ok_or("a block has no name")?;
        let manifest = json!({
            "kind": "MetadataBlock",
            "version": vector["manifestVersion"],
            "content": vector["block"],
        });
        let block = Block::from_yaml(&manifest.to_string()).map_err(|e| e.to_string())?;
        for (kind, bytes) in [
            ("block", &block.bytes()[..]),
            ("yaml", block.to_yaml().as_bytes()),
        ] {
            let folder = Path::new(&corpus).join(kind);
            std::fs::create_dir_all(&folder)?;
            let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
