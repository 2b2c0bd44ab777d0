//! A stream whose bytes another thread hashes along with its own, where lanes are free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Sha3, update_all};

/// The hash of a stream, shared by who brings its bytes and who has lanes for them.
#[derive(Debug, Clone)]
pub(crate) struct Passenger {
    seat: Arc<Mutex<Seat>>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct Seat {
    hash: Sha3,
    waiting: Vec<u8>,
    /// Of those that wait, so many are hashed.
    done: usize,
    /// Nobody has a lane any more.
    is_alone: bool,
}

impl Seat {
    fn hash_waiting(&mut self) {
        self.hash.update(&self.waiting[self.done..]);
        (self.waiting, self.done) = (Vec::new(), 0);
    }
}

impl Passenger {
    /// Of whose bytes at most so many wait for a lane.
    pub(crate) fn new(waiting_bytes: usize) -> Self {
        let seat = Seat {
            hash: Sha3::new(),
            waiting: Vec::new(),
            done: 0,
            is_alone: false,
        };
        Self {
            seat: Arc::new(Mutex::new(seat)),
            waiting_bytes,
        }
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes.
    pub(crate) fn update(&self, bytes: &[u8]) {
        let mut seat = self.seat();
        if seat.waiting.len() - seat.done + bytes.len() > self.waiting_bytes {
            seat.hash_waiting();
        }
        if seat.is_alone || bytes.len() > self.waiting_bytes {
            seat.hash.update(bytes);
        } else {
            seat.waiting.extend_from_slice(bytes);
        }
    }

    /// Streams take their bytes, and this one as many of those that wait as cost no time.
    pub(crate) fn ride_along(&self, streams: &mut [(&mut Sha3, &[u8])]) {
        let longest = streams.iter().map(|(_, bytes)| bytes.len()).max();
        let mut seat = self.seat();
        let seat = &mut *seat;
        let end = seat.waiting.len().min(seat.done + longest.unwrap_or(0));
        let own = streams
            .iter_mut()
            .map(|(hash, bytes)| (&mut **hash, *bytes));
        let along = (&mut seat.hash, &seat.waiting[seat.done..end]);
        update_all(&mut own.chain([along]).collect::<Vec<_>>());
        seat.done = end;
        // Those that are done are let go before they are more than those that wait.
        if seat.done >= seat.waiting.len() / 2 {
            seat.waiting.drain(..seat.done);
            seat.done = 0;
        }
    }

    /// From now on nobody else has a lane; what waits is hashed.
    pub(crate) fn go_alone(&self) {
        let mut seat = self.seat();
        seat.is_alone = true;
        seat.hash_waiting();
    }

    /// The hash of all bytes taken.
    pub(crate) fn finish(&self) -> [u8; 32] {
        let mut seat = self.seat();
        seat.hash_waiting();
        std::mem::replace(&mut seat.hash, Sha3::new()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn riding_along_changes_no_hash() {
        let bytes: Vec<u8> = (0..900_000_u32)
            .map(|n| n.to_le_bytes()[n as usize % 3])
            .collect();
        for parts in [1, 7, 40] {
            let passenger = Passenger::new(1 << 19);
            let mut other = Sha3::new();
            for (number, part) in bytes.chunks(bytes.len() / parts).enumerate() {
                passenger.update(part);
                let own = &bytes[..number * 1_000];
                passenger.ride_along(&mut [(&mut other, own)]);
                if number == 30 {
                    passenger.go_alone();
                }
            }
            assert_eq!(passenger.finish(), Sha3::of(&bytes), "{parts} parts");
        }
    }

    #[test]
    fn not_more_than_the_limit_waits() {
        let passenger = Passenger::new(1_000);
        let piece = vec![7; 501];
        let mut whole = Sha3::new();
        for _ in 0..3 {
            passenger.update(&piece);
            whole.update(&piece);
            assert!(passenger.seat().waiting.len() <= 1_000);
        }
        assert_eq!(passenger.finish(), whole.finish());
    }
}
