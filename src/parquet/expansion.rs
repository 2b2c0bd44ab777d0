//! How long the compressed bytes of a page become.
//!
//! Decoders allocate what a page claims, so the claim is compared with the most that the codec can make of the
//! compressed bytes ([`max_bytes`]). Those of GZIP, Brotli and LZ4 frames go on behind it, to the end of the bytes,
//! which may be a thousand times as long. So such bytes are read once before, without memory for what they become
//! ([`is_longer`]).

use std::io::{Read, copy, sink};

use brotli::Decompressor;
use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::Compression;

/// Bytes that a page may always have, because codecs have headers of their own.
const SLACK_BYTES: u64 = 1024;
/// The bytes that the decoder of Brotli reads at a time.
const BUFFER_BYTES: usize = 4096;

/// The most bytes that the compressed ones can become; None if the codec has no limit that helps. Snappy copies 64
/// bytes with three, LZ4 255 with one, DEFLATE 258 with two bits, and Zstandard repeats a byte 131,072 times with four.
pub(super) fn max_bytes(codec: Compression, compressed_bytes: u64) -> Option<u64> {
    let max_ratio = match codec {
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        Compression::GZIP(_) => 1032,
        Compression::ZSTD(_) => 32768,
        _ => return None,
    };
    Some(compressed_bytes.saturating_mul(max_ratio) + SLACK_BYTES)
}

/// Whether the decoder of a codec goes on behind what a page claims.
pub(super) fn is_unlimited(codec: Compression) -> bool {
    matches!(codec, Compression::GZIP(_) | Compression::BROTLI(_))
}

/// The bytes that the compressed ones of GZIP or Brotli become; None for other codecs.
pub(super) fn open(codec: Compression, compressed: &[u8]) -> Option<Box<dyn Read + '_>> {
    match codec {
        Compression::GZIP(_) => Some(Box::new(MultiGzDecoder::new(compressed))),
        Compression::BROTLI(_) => Some(Box::new(Decompressor::new(compressed, BUFFER_BYTES))),
        _ => None,
    }
}

/// Whether compressed bytes become more than `claimed` ones. Of damaged ones, whether those before the damage do.
pub(super) fn is_longer(codec: Compression, compressed: &[u8], claimed: u64) -> bool {
    let bytes: Box<dyn Read + '_> = match codec {
        // Some makers wrote frames, which arrow-rs reads, too.
        Compression::LZ4 => Box::new(FrameDecoder::new(compressed)),
        _ => match open(codec, compressed) {
            Some(bytes) => bytes,
            None => return false,
        },
    };
    has_more(bytes, claimed)
}

/// Whether there are more than `claimed` bytes before the end, or before what cannot be read.
fn has_more(bytes: impl Read, claimed: u64) -> bool {
    let mut behind = bytes.take(claimed.saturating_add(1));
    let _ended = copy(&mut behind, &mut sink());
    behind.limit() == 0
}
