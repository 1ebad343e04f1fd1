//! Calls of Attach that a Detach of their key has overtaken.
//!
//! A host that hears no answer to its Attach takes back whatever there is of the key. Both calls come on
//! one connection, in order, but each is served by a task of its own, and so the Detach may be first:
//! it finds nothing, and what the Attach would reserve then, nobody would ever give back.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{host::HostTime, model::AttachmentKey};

/// How long it is known that a key was given back. The calls that it overtook have come to the service
/// by then: their tasks only wait for a processor.
const MEMORY: Duration = Duration::from_secs(60);

/// Until when a host has given keys back, of the last minute. Used under the key's lock.
#[derive(Debug, Default)]
pub(super) struct Overtaken {
    given_back: HashMap<AttachmentKey, GivenBack>,
    /// In the order in which they are forgotten.
    noted: VecDeque<(Instant, AttachmentKey)>,
}

/// All of the key that its host asked for in that boot, until then.
#[derive(Debug)]
struct GivenBack {
    boot_id: String,
    until: HostTime,
    noted_at: Instant,
}

impl Overtaken {
    /// Notes that all is given back of a key that its host asked for in that boot until that time.
    pub(super) fn note(
        &mut self,
        key: &AttachmentKey,
        boot_id: String,
        until: HostTime,
        now: Instant,
    ) {
        self.forget_before(now);
        self.given_back.insert(key.clone(), GivenBack { boot_id, until, noted_at: now });
        self.noted.push_back((now, key.clone()));
    }

    /// Whether the key was given back since its host has asked for it. A host that does not tell when it
    /// asked is always served.
    pub(super) fn has(&self, key: &AttachmentKey, boot_id: &str, asked: HostTime) -> bool {
        let covers = |it: &GivenBack| it.boot_id == boot_id && asked <= it.until;
        asked != HostTime::default() && self.given_back.get(key).is_some_and(covers)
    }

    fn forget_before(&mut self, now: Instant) {
        let is_over = |(noted_at, _): &(Instant, _)| now.duration_since(*noted_at) >= MEMORY;
        let over = self.noted.iter().take_while(|noted| is_over(noted)).count();
        for (noted_at, key) in self.noted.drain(..over) {
            // Noted again since, it is in the line a second time.
            if self.given_back.get(&key).is_some_and(|entry| entry.noted_at == noted_at) {
                self.given_back.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(container_id: &str) -> AttachmentKey {
        AttachmentKey {
            host: crate::model::HostName("node-1".into()),
            container_id: container_id.into(),
            interface_name: "eth0".into(),
        }
    }

    #[test]
    fn a_key_is_forgotten_a_minute_after_it_was_given_back_last() {
        const BOOT: &str = "7d0c4ae0-0000-4000-8000-000000000001";
        let begun = Instant::now();
        let mut overtaken = Overtaken::default();
        let mut note = |container_id, until, after| {
            overtaken.note(&key(container_id), BOOT.to_owned(), HostTime(until), begun + after);
        };
        note("a", 1, Duration::ZERO);
        note("b", 1, Duration::ZERO);
        note("a", 3, MEMORY / 2);
        note("c", 1, MEMORY);
        assert!(overtaken.has(&key("a"), BOOT, HostTime(2)));
        assert!(!overtaken.has(&key("b"), BOOT, HostTime(1)));
        overtaken.note(&key("c"), BOOT.to_owned(), HostTime(2), begun + 3 * MEMORY);
        assert_eq!((overtaken.given_back.len(), overtaken.noted.len()), (1, 1));
    }
}
