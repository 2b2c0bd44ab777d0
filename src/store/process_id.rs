//! Which process something belongs to, and whether that process still lives.
//!
//! A process is told by its host's boot, its process namespace, its number and its start time, so
//! that a number used again is another process. What another host wrote is never judged.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The host's boot and the process namespace; empty where they cannot be told.
    pub host: String,
    /// The process's number.
    pub pid: u32,
    /// When it started, in the kernel's ticks.
    pub started: u64,
}

impl ProcessId {
    /// This process.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self {
            host: host().unwrap_or_default(),
            pid,
            started: start_time(pid).unwrap_or_default(),
        }
    }

    /// Whether it certainly runs no more: only what the kernel says of this host's processes is proof.
    pub fn is_dead(&self) -> bool {
        let is_same_host = !self.host.is_empty() && host().as_ref() == Some(&self.host);
        is_same_host
            && is_proven_dead(
                self.started,
                process_exists(self.pid),
                read_stat(self.pid).as_deref(),
            )
    }

    /// Whether it is this process, as far as names tell.
    pub fn is_current(&self) -> bool {
        !self.host.is_empty() && *self == Self::current()
    }

    /// A piece of a file name that tells the process.
    pub fn tag(&self) -> String {
        let host_hash = super::cas::content_tag(self.host.as_bytes());
        let short_host = host_hash.trim_start_matches("content-");
        format!("{:.8}-{:x}-{:x}", short_host, self.pid, self.started)
    }

    /// Whether the process a tag tells of certainly runs no more.
    pub fn is_stale_tag(tag: &str) -> bool {
        Self::from_tag(tag).is_some_and(|owner| owner.is_dead())
    }

    /// Whether the process a tag tells of runs on this host, and is not this one.
    pub fn is_tag_of_other_process(tag: &str) -> bool {
        Self::from_tag(tag).is_some_and(|owner| !owner.is_current() && !owner.is_dead())
    }

    /// The process of this host that a tag tells of.
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

/// Whether the kernel has a process of this number. Not being allowed to signal it is a yes.
fn process_exists(pid: u32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    number.is_none_or(|number| test_kill_process(number) != Err(rustix::io::Errno::SRCH))
}

/// `/proc/PID/stat`; None for any reason, be it that others' processes are hidden.
fn read_stat(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// State and start time.
fn parse_stat(stat: &str) -> Option<(&str, u64)> {
    // The name, in parentheses, may hold anything; state is the first field after it, start the 20th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?, fields.nth(18)?.parse().ok()?))
}

/// Whether a process that started at `started` is gone: nobody has its number, another process has it, or it was
/// killed and waits for its parent.
fn is_proven_dead(started: u64, exists: bool, stat: Option<&str>) -> bool {
    if !exists {
        return true;
    }
    let Some((state, current)) = stat.and_then(parse_stat) else {
        return false;
    };
    // Zero stands for a process that could not read its own start time.
    matches!(state, "Z" | "X") || (started != 0 && started != current)
}

/// When a process started.
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
            // Hidden from us (hidepid), out of descriptors, or nothing that is understood.
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
            "it could not tell when it started"
        );
        // The first process of all is not ours to signal, or at least not dead.
        assert!(process_exists(1) && !process_exists(i32::MAX.cast_unsigned()));
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
        // Killed and not yet waited for, then gone.
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
