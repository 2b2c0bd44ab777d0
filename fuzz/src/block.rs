//! Any bytes are a block or an error.

#![no_main]

use pds_fuzz::check;
use pds_fuzz::odf::block::Block;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(block) = Block::from_bytes(bytes.to_vec().into()) {
        check(&block);
    }
});
