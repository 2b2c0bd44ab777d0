//! Any text is a block or an error.

#![no_main]

use pds_fuzz::check;
use pds_fuzz::odf::block::Block;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(block) = Block::from_yaml(text) {
        check(&block);
    }
});
