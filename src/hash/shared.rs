//! A stream whose bytes another thread hashes along with its own, where lanes are free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Sha3, update_all};

/// The hash of a stream, shared by who brings its bytes and who has lanes for them.
#[derive(Debug, Clone)]
pub(crate) struct SharedHasher {
    state: Arc<Mutex<SharedHasherState>>,
    max_pending_bytes: usize,
}

#[derive(Debug)]
struct SharedHasherState {
    hash: Sha3,
    pending: Vec<u8>,
    /// Of those that wait, so many are hashed.
    hashed_bytes: usize,
    /// Nobody has a lane any more.
    is_unshared: bool,
}

impl SharedHasherState {
    fn hash_pending(&mut self) {
        self.hash.update(&self.pending[self.hashed_bytes..]);
        (self.pending, self.hashed_bytes) = (Vec::new(), 0);
    }
}

impl SharedHasher {
    /// Of whose bytes at most so many wait for a lane.
    pub(crate) fn new(max_pending_bytes: usize) -> Self {
        let state = SharedHasherState {
            hash: Sha3::new(),
            pending: Vec::new(),
            hashed_bytes: 0,
            is_unshared: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            max_pending_bytes,
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, SharedHasherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes.
    pub(crate) fn update(&self, bytes: &[u8]) {
        let mut state = self.lock_state();
        if state.pending.len() - state.hashed_bytes + bytes.len() > self.max_pending_bytes {
            state.hash_pending();
        }
        if state.is_unshared || bytes.len() > self.max_pending_bytes {
            state.hash.update(bytes);
        } else {
            state.pending.extend_from_slice(bytes);
        }
    }

    /// Streams take their bytes, and this one as many of those that wait as cost no time.
    pub(crate) fn update_with(&self, streams: &mut [(&mut Sha3, &[u8])]) {
        let longest = streams.iter().map(|(_, bytes)| bytes.len()).max();
        let mut guard = self.lock_state();
        let state = &mut *guard;
        let end = state
            .pending
            .len()
            .min(state.hashed_bytes + longest.unwrap_or(0));
        let own = streams
            .iter_mut()
            .map(|(hash, bytes)| (&mut **hash, *bytes));
        let pending = (&mut state.hash, &state.pending[state.hashed_bytes..end]);
        update_all(&mut own.chain([pending]).collect::<Vec<_>>());
        state.hashed_bytes = end;
        // Those that are done are let go before they are more than those that wait.
        if state.hashed_bytes >= state.pending.len() / 2 {
            state.pending.drain(..state.hashed_bytes);
            state.hashed_bytes = 0;
        }
    }

    /// From now on nobody else has a lane; what waits is hashed.
    pub(crate) fn finish_pending(&self) {
        let mut state = self.lock_state();
        state.is_unshared = true;
        state.hash_pending();
    }

    /// The hash of all bytes taken.
    pub(crate) fn finish(&self) -> [u8; 32] {
        let mut state = self.lock_state();
        state.hash_pending();
        std::mem::replace(&mut state.hash, Sha3::new()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_lanes_does_not_change_the_hash() {
        let bytes: Vec<u8> = (0..900_000_u32)
            .map(|n| n.to_le_bytes()[n as usize % 3])
            .collect();
        for parts in [1, 7, 40] {
            let hasher = SharedHasher::new(1 << 19);
            let mut other = Sha3::new();
            for (number, part) in bytes.chunks(bytes.len() / parts).enumerate() {
                hasher.update(part);
                let own = &bytes[..number * 1_000];
                hasher.update_with(&mut [(&mut other, own)]);
                if number == 30 {
                    hasher.finish_pending();
                }
            }
            assert_eq!(hasher.finish(), Sha3::digest(&bytes), "{parts} parts");
        }
    }

    #[test]
    fn pending_bytes_stay_below_the_limit() {
        let hasher = SharedHasher::new(1_000);
        let piece = vec![7; 501];
        let mut whole = Sha3::new();
        for _ in 0..3 {
            hasher.update(&piece);
            whole.update(&piece);
            assert!(hasher.lock_state().pending.len() <= 1_000);
        }
        assert_eq!(hasher.finish(), whole.finish());
    }
}
