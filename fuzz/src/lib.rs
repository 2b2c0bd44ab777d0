//! The engine's block codec and the rules of the chain, by their files: the rest of the engine is not built.

#![allow(
    dead_code,
    unused_imports,
    reason = "parts of the engine without those who use them"
)]

#[path = "../../src/error.rs"]
pub mod error;
#[path = "../../src/hash/mod.rs"]
mod hash;

mod parquet {
    pub(crate) fn panic_text(_panic: &(dyn std::any::Any + Send)) -> &str {
        "it panicked"
    }
}

#[path = "../../src"]
pub mod odf {
    #[path = "odf/block.rs"]
    pub mod block;
    #[path = "odf/decode.rs"]
    mod decode;
    #[path = "odf/encode.rs"]
    mod encode;
    #[path = "odf/evolution.rs"]
    mod evolution;
    #[path = "odf/fields.rs"]
    mod fields;
    #[path = "odf/layout.rs"]
    mod layout;
    #[path = "odf/multihash.rs"]
    pub mod multihash;
    #[path = "odf/rules.rs"]
    pub mod rules;
    #[path = "odf/schema.rs"]
    pub mod schema;
    #[path = "odf/time.rs"]
    mod time;
    #[path = "odf/transforms.rs"]
    mod transforms;
    #[path = "odf/vocabulary.rs"]
    mod vocabulary;
    #[path = "odf/yaml.rs"]
    mod yaml;
}

use error::{Error, ErrorKind, Result};

use odf::block::Block;
use odf::rules::State;

/// What must hold of a block, wherever it comes from.
///
/// # Panics
/// Where it does not.
pub fn check(block: &Block) {
    let yaml = block.to_yaml();
    if block.is_whole()
        && let Ok(encoded) = block.encode()
    {
        let again = Block::from_bytes(encoded.into()).expect("what is encoded is read");
        assert_eq!(again.event(), block.event());
        match Block::from_yaml(&yaml) {
            Ok(printed) => assert_eq!(printed.event(), block.event(), "{yaml}"),
            // YAML nests less deeply than blocks do.
            Err(e) => assert!(yaml.contains("            "), "{yaml}: {e}"),
        }
    }
    let mut state = State::default();
    let _ = state.check_new(block);
    state.apply(block);
    if block.kind() == "SetDataSchema" && block.event().get("schema").is_some() {
        let _ = odf::schema::arrow_of(block.event());
    }
}
