//! Integers that are stored as packed differences.
//!
//! Source: "Delta Encoding" in the Parquet format's `Encodings.md`.

use super::Unsupported;
use super::hybrid::{BLOCK_VALUES, GROUP_VALUES, unpack};
use crate::parquet::deltas::DeltaHeader;
use crate::parquet::thrift::ThriftReader;

/// The most bits of a difference that are unpacked by groups.
const MAX_GROUP_WIDTH: usize = 32;
const MAX_WIDTH: usize = 64;

/// Passes on the `count` values of a page in blocks of at most [`BLOCK_VALUES`]. Of 32 bits the lower ones count.
pub(super) fn read_blocks(
    bytes: &[u8],
    count: usize,
    mut pass: impl FnMut(&[i64]) -> Result<(), Unsupported>,
) -> Result<(), Unsupported> {
    let mut reader = ThriftReader(bytes);
    let header = DeltaHeader::read(&mut reader, count as u64).or(Err(Unsupported))?;
    let values_each = usize::try_from(header.values_each).or(Err(Unsupported))?;
    if header.values != count as u64 || !values_each.is_multiple_of(GROUP_VALUES) {
        return Err(Unsupported);
    }
    let mut block = [0; BLOCK_VALUES];
    let mut last = header.first;
    block[0] = last;
    let mut filled = 1;
    let mut remaining = count - 1;
    while remaining > 0 {
        let step = reader.read_zigzag().or(Err(Unsupported))?;
        for width in reader.take(header.miniblocks).or(Err(Unsupported))? {
            let width = usize::from(*width);
            // Those after the last value may have any width.
            let mut values = values_each.min(remaining);
            if values == 0 {
                break;
            }
            let length = (values_each / 8).checked_mul(width).ok_or(Unsupported)?;
            let mut packed = reader.take(length as u64).or(Err(Unsupported))?;
            remaining -= values;
            while values > 0 {
                let group = values.min(GROUP_VALUES);
                if filled + GROUP_VALUES > BLOCK_VALUES {
                    pass(&block[..filled])?;
                    filled = 0;
                }
                let deltas = unpack_deltas(&mut packed, width)?;
                for (value, delta) in block[filled..].iter_mut().zip(&deltas[..group]) {
                    last = last.wrapping_add(step).wrapping_add(delta.cast_signed());
                    *value = last;
                }
                filled += group;
                values -= group;
            }
        }
    }
    pass(&block[..filled])
}

/// Takes a group of differences off `packed`.
fn unpack_deltas(packed: &mut &[u8], width: usize) -> Result<[u64; GROUP_VALUES], Unsupported> {
    if width <= MAX_GROUP_WIDTH {
        let mut group = [[0; GROUP_VALUES]];
        unpack(
            packed,
            u32::try_from(width).or(Err(Unsupported))?,
            &mut group,
        );
        return Ok(group[0].map(u64::from));
    }
    if width > MAX_WIDTH {
        return Err(Unsupported);
    }
    let bytes = packed.split_off(..GROUP_VALUES / 8 * width);
    let bytes = bytes.ok_or(Unsupported)?;
    let mask = u64::MAX >> (MAX_WIDTH - width);
    Ok(std::array::from_fn(|at| {
        let bit = at * width;
        let source = &bytes[bit / 8..];
        let mut word = [0; 16];
        let length = source.len().min(word.len());
        word[..length].copy_from_slice(&source[..length]);
        let shifted = u128::from_le_bytes(word) >> (bit % 8);
        #[allow(clippy::cast_possible_truncation, reason = "the mask has 64 bits")]
        let value = shifted as u64;
        value & mask
    }))
}
