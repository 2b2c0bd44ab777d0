//! SHA3-256 of several streams in parallel: one stream alone cannot use a processor's wide registers.
//!
//! [`Sha3`] is the hash of one stream; [`update_all`] appends to several at once, one in each lane of the widest
//! registers that the processor has (`x86`). A [`SharedHasher`] is a stream that another thread hashes in its free
//! lanes. Other processors, and blocks that were completed in a buffer, use the portable code of the `keccak` crate. Nothing
//! here returns an error.
//!
//! Source: FIPS 202.

mod shared;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cmp::Reverse;
use std::sync::LazyLock;

use keccak::Keccak;

pub(crate) use self::shared::SharedHasher;

/// The bytes of a block, which is the rate of SHA3-256.
const RATE_BYTES: usize = 136;

type KeccakState = [u64; 25];

/// The hash of a stream of bytes.
#[derive(Debug, Clone)]
pub(crate) struct Sha3 {
    state: KeccakState,
    /// The begin of an incomplete block.
    buffer: Vec<u8>,
}

impl Sha3 {
    pub(crate) fn new() -> Self {
        Self {
            state: [0; 25],
            buffer: Vec::with_capacity(RATE_BYTES),
        }
    }

    /// The hash of `bytes`.
    pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
        let mut stream = Self::new();
        stream.update(bytes);
        stream.finish()
    }

    /// Appends bytes to the stream.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        update_all(&mut [(self, bytes)]);
    }

    /// The hash of all bytes of the stream.
    pub(crate) fn finish(mut self) -> [u8; 32] {
        self.buffer.push(0x06);
        self.buffer.resize(RATE_BYTES, 0);
        if let Some(last) = self.buffer.last_mut() {
            *last |= 0x80;
        }
        self.absorb_buffer();
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    /// Absorbs the buffer, which must hold one whole block.
    fn absorb_buffer(&mut self) {
        let job = Job {
            state: &mut self.state,
            bytes: &self.buffer,
        };
        absorb_portable(&mut [job], 1);
        self.buffer.clear();
    }

    /// Completes the block in the buffer, buffers the incomplete block at the end of `bytes`, and returns the job of
    /// absorbing the whole blocks between them.
    fn prepare_job<'a>(&'a mut self, mut bytes: &'a [u8]) -> Job<'a> {
        if !self.buffer.is_empty() {
            let missing = (RATE_BYTES - self.buffer.len()).min(bytes.len());
            self.buffer.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.buffer.len() == RATE_BYTES {
                self.absorb_buffer();
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() / RATE_BYTES * RATE_BYTES);
        self.buffer.extend_from_slice(rest);
        Job {
            state: &mut self.state,
            bytes: whole,
        }
    }
}

/// Appends to each stream its bytes.
pub(crate) fn update_all(streams: &mut [(&mut Sha3, &[u8])]) {
    static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(kernels);
    update_with_kernels(&KERNELS, streams);
}

/// As [`update_all`], with kernels ordered from the widest to one of a single lane.
fn update_with_kernels(kernels: &[Kernel], streams: &mut [(&mut Sha3, &[u8])]) {
    let prepared = streams
        .iter_mut()
        .map(|(stream, bytes)| stream.prepare_job(bytes));
    let mut jobs: Vec<Job<'_>> = prepared.filter(|job| job.blocks() > 0).collect();
    while !jobs.is_empty() {
        // The longest stream ends last, so it starts first and never waits for a lane.
        jobs.sort_unstable_by_key(|job| Reverse(job.blocks()));
        // The widest kernel is the fastest, except for a single stream.
        let is_single = jobs.len() == 1;
        let candidate = if is_single {
            kernels.last()
        } else {
            kernels.first()
        };
        let Some(chosen) = candidate else { break };
        let lane_count = jobs.len().min(chosen.lanes);
        let blocks = jobs[lane_count - 1].blocks();
        (chosen.absorb)(&mut jobs[..lane_count], blocks);
        jobs.retain(|job| job.blocks() > 0);
    }
}

/// Blocks of a stream that are to be absorbed into its state.
#[derive(Debug)]
struct Job<'a> {
    state: &'a mut KeccakState,
    /// Whole blocks.
    bytes: &'a [u8],
}

