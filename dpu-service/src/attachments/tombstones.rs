//! Tombstones of detached keys.
//!
//! An agent that gets no answer to its Attach sends a Detach of the same key. Both calls arrive on one connection in
//! order, but each is served by its own task, so the Detach may run first. It finds nothing, and an Attach that ran
//! afterwards would make an attachment that no host ever detaches. The tombstone refuses that Attach.

use std::{
    collections::HashMap,
    mem,
    time::{Duration, Instant},
};

use crate::host::HostTime;
use model::{AttachmentKey, HostName};

/// How long a tombstone is kept at least. An overtaken call has reached the service before the Detach: it waits only
/// for a processor and the key's lock.
const MEMORY: Duration = Duration::from_secs(60);

/// Maximum tombstones of one generation of one host. A host that detaches more loses its oldest: no host uses another's
/// share.
const MOST_KEYS: usize = 8192;

/// Detached keys of each host, each with the host's time of the Detach. Used under the key's lock.
#[derive(Debug, Default)]
pub(super) struct Tombstones(HashMap<HostName, OfHost>);

/// Two generations: a key in neither was detached more than [`MEMORY`] ago, or has made room for newer ones.
#[derive(Debug)]
struct OfHost {
    /// The boot whose clock the times use.
    boot_id: String,
    newer: HashMap<AttachmentKey, HostTime>,
    /// When the newer generation began.
    since: Instant,
    older: HashMap<AttachmentKey, HostTime>,
}

impl Tombstones {
    /// Adds a tombstone: Attaches of the key that the host sent in this boot until `until` are refused.
    pub(super) fn note(
        &mut self,
        key: &AttachmentKey,
        boot_id: &str,
        until: HostTime,
        now: Instant,
    ) {
        let of_host = self.0.entry(key.host.clone());
        let of_host = of_host.or_insert_with(|| OfHost::new(boot_id, now));
        if of_host.boot_id != boot_id {
            *of_host = OfHost::new(boot_id, now);
        }
        of_host.note(key, until, now);
    }

    /// Whether the key was detached after the host sent its Attach at `asked`. An Attach without a time is always
    /// served.
    pub(super) fn has(&self, key: &AttachmentKey, boot_id: &str, asked: HostTime) -> bool {
        let of_boot = self.0.get(&key.host).filter(|of_host| of_host.boot_id == boot_id);
        let until = of_boot.and_then(|of_host| of_host.until(key));
        asked != HostTime::default() && until.is_some_and(|until| asked <= until)
    }
}

impl OfHost {
    fn new(boot_id: &str, since: Instant) -> Self {
        let (newer, older) = (HashMap::new(), HashMap::new());
        Self { boot_id: boot_id.to_owned(), newer, since, older }
    }

    fn note(&mut self, key: &AttachmentKey, until: HostTime, now: Instant) {
        // Hosts repeat calls: a repeated Detach may carry an earlier time.
        let until = self.until(key).map_or(until, |known| known.max(until));
        if now.duration_since(self.since) >= MEMORY || self.newer.len() >= MOST_KEYS {
            self.older = mem::take(&mut self.newer);
            self.since = now;
        }
        self.newer.insert(key.clone(), until);
    }

    fn until(&self, key: &AttachmentKey) -> Option<HostTime> {
        self.newer.get(key).or_else(|| self.older.get(key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "7d0c4ae0-0000-4000-8000-000000000001";

    fn key(container_id: &str) -> AttachmentKey {
        AttachmentKey {
            host: HostName("node-1".into()),
            container_id: container_id.into(),
            interface_name: "eth0".into(),
        }
    }

    #[test]
    fn tombstone_lasts_a_minute_after_the_last_detach() {
        let begun = Instant::now();
        let mut tombstones = Tombstones::default();
        let mut note = |container_id, until, after| {
            tombstones.note(&key(container_id), BOOT, HostTime(until), begun + after);
        };
        note("a", 1, Duration::ZERO);
        note("b", 1, Duration::ZERO);
        note("a", 3, MEMORY);
        note("a", 2, MEMORY);
        note("c", 1, 2 * MEMORY);
        assert!(tombstones.has(&key("a"), BOOT, HostTime(3)), "an earlier time changes nothing");
        assert!(!tombstones.has(&key("a"), BOOT, HostTime(4)));
        assert!(!tombstones.has(&key("b"), BOOT, HostTime(1)));
        tombstones.note(&key("c"), "another boot", HostTime(1), begun + 2 * MEMORY);
        assert!(!tombstones.has(&key("a"), BOOT, HostTime(3)));
    }

    #[test]
    fn tombstones_of_a_host_are_bounded() {
        let (mut tombstones, now) = (Tombstones::default(), Instant::now());
        for number in 0..3 * MOST_KEYS {
            tombstones.note(&key(&number.to_string()), BOOT, HostTime(1), now);
        }
        let of_host = &tombstones.0[&key("a").host];
        assert!(of_host.newer.len() <= MOST_KEYS && of_host.older.len() <= MOST_KEYS);
        let last = 3 * MOST_KEYS - 1;
        assert!(tombstones.has(&key(&last.to_string()), BOOT, HostTime(1)));
        assert!(!tombstones.has(&key("0"), BOOT, HostTime(1)));
    }
}
