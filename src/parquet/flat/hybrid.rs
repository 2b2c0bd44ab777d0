//! The hybrid of run-length encoding and bit packing, in which levels and dictionary indices are stored.
//!
//! Source: "Run Length Encoding / Bit-Packing Hybrid" in the Parquet format's `Encodings.md`.

use super::Unsupported;

/// The most values that are passed on at a time: few enough for the processor's first cache.
pub(super) const BLOCK_VALUES: usize = 1024;
/// The number of values that are unpacked at a time; they take whole bytes.
pub(super) const GROUP_VALUES: usize = 32;
/// The most bits of an index or level.
const MAX_BIT_WIDTH: u32 = 32;

/// A run of values of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::parquet) enum HybridRun<'a> {
    /// One value, `count` times.
    Rle { value: u32, count: usize },
    /// Values of the stream's bit width, the lowest bits first.
    BitPacked { bytes: &'a [u8], count: usize },
}

/// The runs of a stream until `remaining` values are read.
#[derive(Debug)]
pub(in crate::parquet) struct HybridRuns<'a> {
    bytes: &'a [u8],
    width: u32,
    remaining: usize,
}

impl<'a> HybridRuns<'a> {
    pub(in crate::parquet) fn new(
        bytes: &'a [u8],
        width: u32,
        count: usize,
    ) -> Result<Self, Unsupported> {
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

/// Passes on the first `count` values of a stream in blocks of at most [`BLOCK_VALUES`].
pub(in crate::parquet) fn read_blocks(
    bytes: &[u8],
    width: u32,
    count: usize,
    mut pass: impl FnMut(&[u32]) -> Result<(), Unsupported>,
) -> Result<(), Unsupported> {
    let mut block = [0; BLOCK_VALUES];
    let mut filled = 0;
    for run in HybridRuns::new(bytes, width, count)? {
        let mut run = run?;
        while run.count() > 0 {
            // Packed values come in groups, which are not cut.
            if filled + GROUP_VALUES > BLOCK_VALUES {
                pass(&block[..filled])?;
                filled = 0;
            }
            filled += run.take_values(width, &mut block[filled..]);
        }
    }
    pass(&block[..filled])
}

impl HybridRun<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Rle { count, .. } | Self::BitPacked { count, .. } => *count,
        }
    }

    /// Takes the next values, as many as there are and as fit; of packed values whole groups, or the last ones.
    fn take_values(&mut self, width: u32, out: &mut [u32]) -> usize {
        match self {
            Self::Rle { value, count } => {
                let taken = out.len().min(*count);
                out[..taken].fill(*value);
                *count -= taken;
                taken
            }
            Self::BitPacked { bytes, count } => {
                let (groups, _) = out.as_chunks_mut();
                let taken = (groups.len() * GROUP_VALUES).min(*count);
                unpack(bytes, width, &mut groups[..taken.div_ceil(GROUP_VALUES)]);
                *count -= taken;
                taken
            }
        }
    }
}

macro_rules! for_width {
    ($width:expr, $bytes:expr, $groups:expr, $($n:literal)*) => {
        match $width {
            $($n => unpack_width::<$n>($bytes, $groups),)*
            _ => $groups.fill([0; GROUP_VALUES]),
        }
    };
}

/// Unpacks values to `groups`, and takes their bytes off `bytes`. What is missing at the end is zeros.
pub(super) fn unpack(bytes: &mut &[u8], width: u32, groups: &mut [[u32; GROUP_VALUES]]) {
    for_width!(width, bytes, groups,
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
}

fn unpack_width<const WIDTH: usize>(bytes: &mut &[u8], groups: &mut [[u32; GROUP_VALUES]]) {
    for group in groups {
        if let Some((packed, rest)) = bytes.split_at_checked(4 * WIDTH) {
            unpack_group::<WIDTH>(packed, group);
            *bytes = rest;
        } else {
            let mut packed = [0; 4 * MAX_BIT_WIDTH as usize];
            packed[..bytes.len()].copy_from_slice(bytes);
            unpack_group::<WIDTH>(&packed[..4 * WIDTH], group);
            *bytes = &[];
        }
    }
}

macro_rules! unpack_values {
    ($packed:expr, $group:expr, $($i:literal)*) => {
        // Written out, every position and shift is a constant.
        $($group[$i] = unpack_value::<WIDTH>($packed, $i);)*
    };
}

fn unpack_group<const WIDTH: usize>(packed: &[u8], group: &mut [u32; GROUP_VALUES]) {
    let packed = &packed[..4 * WIDTH];
    unpack_values!(packed, group,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// A value of a group. It is cut out of eight bytes that lie in the group, also for the last value.
#[inline]
fn unpack_value<const WIDTH: usize>(packed: &[u8], i: usize) -> u32 {
    let bit = i * WIDTH;
    let start = (bit / 8).min((4 * WIDTH).saturating_sub(8));
    let length = (4 * WIDTH).min(8);
    let mut word = [0; 8];
    word[..length].copy_from_slice(&packed[start..start + length]);
    let value = (u64::from_le_bytes(word) >> (bit - 8 * start)) & (u64::MAX >> (64 - WIDTH));
    #[allow(
        clippy::cast_possible_truncation,
        reason = "masked to 32 bits or fewer"
    )]
    {
        value as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(
        bytes: &[u8],
        width: u32,
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), Unsupported> {
        read_blocks(bytes, width, count, |block| {
            assert!(block.len() <= BLOCK_VALUES);
            out.extend_from_slice(block);
            Ok(())
        })
    }

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

    /// Runs of many lengths, so that blocks begin and end anywhere in them.
    #[test]
    fn blocks_join_runs() {
        let (mut stream, mut values) = (Vec::new(), Vec::new());
        for run in 0..90_u8 {
            let length = [1, 7, 40, 126][usize::from(run) % 4];
            if run % 3 == 0 {
                let packed: Vec<u32> = (0..8 * u32::from(length % 64)).map(|i| i % 31).collect();
                stream.push((length % 64) << 1 | 1);
                stream.extend(pack(&packed, 5));
                values.extend(packed);
            } else {
                stream.extend([(length << 1) & 0x7f | 0x80, length >> 6, run % 32]);
                values.extend(std::iter::repeat_n(
                    u32::from(run % 32),
                    usize::from(length),
                ));
            }
        }
        assert!(values.len() > 4 * BLOCK_VALUES);
        for count in [values.len(), BLOCK_VALUES, BLOCK_VALUES + 1, 3000] {
            let mut decoded = Vec::new();
            read_all(&stream, 5, count, &mut decoded).unwrap();
            assert_eq!(decoded, values[..count]);
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
