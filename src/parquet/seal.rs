//! The seal of a Parquet file: checksums and identity in the bytes just before the footer. Nothing in the file refers
//! to them, so other readers ignore them.
//!
//! A [`Seal`] holds an XXH3-64 for each column chunk, one for the page indexes and one for the footer. It also says to
//! which write the file belongs, and its place in the write. Since version 2 it has a [`PageSeal`] for each chunk of more
//! than one data page: with it, pages can be read and verified alone. Readers of version 1 ignore these. The layout is
//! in `docs/format.md`. A seal that does not match its own checksum is an error of the kind
//! [`ErrorKind::PartCorrupted`]. Files without a seal are read without checks, unless their footer names `pds` as their
//! writer.

use std::collections::BTreeMap;

use twox_hash::XxHash3_64;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"PDSSEAL1";
/// Bytes of the length, the hash and the magic at the end of a seal.
const TRAILER_BYTES: usize = 4 + 8 + 8;
/// Bytes of the hash and the magic at the end of a seal.
const OWN_HASH_BYTES: usize = 8 + 8;
/// Bytes of the footer's length and `PAR1` at the end of a file.
pub const PARQUET_TRAILER_BYTES: usize = 8;
/// How `created_by` begins in the footer of a file with a seal.
pub const CREATED_BY: &str = "pds version ";
/// The version of the seal that is written; version 1 ends with the dictionaries.
const VERSION: u32 = 2;
/// Bytes of the checksum of a page.
pub(super) const PAGE_CHECKSUM_BYTES: usize = 8;

/// The write that a part belongs to, and its place in the write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartIdentity {
    /// Random, the same in all parts of one write.
    pub write_id: u128,
    /// The manifest's `created_at_utc`.
    pub created_at: String,
    /// The task that wrote the part; parts are ordered by task, then sequence.
    pub task: u64,
    /// The part's number among the parts of its task.
    pub sequence: u64,
    /// Whether the part is the last of its task; the writer sets it when it ends a file.
    pub last: bool,
}

impl PartIdentity {
    /// That of the first file of a new write, which has one task.
    pub fn new(clock: &dyn Clock) -> Self {
        Self {
            write_id: clock.new_id(),
            created_at: clock.now().to_rfc3339(),
            ..Self::default()
        }
    }
}

/// A file's checksums and identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// The part's write, and its place in the write.
    pub identity: PartIdentity,
    /// A hash for each row group and leaf column.
    pub chunks: Vec<Vec<u64>>,
    /// The hash of the bytes between the last column chunk and the seal.
    pub index_hash: u64,
    /// The hash of the footer with its length and magic.
    pub footer_hash: u64,
    /// Dictionaries of columns: the index of the field, and an IPC stream of one batch.
    pub dictionaries: Vec<(u32, Vec<u8>)>,
    /// What verifies the pages of a chunk alone, by row group and leaf column; none in version 1.
    pub pages: BTreeMap<(u32, u32), PageSeal>,
}

/// What verifies the pages of one chunk.
///
/// The checksums of all pages lie before the seal, in the order of the chunks: the dictionary page's, if there is one,
/// then each data page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSeal {
    /// The number of checksums.
    pub pages: u32,
    /// The number of checksums of the chunks before; it is not stored.
    pub first: u64,
    /// The hash of the column index.
    pub column_index_hash: u64,
    /// The hash of the offset index followed by the checksums.
    pub offset_index_hash: u64,
}

/// The XXH3-64 of some bytes, the hash of all checksums of a file.
pub fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

impl Seal {
    /// Encodes the seal with its own checksum.
    pub fn encode(&self) -> Vec<u8> {
        let identity = &self.identity;
        let columns = self.chunks.first().map_or(0, Vec::len);
        let mut out = Vec::with_capacity(128 + 8 * columns * self.chunks.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&identity.write_id.to_le_bytes());
        out.extend_from_slice(&identity.task.to_le_bytes());
        out.extend_from_slice(&identity.sequence.to_le_bytes());
        out.push(u8::from(identity.last));
        put_count(&mut out, identity.created_at.len());
        out.extend_from_slice(identity.created_at.as_bytes());
        put_count(&mut out, self.chunks.len());
        put_count(&mut out, columns);
        for hash in self.chunks.iter().flatten() {
            out.extend_from_slice(&hash.to_le_bytes());
        }
        out.extend_from_slice(&self.index_hash.to_le_bytes());
        out.extend_from_slice(&self.footer_hash.to_le_bytes());
        put_count(&mut out, self.dictionaries.len());
        for (field, bytes) in &self.dictionaries {
            out.extend_from_slice(&field.to_le_bytes());
            put_count(&mut out, bytes.len());
            out.extend_from_slice(bytes);
        }
        put_u32(&mut out, VERSION);
        put_count(&mut out, self.pages.len());
        for ((group, leaf), page_seal) in &self.pages {
            for number in [*group, *leaf, page_seal.pages] {
                put_u32(&mut out, number);
            }
            out.extend_from_slice(&page_seal.column_index_hash.to_le_bytes());
            out.extend_from_slice(&page_seal.offset_index_hash.to_le_bytes());
        }
        let length = out.len() + TRAILER_BYTES;
        put_count(&mut out, length);
        let checksum = hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(MAGIC);
        out
    }

