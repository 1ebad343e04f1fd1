//! The locks of attachments that come and go together: of one that leads, and of those that it leads.

use std::collections::BTreeSet;

use keyed_locks::Held;

use super::doors::Doors;
use crate::protocol::Key;

/// The keys of attachments that come and go together, locked.
#[must_use = "they are locked only as long as this is"]
pub(super) struct LockedKeys {
    names: BTreeSet<Key>,
    _held: Vec<Held>,
}

impl LockedKeys {
    /// The keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &Key> {
        self.names.iter()
    }
}

/// Who wants the locks.
#[derive(Clone, Copy)]
enum For {
    Add,
    Other,
}

/// Waits for the locks of a key and of those that its attachment leads.
pub(super) async fn lock(doors: &Doors, lead: &Key) -> LockedKeys {
    lock_for(For::Other, doors, lead, BTreeSet::from([lead.clone()])).await
}

/// Locks the keys of an ADD: its group key and those that it names.
pub(super) async fn lock_for_add(doors: &Doors, lead: &Key, named: BTreeSet<Key>) -> LockedKeys {
    lock_for(For::Add, doors, lead, named).await
}

/// Which ones are led is known for sure only once they are locked.
async fn lock_for(who: For, doors: &Doors, lead: &Key, named: BTreeSet<Key>) -> LockedKeys {
    let mut names = named;
    names.extend(led_by(doors, lead));
    loop {
        let held = match who {
            For::Add => doors.vfs.keys().lock_all_for_add(&names).await,
            For::Other => doors.vfs.keys().lock_all(&names).await,
        };
        let led = led_by(doors, lead);
        if led.is_subset(&names) {
            return LockedKeys { names, _held: held };
        }
        names.extend(led);
    }
}

fn led_by(doors: &Doors, lead: &Key) -> BTreeSet<Key> {
    let records = doors.vfs.records().led_by(lead);
    let delegated = doors.delegates.led_by(lead);
    let delegated = delegated.iter().map(|one| one.key.clone());
    records.iter().map(|record| record.key()).chain(delegated).collect()
}