impl<'a> Job<'a> {
    fn blocks(&self) -> usize {
        self.bytes.len() / RATE_BYTES
    }

    /// Removes and returns the next blocks.
    fn take(&mut self, blocks: usize) -> &'a [u8] {
        let (next_blocks, rest) = self.bytes.split_at(blocks * RATE_BYTES);
        self.bytes = rest;
        next_blocks
    }
}

/// An implementation that absorbs blocks into several states at once.
#[derive(Debug, Clone, Copy)]
struct Kernel {
    lanes: usize,
    /// Absorbs the given number of blocks of each job; there may be at most as many jobs as lanes.
    absorb: fn(&mut [Job<'_>], usize),
}

/// The kernels for this processor, ordered from the widest to one of a single lane.
fn kernels() -> Vec<Kernel> {
    let portable = Kernel {
        lanes: 1,
        absorb: absorb_portable,
    };
    #[cfg(target_arch = "x86_64")]
    let mut detected: Vec<Kernel> = x86::kernels().collect();
    #[cfg(not(target_arch = "x86_64"))]
    let mut detected = Vec::new();
    if detected.iter().all(|kernel: &Kernel| kernel.lanes > 1) {
        detected.push(portable);
    }
    detected
}

fn absorb_portable(jobs: &mut [Job<'_>], blocks: usize) {
    Keccak::new().with_f1600(|permute| {
        for job in jobs {
            for block in job.take(blocks).as_chunks::<RATE_BYTES>().0 {
                for (word, bytes) in job.state.iter_mut().zip(block.as_chunks().0) {
                    *word ^= u64::from_le_bytes(*bytes);
                }
                permute(job.state);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngCore, SeedableRng};
    use sha3::{Digest, Sha3_256};

    use super::*;

    /// Streams of any lengths, in pieces of any lengths, compared with the `sha3` crate.
    #[test]
    fn streams_in_parallel_lanes_match_a_single_stream() {
        let detected = kernels();
        // Each kernel of this processor alone, all of them, and the portable one.
        let mut kernels: Vec<Vec<Kernel>> = detected.iter().map(|kernel| vec![*kernel]).collect();
        kernels.push(detected);
        kernels.push(vec![Kernel {
            lanes: 1,
            absorb: absorb_portable,
        }]);
        let mut random = StdRng::seed_from_u64(7);
        for round in 0..200 {
            let count = random.random_range(1..20);
            let mut ours: Vec<Vec<Sha3>> = vec![vec![Sha3::new(); count]; kernels.len()];
            let mut theirs = vec![Sha3_256::new(); count];
            for _ in 0..random.random_range(0..4) {
                let pieces: Vec<Vec<u8>> = (0..count)
                    .map(|_| {
                        let exact = random.random_range(0..6) * RATE_BYTES;
                        let blocks = random.random_range(0..10) * RATE_BYTES;
                        let any = random.random_range(0..2_000);
                        let length = [0, exact, any, blocks + any][random.random_range(0..4)];
                        let mut piece = vec![0; length];
                        random.fill_bytes(&mut piece);
                        piece
                    })
                    .collect();
                for (streams, kernel) in ours.iter_mut().zip(&kernels) {
                    let bytes = pieces.iter().map(Vec::as_slice);
                    let mut updates: Vec<_> = streams.iter_mut().zip(bytes).collect();
                    update_with_kernels(kernel, &mut updates);
                }
                for (stream, piece) in theirs.iter_mut().zip(&pieces) {
                    stream.update(piece);
                }
            }
            let expected: Vec<[u8; 32]> = theirs.into_iter().map(|s| s.finalize().into()).collect();
            for (streams, kernel) in ours.into_iter().zip(&kernels) {
                let actual: Vec<_> = streams.into_iter().map(Sha3::finish).collect();
                assert_eq!(actual, expected, "round {round}, {kernel:?}");
            }
        }
    }
}