    /// The length of the seal that ends where `before_footer` ends; None if no seal is declared there.
    pub fn declared_length(before_footer: &[u8]) -> Option<usize> {
        let trailer = before_footer.len().checked_sub(TRAILER_BYTES)?;
        let (length_bytes, rest) = before_footer[trailer..].split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length_bytes) as usize;
        (rest.ends_with(MAGIC) && length > TRAILER_BYTES).then_some(length)
    }

    /// The hash at the end of a seal, of all that is before it; None of fewer bytes than it has. No two files of pds have
    /// the same one: the seal has the random id of their write, and the hashes of all that is in them.
    pub fn own_hash(bytes: &[u8]) -> Option<u64> {
        let hash_start = bytes.len().checked_sub(OWN_HASH_BYTES)?;
        bytes[hash_start..]
            .first_chunk()
            .map(|hash| u64::from_le_bytes(*hash))
    }

    /// Decodes a seal from exactly its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::new(ErrorKind::PartCorrupted, "the checksum block is damaged");
        let body_end = bytes
            .len()
            .checked_sub(OWN_HASH_BYTES)
            .ok_or_else(damaged)?;
        let checksum = Self::own_hash(bytes).ok_or_else(damaged)?;
        if checksum != hash(&bytes[..body_end]) || !bytes.starts_with(MAGIC) {
            return Err(damaged());
        }
        let mut reader = SealReader(&bytes[MAGIC.len()..body_end - 4]);
        let mut decode = || {
            let write_id = u128::from_le_bytes(reader.take()?);
            let (task, sequence) = (reader.u64()?, reader.u64()?);
            let [last] = reader.take()?;
            let length = reader.count()?;
            let created_at = String::from_utf8(reader.slice(length)?.to_vec()).ok()?;
            let (groups, columns) = (reader.count()?, reader.count()?);
            // A row group without columns takes no bytes, so any number of them could be claimed.
            let hashes = groups.checked_mul(columns)?.checked_mul(8)?;
            if hashes > reader.0.len() || (columns == 0 && groups > 0) {
                return None;
            }
            let mut chunks = Vec::with_capacity(groups);
            for _ in 0..groups {
                chunks.push(
                    (0..columns)
                        .map(|_| reader.u64())
                        .collect::<Option<Vec<_>>>()?,
                );
            }
            let (index_hash, footer_hash) = (reader.u64()?, reader.u64()?);
            let mut dictionaries = Vec::new();
            for _ in 0..reader.count()? {
                let field = reader.u32()?;
                let length = reader.count()?;
                dictionaries.push((field, reader.slice(length)?.to_vec()));
            }
            // A later version has more after what version 2 has.
            let pages = if reader.0.is_empty() {
                BTreeMap::new()
            } else {
                let version = reader.u32()?;
                (version >= VERSION).then(|| reader.page_seals())??
            };
            let identity = PartIdentity {
                write_id,
                created_at,
                task,
                sequence,
                last: last != 0,
            };
            Some(Self {
                identity,
                chunks,
                index_hash,
                footer_hash,
                dictionaries,
                pages,
            })
        };
        decode().ok_or_else(damaged)
    }
}

struct SealReader<'a>(&'a [u8]);

impl<'a> SealReader<'a> {
    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.first_chunk().copied()
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn count(&mut self) -> Option<usize> {
        self.u32().map(|count| count as usize)
    }

