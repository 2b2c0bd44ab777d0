//! What finished probes have proved about servers, for all stores of the process.
//!
//! Calls by URL open a store each, and a probe costs more requests than a small write. The key of an entry says which
//! server and bucket a store sees, and as whom ([`ConditionalStore::probe_key`](super::ConditionalStore::probe_key)).
//! An entry is used for [`MAX_AGE`], and forgotten by the first store that meets an answer which contradicts it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::condition::ConditionSupport;
use crate::sync::fork;

/// How long a proof is used. Another server may take the place of one that was probed, and nothing in its answers to
/// conditions that hold tells them apart. This is long enough for the calls of a job, and short beside the life of a
/// store's handle, for which its own probe holds.
const MAX_AGE: Duration = Duration::from_mins(5);
/// How many proofs are kept; a process with more servers, buckets and users probes some of them more often.
const MAX_ENTRIES: usize = 64;

#[derive(Debug, Clone, Copy)]
struct ProbeEntry {
    /// None where an answer contradicted it: probes that began before prove nothing.
    support: Option<ConditionSupport>,
    /// When the probe began, or the answer came, by the clock's monotonic time.
    probed_at: Duration,
}

/// The entries by their keys. They are facts about servers and no connections, so a forked child uses its parent's.
#[derive(Debug, Default)]
struct ProbeMemory {
    entries: BTreeMap<String, ProbeEntry>,
}

static MEMORY: Mutex<ProbeMemory> = Mutex::new(ProbeMemory {
    entries: BTreeMap::new(),
});

/// What a store knows of the conditions that its server honors, and where from.
#[derive(Debug, Clone)]
pub(super) struct LearnedConditions {
    pub(super) support: ConditionSupport,
    /// The key of the entry that says so, too.
    pub(super) key: Option<String>,
    /// Whether another store's probe proved it.
    pub(super) is_remembered: bool,
}

impl ProbeEntry {
    /// Whether it can be used at `time`. A time before it is that of another clock.
    fn is_fresh(&self, time: Duration) -> bool {
        time.checked_sub(self.probed_at)
            .is_some_and(|age| age < MAX_AGE)
    }
}

impl ProbeMemory {
    fn recall(&self, key: &str, time: Duration) -> Option<ConditionSupport> {
        let entry = self.entries.get(key)?;
        entry.support.filter(|_| entry.is_fresh(time))
    }

    fn remember(&mut self, key: String, entry: ProbeEntry) {
        // Probes end in another order than they begin, so others may be newer.
        self.entries
            .retain(|_, other| entry.probed_at.saturating_sub(other.probed_at) < MAX_AGE);
        let other = self.entries.get(&key);
        if other.is_some_and(|other| other.probed_at > entry.probed_at) {
            return;
        }
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.probed_at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, entry);
    }
}

/// What a probe proved under this key, if that is not too long ago at `time`.
pub(super) fn recall(key: &str, time: Duration) -> Option<ConditionSupport> {
    fork::lock(&MEMORY).recall(key, time)
}

/// Remembers what a probe proved that began at `probed_at`.
pub(super) fn remember(key: String, support: ConditionSupport, probed_at: Duration) {
    let entry = ProbeEntry {
        support: Some(support),
        probed_at,
    };
    fork::lock(&MEMORY).remember(key, entry);
}

/// Has the next store under this key probe its server, after an answer at `time`. Probes under way are not remembered.
pub(super) fn forget(key: &str, time: Duration) {
    let entry = ProbeEntry {
        support: None,
        probed_at: time,
    };
    fork::lock(&MEMORY).remember(key.to_owned(), entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seconds: u64) -> ProbeEntry {
        ProbeEntry {
            support: Some(ConditionSupport::NONE),
            probed_at: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn a_proof_is_used_for_five_minutes() {
        let mut memory = ProbeMemory::default();
        memory.remember("a".to_owned(), entry(1000));
        for (seconds, is_known) in [(999, false), (1000, true), (1299, true), (1300, false)] {
            let recalled = memory.recall("a", Duration::from_secs(seconds));
            assert_eq!(recalled.is_some(), is_known, "{seconds}");
        }
        assert_eq!(memory.recall("b", Duration::from_secs(1000)), None);
        memory.remember("b".to_owned(), entry(1300));
        assert_eq!(memory.entries.len(), 1, "what is too old goes");
    }

    #[test]
    fn a_probe_that_ends_late_is_not_taken_for_a_new_one() {
        let mut memory = ProbeMemory::default();
        let at = Duration::from_secs;
        memory.remember("other".to_owned(), entry(1001));
        let contradiction = ProbeEntry {
            support: None,
            ..entry(1002)
        };
        memory.remember("a".to_owned(), contradiction);
        memory.remember("a".to_owned(), entry(1000));
        assert_eq!(memory.recall("a", at(1003)), None);
        assert!(memory.recall("other", at(1003)).is_some());
        memory.remember("a".to_owned(), entry(1003));
        assert!(memory.recall("a", at(1003)).is_some());
    }

    #[test]
    fn the_oldest_proof_goes_where_there_are_too_many() {
        let mut memory = ProbeMemory::default();
        for number in 0..MAX_ENTRIES {
            let seconds = 1000 + u64::try_from(number).unwrap();
            memory.remember(number.to_string(), entry(seconds));
        }
        memory.remember("0".to_owned(), entry(1100));
        assert_eq!(memory.entries.len(), MAX_ENTRIES);
        memory.remember("one more".to_owned(), entry(1101));
        assert_eq!(memory.entries.len(), MAX_ENTRIES);
        assert!(!memory.entries.contains_key("1"));
        assert!(memory.entries.contains_key("0"));
    }
}
