//! The identity of a process, and whether that process still runs.
//!
//! A [`ProcessId`] consists of the boot id and the process namespace of the host, the pid and the start time, so that a
//! reused pid is another process. Its [`ProcessId::tag`] goes into the names of hidden files. Only the kernel of this
//! host proves a process dead: processes of other hosts, and all processes where `/proc` cannot be read, never count
//! as dead. macOS has no `/proc`: there a publish that was abandoned is taken over when its lease ends, and hidden files
//! are removed by their age.

use std::fs;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::content_tag::content_tag;
use crate::sync::fork;

/// A process on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The boot id and the process namespace of the host; empty if they cannot be read.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The start time in clock ticks since the boot; 0 if it cannot be read.
    pub started: u64,
}

impl ProcessId {
    /// This process. Read once, and anew in a forked child.
    pub fn current() -> Self {
        // With the generation: a pid may have been an ancestor's.
        static CURRENT: Mutex<Option<(usize, ProcessId)>> = Mutex::new(None);
        let (generation, pid) = (fork::generation(), std::process::id());
        let known = fork::lock(&CURRENT).clone();
        if let Some((_, current)) = known.filter(|k| k.0 == generation && k.1.pid == pid) {
            return current;
        }
        let current = Self {
            host: host().unwrap_or_default(),
            pid,
            started: start_time(pid).unwrap_or_default(),
        };
        // A process that has no file descriptor left now may have one later.
        if !current.host.is_empty() && current.started != 0 {
            *fork::lock(&CURRENT) = Some((generation, current.clone()));
        }
        current
    }

    /// Whether the process has certainly ended. False for a process of another host.
    pub fn is_dead(&self) -> bool {
        let is_same_host = !self.host.is_empty() && host().as_ref() == Some(&self.host);
        is_same_host
            && is_proven_dead(
                self.started,
                process_exists(self.pid),
                read_stat(self.pid).as_deref(),
            )
    }

    /// Whether it is this process; false if the host cannot be read.
    pub fn is_current(&self) -> bool {
        !self.host.is_empty() && *self == Self::current()
    }

    /// A part of a file name that identifies the process: a hash of the host, the pid and the start time, in hex.
    pub fn tag(&self) -> String {
        let host_hash = content_tag(self.host.as_bytes());
        let short_host = host_hash.trim_start_matches("content-");
        format!("{:.8}-{:x}-{:x}", short_host, self.pid, self.started)
    }

    /// Whether the process that `tag` names has certainly ended. False for any other text.
    pub fn is_stale_tag(tag: &str) -> bool {
        Self::from_tag(tag).is_some_and(|owner| owner.is_dead())
    }

    /// Whether `tag` names a process of this host that is not proven dead.
    pub fn is_live_tag(tag: &str) -> bool {
        Self::from_tag(tag).is_some_and(|owner| !owner.is_dead())
    }

    /// Whether `tag` names another process of this host that is not proven dead.
    pub fn is_tag_of_other_process(tag: &str) -> bool {
        Self::from_tag(tag).is_some_and(|owner| !owner.is_current() && !owner.is_dead())
    }

    /// The process that `tag` names, if it is one of this host.
    fn from_tag(tag: &str) -> Option<Self> {
        let mut fields = tag.split('-');
        let (host, pid, started) = (fields.next()?, fields.next()?, fields.next()?);
        let current = Self::current();
        let same_host = !current.host.is_empty() && current.tag().split('-').next() == Some(host);
        let owner = Self {
            host: current.host,
            pid: u32::from_str_radix(pid, 16).ok()?,
            started: u64::from_str_radix(started, 16).ok()?,
        };
        same_host.then_some(owner)
    }
}

fn host() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.display()))
}

/// Whether the kernel has a process of this pid. One that may not be signalled exists.
fn process_exists(pid: u32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    number.is_none_or(|number| test_kill_process(number) != Err(rustix::io::Errno::SRCH))
}

/// `/proc/PID/stat`; None if it cannot be read for any reason, such as `/proc` hiding the processes of others.
fn read_stat(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// The state and the start time in `/proc/PID/stat`.
fn parse_stat(stat: &str) -> Option<(&str, u64)> {
    // The name, in parentheses, may hold any bytes; the state is the first field after it, the start time the 20th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?, fields.nth(18)?.parse().ok()?))
}

/// Whether a process that started at `started` has ended: no process has its pid, another one has it, or it is a
/// zombie that waits for its parent.
fn is_proven_dead(started: u64, exists: bool, stat: Option<&str>) -> bool {
    if !exists {
        return true;
    }
    let Some((state, current)) = stat.and_then(parse_stat) else {
        return false;
    };
    // A process that could not read its own start time has 0.
    matches!(state, "Z" | "X") || (started != 0 && started != current)
}

/// The start time of a process, in clock ticks since the boot.
fn start_time(pid: u32) -> Option<u64> {
    read_stat(pid)
        .as_deref()
        .and_then(parse_stat)
        .map(|(_, started)| started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_proof_counts() {
        let stat = |state, started| {
            let fields = "0 ".repeat(18);
            Some(format!("7 (a) b) {state} {fields}{started} 0 0"))
        };
        for (exists, stat, dead) in [
            (false, None, true),
            (true, stat("S", 5), false),
            (true, stat("Z", 5), true),
            (true, stat("X", 5), true),
            (true, stat("R", 6), true),
            // Hidden by hidepid, no free file descriptor, or text that cannot be parsed.
            (true, None, false),
            (true, Some(String::new()), false),
            (true, Some("7 (a) S 0".to_owned()), false),
        ] {
            assert_eq!(
                is_proven_dead(5, exists, stat.as_deref()),
                dead,
                "{exists} {stat:?}"
            );
        }
        assert!(
            !is_proven_dead(0, true, stat("S", 5).as_deref()),
            "the start time is unknown"
        );
        // Process 1 exists, whether or not this process may signal it.
        assert!(process_exists(1) && !process_exists(i32::MAX.cast_unsigned()));
    }

    #[test]
    fn without_a_host_nothing_is_proven() {
        // What a process reads of itself where there is no `/proc`.
        let nobody = |pid| ProcessId {
            host: String::new(),
            pid,
            started: 0,
        };
        for pid in [std::process::id(), i32::MAX.cast_unsigned()] {
            let process = nobody(pid);
            let tag = process.tag();
            assert!(!process.is_current() && !process.is_dead(), "{process:?}");
            assert!(!ProcessId::is_stale_tag(&tag) && !ProcessId::is_tag_of_other_process(&tag));
        }
        assert_ne!(nobody(1).tag(), nobody(2).tag());
    }

    #[test]
    fn tells_the_living_from_the_dead() {
        let current = ProcessId::current();
        assert!(
            current.is_current() && !current.is_dead() && !ProcessId::is_stale_tag(&current.tag())
        );
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let other = ProcessId {
            pid: child.id(),
            started: start_time(child.id()).unwrap(),
            ..current.clone()
        };
        assert!(!other.is_dead());
        child.kill().unwrap();
        // A killed process is a zombie until its parent waits for it.
        while !other.is_dead() {}
        assert!(ProcessId::is_stale_tag(&other.tag()));
        child.wait().unwrap();
        assert!(other.is_dead());
        let reused = ProcessId {
            started: 1,
            ..current.clone()
        };
        assert!(reused.is_dead());
        let elsewhere = ProcessId {
            host: "other".to_owned(),
            ..reused
        };
        assert!(!elsewhere.is_dead());
    }
}