    /// The entries of chunks, which come in the order of row groups and columns.
    fn page_seals(&mut self) -> Option<BTreeMap<(u32, u32), PageSeal>> {
        let (mut pages, mut first) = (BTreeMap::new(), 0);
        for _ in 0..self.count()? {
            let chunk = (self.u32()?, self.u32()?);
            let page_seal = PageSeal {
                pages: self.u32()?,
                first,
                column_index_hash: self.u64()?,
                offset_index_hash: self.u64()?,
            };
            if pages
                .last_key_value()
                .is_some_and(|(last, _)| *last >= chunk)
            {
                return None;
            }
            first += u64::from(page_seal.pages);
            pages.insert(chunk, page_seal);
        }
        Some(pages)
    }
}

/// Writes a count, which is far below 2^32: of columns, row groups, or the bytes of the seal.
fn put_count(out: &mut Vec<u8>, count: usize) {
    put_u32(out, u32::try_from(count).unwrap_or(u32::MAX));
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Seal {
        Seal {
            identity: PartIdentity {
                write_id: 7,
                created_at: "2026-11-21T00:00:00.000001+00:00".to_owned(),
                task: 3,
                sequence: 1,
                last: true,
            },
            chunks: vec![vec![1, 2], vec![3, 4]],
            index_hash: 5,
            footer_hash: 6,
            dictionaries: vec![(1, vec![1, 2, 3])],
            pages: [((0, 1), page_seal(3, 0)), ((1, 0), page_seal(2, 3))].into(),
        }
    }

    fn page_seal(pages: u32, first: u64) -> PageSeal {
        PageSeal {
            pages,
            first,
            column_index_hash: 8,
            offset_index_hash: 9,
        }
    }

    /// The seal with another body of the same length or a shorter one, and the checksum of it.
    fn with_body(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = sample().encode();
        bytes.truncate(bytes.len() - TRAILER_BYTES);
        change(&mut bytes);
        let length = bytes.len() + TRAILER_BYTES;
        put_count(&mut bytes, length);
        let checksum = hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        bytes
    }

    /// The bytes of the version, the number of chunks and two chunks.
    const PAGES_BYTES: usize = 4 + 4 + 2 * 28;

    #[test]
    fn a_seal_of_version_1_ends_with_the_dictionaries() {
        let bytes = with_body(|body| body.truncate(body.len() - PAGES_BYTES));
        let version_1 = Seal::decode(&bytes).unwrap();
        let pages = BTreeMap::new();
        assert_eq!(version_1, Seal { pages, ..sample() });
    }

    #[test]
    fn bytes_of_a_later_version_are_ignored() {
        let bytes = with_body(|body| {
            let version_at = body.len() - PAGES_BYTES;
            body[version_at] = 3;
            body.extend([1, 2, 3]);
        });
        assert_eq!(Seal::decode(&bytes).unwrap(), sample());
    }

    #[test]
    fn wrong_entries_of_chunks_are_refused() {
        type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
        let count_at = |body: &[u8]| body.len() - PAGES_BYTES + 4;
        let changes: [Change<'_>; 4] = [
            // Another version, more entries than bytes, a chunk twice, an entry that is cut off.
            &|body| {
                let at = count_at(body) - 4;
                body[at] = 1;
            },
            &|body| {
                let at = count_at(body);
                body[at..at + 4].fill(0xff);
            },
            &|body| {
                let at = count_at(body) + 4;
                body.copy_within(at..at + 8, at + 28);
            },
            &|body| body.truncate(body.len() - 1),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert!(Seal::decode(&with_body(change)).is_err(), "{number}");
        }
    }

    #[test]
    fn reads_what_it_wrote() {
        let bytes = sample().encode();
        assert_eq!(Seal::declared_length(&bytes), Some(bytes.len()));
        assert_eq!(Seal::decode(&bytes).unwrap(), sample());
    }

    #[test]
    fn counts_beyond_the_bytes_are_refused() {
        let at = MAGIC.len() + 16 + 8 + 8 + 1 + 4 + sample().identity.created_at.len();
        for (groups, columns) in [(u32::MAX, 0), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            let mut bytes = sample().encode();
            bytes[at..at + 4].copy_from_slice(&groups.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&columns.to_le_bytes());
            let end = bytes.len() - 16;
            let checksum = hash(&bytes[..end]).to_le_bytes();
            bytes[end..end + 8].copy_from_slice(&checksum);
            assert!(Seal::decode(&bytes).is_err(), "{groups} {columns}");
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let good = sample().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let noticed =
                Seal::declared_length(&bad) != Some(good.len()) || Seal::decode(&bad).is_err();
            assert!(noticed, "byte {at}");
        }
    }
}
