//! SHA3-256 of several streams side by side: one alone cannot use a processor's wide registers.
//!
//! Source: FIPS 202.

mod lanes;

use std::cmp::Reverse;

use keccak::Keccak;

use self::lanes::{Job, Kernel};

/// Bytes of a block.
const RATE_BYTES: usize = 136;

type State = [u64; 25];

/// The hash of a stream of bytes.
#[derive(Debug, Clone)]
pub(crate) struct Sha3 {
    state: State,
    /// The begin of a block.
    rest: Vec<u8>,
}

impl Sha3 {
    pub(crate) fn new() -> Self {
        Self {
            state: [0; 25],
            rest: Vec::with_capacity(RATE_BYTES),
        }
    }

    /// Takes bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        update_all(&mut [(self, bytes)]);
    }

    /// The hash of all bytes taken.
    pub(crate) fn finish(mut self) -> [u8; 32] {
        self.rest.push(0x06);
        self.rest.resize(RATE_BYTES, 0);
        if let Some(last) = self.rest.last_mut() {
            *last |= 0x80;
        }
        absorb(&mut self.state, &self.rest);
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    /// What there is to do for all whole blocks, once a block that was begun is done with.
    fn job<'a>(&'a mut self, mut bytes: &'a [u8]) -> Job<'a> {
        if !self.rest.is_empty() {
            let missing = (RATE_BYTES - self.rest.len()).min(bytes.len());
            self.rest.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.rest.len() == RATE_BYTES {
                absorb(&mut self.state, &self.rest);
                self.rest.clear();
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() / RATE_BYTES * RATE_BYTES);
        self.rest.extend_from_slice(rest);
        Job {
            state: &mut self.state,
            bytes: whole,
        }
    }
}

/// Each stream takes its bytes.
pub(crate) fn update_all(streams: &mut [(&mut Sha3, &[u8])]) {
    update_with(Kernel::all().next(), streams);
}

fn update_with(kernel: Option<Kernel>, streams: &mut [(&mut Sha3, &[u8])]) {
    let jobs = streams.iter_mut().map(|(stream, bytes)| stream.job(bytes));
    let mut jobs: Vec<Job<'_>> = jobs.filter(|job| job.blocks() > 0).collect();
    if let Some(kernel) = kernel {
        while jobs.len() > 1 {
            // The longest is the last to end: it starts first, and never waits for a lane.
            jobs.sort_unstable_by_key(|job| Reverse(job.blocks()));
            let together = jobs.len().min(kernel.lanes);
            let blocks = jobs[together - 1].blocks();
            kernel.absorb(&mut jobs[..together], blocks);
            jobs.retain(|job| job.blocks() > 0);
        }
    }
    for job in jobs {
        absorb(job.state, job.bytes);
    }
}

/// Whole blocks into one state.
fn absorb(state: &mut State, blocks: &[u8]) {
    Keccak::new().with_f1600(|permute| {
        for block in blocks.chunks_exact(RATE_BYTES) {
            let (words, _) = block.as_chunks();
            for (word, bytes) in state.iter_mut().zip(words) {
                *word ^= u64::from_le_bytes(*bytes);
            }
            permute(state);
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
    fn streams_side_by_side_have_the_hashes_they_have_alone() {
        let kernels: Vec<Option<Kernel>> = Kernel::all().map(Some).chain([None]).collect();
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
                    let mut given: Vec<_> = streams.iter_mut().zip(bytes).collect();
                    update_with(*kernel, &mut given);
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
