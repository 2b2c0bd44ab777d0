//! The hybrid of run-length encoding and bit packing, in which levels and dictionary indices are stored.
//!
//! Source: "Run Length Encoding / Bit-Packing Hybrid" in the Parquet format's `Encodings.md`.

use super::Unsupported;

/// The number of values that are unpacked at a time.
const BLOCK_VALUES: usize = 32;
/// The most bits of an index or level.
const MAX_BIT_WIDTH: u32 = 32;

/// A run of values of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HybridRun<'a> {
    /// One value, `count` times.
    Rle { value: u32, count: usize },
    /// Values of the stream's bit width, the lowest bits first.
    BitPacked { bytes: &'a [u8], count: usize },
}

/// The runs of a stream until `remaining` values are read.
#[derive(Debug)]
pub(super) struct HybridRuns<'a> {
    bytes: &'a [u8],
    width: u32,
    remaining: usize,
}

impl<'a> HybridRuns<'a> {
    pub(super) fn new(bytes: &'a [u8], width: u32, count: usize) -> Result<Self, Unsupported> {
        let fits = width <= MAX_BIT_WIDTH;
        fits.then_some(Self {
            bytes,
            width,
            remaining: count,
        })
        .ok_or(Unsupported)
    }

    fn read_header(&mut self) -> Result<usize, Unsupported> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or(Unsupported)?;
            self.bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return usize::try_from(value).map_err(|_too_large| Unsupported);
            }
        }
        Err(Unsupported)
    }

    fn read_run(&mut self) -> Result<HybridRun<'a>, Unsupported> {
        let width = self.width as usize;
        let header = self.read_header()?;
        if header & 1 == 1 {
            let groups = header >> 1;
            let count = (groups * 8).min(self.remaining);
            // The last group may end after the values that are needed.
            let size = (groups * width).min(self.bytes.len());
            if size < (count * width).div_ceil(8) {
                return Err(Unsupported);
            }
            let (bytes, rest) = self.bytes.split_at(size);
            self.bytes = rest;
            self.remaining -= count;
            return Ok(HybridRun::BitPacked { bytes, count });
        }
        let count = (header >> 1).min(self.remaining);
        let (bytes, rest) = self
            .bytes
            .split_at_checked(width.div_ceil(8))
            .ok_or(Unsupported)?;
        self.bytes = rest;
        self.remaining -= count;
        let mut value_bytes = [0; 4];
        value_bytes[..bytes.len()].copy_from_slice(bytes);
        let value = u32::from_le_bytes(value_bytes);
        Ok(HybridRun::Rle { value, count })
    }
}

impl<'a> Iterator for HybridRuns<'a> {
    type Item = Result<HybridRun<'a>, Unsupported>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.remaining > 0).then(|| self.read_run())
    }
}

/// Appends the first `count` values of a stream to `out`.
pub(super) fn read_all(
    bytes: &[u8],
    width: u32,
    count: usize,
    out: &mut Vec<u32>,
) -> Result<(), Unsupported> {
    for run in HybridRuns::new(bytes, width, count)? {
        match run? {
            HybridRun::Rle { value, count } => out.resize(out.len() + count, value),
            HybridRun::BitPacked { bytes, count } => unpack(bytes, width, count, out),
        }
    }
    Ok(())
}

macro_rules! for_width {
    ($width:expr, $bytes:expr, $count:expr, $out:expr, $($n:literal)*) => {
        match $width {
            0 => $out.resize($out.len() + $count, 0),
            $($n => unpack_width::<$n>($bytes, $count, $out),)*
            _ => {}
        }
    };
}

fn unpack(bytes: &[u8], width: u32, count: usize, out: &mut Vec<u32>) {
    for_width!(width, bytes, count, out,
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
}

/// Unpacks values of a constant width, with which the loop over a block is a straight line of loads and shifts.
fn unpack_width<const WIDTH: usize>(mut bytes: &[u8], mut count: usize, out: &mut Vec<u32>) {
    // Every load reads eight bytes, that of the last value too.
    let mut padded = [0_u8; 4 * BLOCK_VALUES + 8];
    let mut block = [0_u32; BLOCK_VALUES];
    let mask = u64::MAX >> (64 - WIDTH);
    while count > 0 {
        if bytes.len() >= 4 * WIDTH {
            padded[..4 * WIDTH].copy_from_slice(&bytes[..4 * WIDTH]);
            bytes = &bytes[4 * WIDTH..];
        } else {
            padded[..bytes.len()].copy_from_slice(bytes);
            bytes = &[];
        }
        for (i, slot) in block.iter_mut().enumerate() {
            let bit = i * WIDTH;
            let mut word = [0; 8];
            word.copy_from_slice(&padded[bit / 8..bit / 8 + 8]);
            let value = (u64::from_le_bytes(word) >> (bit % 8)) & mask;
            #[allow(
                clippy::cast_possible_truncation,
                reason = "masked to 32 bits or fewer"
            )]
            {
                *slot = value as u32;
            }
        }
        let block_count = count.min(BLOCK_VALUES);
        out.extend_from_slice(&block[..block_count]);
        count -= block_count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(values: &[u32], width: u32) -> Vec<u8> {
        let mut bits: Vec<bool> = Vec::new();
        for value in values {
            bits.extend((0..width).map(|b| value >> b & 1 == 1));
        }
        bits.resize(bits.len().div_ceil(8) * 8, false);
        let byte = |b: &[bool]| (0..8).map(|i| u8::from(b[i]) << i).sum();
        bits.chunks(8).map(byte).collect()
    }

    #[test]
    fn unpacks_every_width() {
        for width in 0..=32 {
            let mask = u32::MAX.checked_shr(32 - width).unwrap_or(0);
            let values: Vec<u32> = (0..104_u32)
                .map(|i| i.wrapping_mul(0x9E37_79B9) & mask)
                .collect();
            let mut stream = vec![u8::try_from(values.len() / 8).unwrap() << 1 | 1];
            stream.extend(pack(&values, width));
            for count in [1, 8, 31, 32, 33, 100, 104] {
                let mut decoded = Vec::new();
                read_all(&stream, width, count, &mut decoded).unwrap();
                assert_eq!(decoded, values[..count], "width {width}, {count} values");
            }
            // Ends after the values that are needed.
            let needed = 1 + (100 * width as usize).div_ceil(8);
            let mut decoded = Vec::new();
            read_all(&stream[..needed], width, 100, &mut decoded).unwrap();
            assert_eq!(decoded, values[..100]);
            if width > 0 {
                let cut = read_all(&stream[..needed - 1], width, 100, &mut decoded);
                assert_eq!(cut, Err(Unsupported), "width {width}");
            }
        }
    }

    #[test]
    fn repeats_and_refuses() {
        let mut decoded = Vec::new();
        // 200 times 300 in two bytes, then eight packed values.
        let stream = [
            0x90, 0x03, 0x2c, 0x01, 0x03, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0,
        ];
        read_all(&stream, 16, 203, &mut decoded).unwrap();
        assert_eq!(decoded[..200], [300; 200]);
        assert_eq!(decoded[200..], [1, 2, 3]);
        assert_eq!(read_all(&stream, 16, 209, &mut decoded), Err(Unsupported));
        assert_eq!(read_all(&[0xff; 6], 1, 1, &mut decoded), Err(Unsupported));
        assert_eq!(read_all(&[2, 1], 33, 1, &mut decoded), Err(Unsupported));
    }
}
