//! The buffer into which a thread decompresses pages.

use std::cell::Cell;
use std::io::Read;

use parquet::basic::Compression;
use zstd::bulk::Decompressor;
use zstd::zstd_safe::get_frame_content_size;

use crate::parquet::expansion;
use crate::parquet::flat::Unsupported;

/// The most bytes of a buffer that a thread keeps. Pages have about a mebibyte as a rule.
const MAX_KEPT_BYTES: usize = 2 << 20;

/// Decompresses pages, one at a time.
#[derive(Default)]
pub(in crate::parquet::flat) struct PageBuffer {
    zstd: Option<Decompressor<'static>>,
    bytes: Vec<u8>,
}

thread_local! {
    static BUFFER: Cell<Option<PageBuffer>> = const { Cell::new(None) };
}

impl PageBuffer {
    /// Lends the thread's own buffer. After a panic the thread makes a new one.
    pub(in crate::parquet::flat) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut buffer = BUFFER.take().unwrap_or_default();
        let result = work(&mut buffer);
        if buffer.bytes.capacity() > MAX_KEPT_BYTES {
            buffer.bytes = Vec::new();
        }
        BUFFER.set(Some(buffer));
        result
    }

    /// Decompresses to exactly `length` bytes. Memory is reserved for these, and taken by those that there are.
    pub(super) fn decompress(
        &mut self,
        codec: Compression,
        compressed: &[u8],
        length: usize,
    ) -> Result<&[u8], Unsupported> {
        if length == 0 {
            // A page of nulls may have no values, not even compressed ones.
            return Ok(&[]);
        }
        match expansion::open(codec, compressed) {
            Some(bytes) => self.read_all(bytes, length),
            None => self.decompress_zstd(compressed, length),
        }
    }

    /// Reads exactly `length` bytes, and not more than one behind them.
    fn read_all(&mut self, bytes: impl Read, length: usize) -> Result<&[u8], Unsupported> {
        self.bytes.clear();
        let reserved = self.bytes.try_reserve(length);
        reserved.map_err(|_no_room| Unsupported)?;
        match bytes.take(length as u64 + 1).read_to_end(&mut self.bytes) {
            Ok(read) if read == length => Ok(&self.bytes),
            _ => Err(Unsupported),
        }
    }

    fn decompress_zstd(&mut self, compressed: &[u8], length: usize) -> Result<&[u8], Unsupported> {
        let content_size = get_frame_content_size(compressed).map_err(|_damaged| Unsupported)?;
        if content_size.is_some_and(|size| size != length as u64) {
            return Err(Unsupported);
        }
        self.bytes.clear();
        self.bytes
            .try_reserve(length)
            .map_err(|_no_room| Unsupported)?;
        let decompressor = match &mut self.zstd {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new().map_err(|_no_room| Unsupported)?),
        };
        let decompressed = decompressor.decompress_to_buffer(compressed, &mut self.bytes);
        match decompressed {
            Ok(written) if written == length => Ok(&self.bytes),
            _ => Err(Unsupported),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::panic::catch_unwind;

    use flate2::write::GzEncoder;
    use parquet::basic::{BrotliLevel, GzipLevel, ZstdLevel};

    use super::*;

    #[test]
    fn a_frame_has_the_size_that_its_page_claims() {
        let compressed = zstd::bulk::compress(&[7; 5000], 1).unwrap();
        let mut buffer = PageBuffer::default();
        let codec = Compression::ZSTD(ZstdLevel::default());
        assert_eq!(
            buffer.decompress(codec, &compressed, 5000),
            Ok(&[7; 5000][..])
        );
        // Nothing is reserved for a claim that the frame denies.
        let capacity = buffer.bytes.capacity();
        for claimed in [4999, 5001, i32::MAX as usize] {
            assert_eq!(
                buffer.decompress(codec, &compressed, claimed),
                Err(Unsupported)
            );
            assert_eq!(buffer.bytes.capacity(), capacity);
        }
        let cut = &compressed[..compressed.len() - 1];
        assert_eq!(buffer.decompress(codec, cut, 5000), Err(Unsupported));
        assert_eq!(buffer.decompress(codec, &[], 5000), Err(Unsupported));
        // Writers that compress as they go do not know the size.
        let streamed = zstd::stream::encode_all(&[7; 5000][..], 1).unwrap();
        assert!(matches!(get_frame_content_size(&streamed), Ok(None)));
        assert_eq!(
            buffer.decompress(codec, &streamed, 5000),
            Ok(&[7; 5000][..])
        );
        assert_eq!(buffer.decompress(codec, &streamed, 4999), Err(Unsupported));
        assert_eq!(buffer.decompress(codec, &streamed, 5001), Err(Unsupported));
    }

    #[test]
    fn nothing_is_decompressed_behind_the_size_that_a_page_claims() {
        let zeros = vec![0; 50 << 20];
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&zeros).unwrap();
        let mut brotli = Vec::new();
        brotli::CompressorWriter::new(&mut brotli, 4096, 1, 22)
            .write_all(&zeros)
            .unwrap();
        for (codec, compressed) in [
            (
                Compression::GZIP(GzipLevel::default()),
                gzip.finish().unwrap(),
            ),
            (Compression::BROTLI(BrotliLevel::default()), brotli),
        ] {
            let mut buffer = PageBuffer::default();
            let mut decompress = |length| {
                buffer
                    .decompress(codec, &compressed, length)
                    .map(<[u8]>::len)
            };
            for claimed in [1, 5000, 1 << 20] {
                assert_eq!(decompress(claimed), Err(Unsupported), "{codec:?}");
            }
            assert_eq!(decompress(zeros.len() + 1), Err(Unsupported), "{codec:?}");
            assert_eq!(decompress(zeros.len()), Ok(zeros.len()), "{codec:?}");
            let mut buffer = PageBuffer::default();
            assert!(buffer.decompress(codec, &compressed, 1 << 20).is_err());
            assert!(buffer.bytes.capacity() < 3 << 20, "{codec:?}");
        }
    }

    #[test]
    fn a_thread_keeps_its_buffer_unless_it_is_large() {
        let codec = Compression::ZSTD(ZstdLevel::default());
        let decompress = |length: usize| {
            let compressed = zstd::bulk::compress(&vec![1; length], 1).unwrap();
            PageBuffer::with(|buffer| {
                let before = buffer.bytes.capacity();
                assert_eq!(
                    buffer.decompress(codec, &compressed, length).unwrap().len(),
                    length
                );
                (before, buffer.zstd.is_some())
            })
        };
        assert_eq!(decompress(1000).0, 0);
        assert!(decompress(MAX_KEPT_BYTES + 1).0 >= 1000);
        assert_eq!(decompress(1000), (0, true));
        // Within another one, as in a call from a call, a buffer of its own serves.
        PageBuffer::with(|outer| {
            assert!(outer.zstd.is_some());
            PageBuffer::with(|inner| assert!(inner.zstd.is_none()));
        });
        let panicked = catch_unwind(|| PageBuffer::with(|_| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(decompress(1000).0, 0);
    }
}
