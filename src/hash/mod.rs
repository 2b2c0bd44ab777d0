//! SHA3-256 of several streams side by side: one alone cannot use a processor's wide registers.
//!
//! Source: FIPS 202.

mod shared;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cmp::Reverse;
use std::sync::LazyLock;

use keccak::Keccak;

pub(crate) use self::shared::SharedHasher;

/// Bytes of a block.
const RATE_BYTES: usize = 136;

type KeccakState = [u64; 25];

/// The hash of a stream of bytes.
#[derive(Debug, Clone)]
pub(crate) struct Sha3 {
    state: KeccakState,
    /// The begin of a block.
    buffer: Vec<u8>,
}

impl Sha3 {
    pub(crate) fn new() -> Self {
        Self {
            state: [0; 25],
            buffer: Vec::with_capacity(RATE_BYTES),
        }
    }

    /// The hash of these bytes.
    pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
        let mut stream = Self::new();
        stream.update(bytes);
        stream.finish()
    }

    /// Takes bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        update_all(&mut [(self, bytes)]);
    }

    /// The hash of all bytes taken.
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

    /// Takes the one block that is there.
    fn absorb_buffer(&mut self) {
        let job = Job {
            state: &mut self.state,
            bytes: &self.buffer,
        };
        absorb_portable(&mut [job], 1);
        self.buffer.clear();
    }

    /// What there is to do for all whole blocks, once a block that was begun is done with.
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

/// Each stream takes its bytes.
pub(crate) fn update_all(streams: &mut [(&mut Sha3, &[u8])]) {
    static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(kernels);
    update_with_kernels(&KERNELS, streams);
}

/// With kernels from the widest to that of one lane.
fn update_with_kernels(kernels: &[Kernel], streams: &mut [(&mut Sha3, &[u8])]) {
    let prepared = streams
        .iter_mut()
        .map(|(stream, bytes)| stream.prepare_job(bytes));
    let mut jobs: Vec<Job<'_>> = prepared.filter(|job| job.blocks() > 0).collect();
    while !jobs.is_empty() {
        // The longest is the last to end: it starts first, and never waits for a lane.
        jobs.sort_unstable_by_key(|job| Reverse(job.blocks()));
        // The wider one is the faster one, but for a stream alone.
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

/// Blocks of a stream that are to go into its state.
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

    /// Takes the next blocks away.
    fn take(&mut self, blocks: usize) -> &'a [u8] {
        let (next_blocks, rest) = self.bytes.split_at(blocks * RATE_BYTES);
        self.bytes = rest;
        next_blocks
    }
}

/// A way of taking blocks into several states.
#[derive(Debug, Clone, Copy)]
struct Kernel {
    lanes: usize,
    /// Takes so many blocks of each of at most as many jobs as there are lanes.
    absorb: fn(&mut [Job<'_>], usize),
}

/// What this processor has, from the widest to one of one lane.
fn kernels() -> Vec<Kernel> {
    let portable = Kernel {
        lanes: 1,
        absorb: absorb_portable,
    };
    #[cfg(target_arch = "x86_64")]
    let mut found: Vec<Kernel> = x86::kernels().collect();
    #[cfg(not(target_arch = "x86_64"))]
    let mut found = Vec::new();
    if found.iter().all(|kernel: &Kernel| kernel.lanes > 1) {
        found.push(portable);
    }
    found
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

    /// Streams of any lengths, in pieces of any lengths, against the crate.
    #[test]
    fn streams_in_parallel_lanes_match_a_single_stream() {
        let detected = kernels();
        // Those of this processor, each of them alone, and one that all have.
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
            let theirs: Vec<[u8; 32]> = theirs.into_iter().map(|s| s.finalize().into()).collect();
            for (streams, kernel) in ours.into_iter().zip(&kernels) {
                let ours: Vec<_> = streams.into_iter().map(Sha3::finish).collect();
                assert_eq!(ours, theirs, "round {round}, {kernel:?}");
            }
        }
    }
}
