//! A stream whose bytes another thread hashes in its free lanes, along with its own streams.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{Sha3, update_all};
use crate::sync::mutex;

/// The hash of a stream, shared by the thread that appends its bytes and a thread that has free lanes.
#[derive(Debug, Clone)]
pub(crate) struct SharedHasher {
    state: Arc<Mutex<SharedHasherState>>,
    max_pending_bytes: usize,
}

#[derive(Debug)]
struct SharedHasherState {
    hash: Sha3,
    pending: Vec<u8>,
    /// How many of the pending bytes are hashed already.
    hashed_bytes: usize,
    /// No thread has free lanes any more, so bytes are hashed as they come.
    is_unshared: bool,
}

impl SharedHasherState {
    fn hash_pending(&mut self) {
        self.hash.update(&self.pending[self.hashed_bytes..]);
        (self.pending, self.hashed_bytes) = (Vec::new(), 0);
    }
}

impl SharedHasher {
    /// Creates the hash of an empty stream, of which at most `max_pending_bytes` bytes wait for a lane.
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
        mutex::lock(&self.state)
    }

    /// Appends bytes to the stream. They wait for a lane if they fit into the limit, else they are hashed at once.
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

    /// Appends to each of `streams` its bytes, and hashes beside them as many pending bytes of this stream as the
    /// longest of them has: that takes no longer where a lane is free.
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
        // Drop the hashed bytes before there are more of them than of pending ones.
        if state.hashed_bytes >= state.pending.len() / 2 {
            state.pending.drain(..state.hashed_bytes);
            state.hashed_bytes = 0;
        }
    }

    /// Hashes the pending bytes, and from now on all bytes as they come.
    pub(crate) fn finish_pending(&self) {
        let mut state = self.lock_state();
        state.is_unshared = true;
        state.hash_pending();
    }

    /// The hash of all bytes of the stream, which is empty again after it.
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
