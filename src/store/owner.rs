//! Which process something belongs to, and whether that process still lives.
//!
//! A process is told by its host's boot, its process namespace, its number and its start time, so
//! that a number used again is another process. What another host wrote is never judged.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The host's boot and the process namespace; empty where they cannot be told.
    pub host: String,
    /// The process's number.
    pub pid: u32,
    /// When it started, in the kernel's ticks.
    pub started: u64,
}

impl Owner {
    /// This process.
    pub fn me() -> Self {
        let pid = std::process::id();
        Self {
            host: host().unwrap_or_default(),
            pid,
            started: started(pid).unwrap_or_default(),
        }
    }

    /// Whether it certainly runs no more.
    pub fn is_dead(&self) -> bool {
        let here = !self.host.is_empty() && host().as_ref() == Some(&self.host);
        here && started(self.pid) != Some(self.started)
    }

    /// Whether it is this process.
    pub fn is_me(&self) -> bool {
        *self == Self::me()
    }

    /// A piece of a file name that tells the process.
    pub fn tag(&self) -> String {
        let host = super::cas::content_tag(self.host.as_bytes());
        let host = host.trim_start_matches("content-");
        format!("{:.8}-{:x}-{:x}", host, self.pid, self.started)
    }

    /// Whether the process a tag tells of certainly runs no more.
    pub fn tag_is_dead(tag: &str) -> bool {
        let mut pieces = tag.split('-');
        let (Some(host), Some(pid), Some(started)) = (pieces.next(), pieces.next(), pieces.next())
        else {
            return false;
        };
        let mine = Self::me();
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (Some(pid), Some(started)) = (
            number(pid).and_then(|n| u32::try_from(n).ok()),
            number(started),
        ) else {
            return false;
        };
        let same_host = !mine.host.is_empty() && mine.tag().split('-').next() == Some(host);
        let owner = Self {
            host: mine.host,
            pid,
            started,
        };
        same_host && owner.is_dead()
    }
}

fn host() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.display()))
}

/// The start time of a living process; a killed one that nobody has waited for is not living.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; state is the first field after it, start the 20th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_living_from_the_dead() {
        let me = Owner::me();
        assert!(me.is_me() && !me.is_dead() && !Owner::tag_is_dead(&me.tag()));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let other = Owner {
            pid: child.id(),
            started: started(child.id()).unwrap(),
            ..me.clone()
        };
        assert!(!other.is_dead());
        child.kill().unwrap();
        // Killed and not yet waited for, then gone.
        while !other.is_dead() {}
        assert!(Owner::tag_is_dead(&other.tag()));
        child.wait().unwrap();
        assert!(other.is_dead());
        let reused = Owner {
            started: 1,
            ..me.clone()
        };
        assert!(reused.is_dead());
        let elsewhere = Owner {
            host: "other".to_owned(),
            ..reused
        };
        assert!(!elsewhere.is_dead());
    }
}
