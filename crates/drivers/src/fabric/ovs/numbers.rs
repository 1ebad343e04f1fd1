//! The OpenFlow numbers of ports. Each port requests a fixed number, so it has the same one after a reset of its
//! card or a restart of the daemon.

use std::collections::BTreeSet;

use ovsdb::Replica;
use parking_lot::Mutex;

use super::rows::INTERFACE;

/// The daemon chooses numbers below for ports that request none. OpenFlow 1.0 has no ports above.
const NUMBERS: std::ops::RangeInclusive<u32> = 1_000..=HIGHEST;

/// The highest of them.
pub(super) const HIGHEST: u32 = 0xfeff;

/// The numbers that calls in progress hold. Such a number is not in the database yet, or its port has left and
/// flows of it remain. Another port with it would get these flows.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    held: Mutex<BTreeSet<u32>>,
}

/// A number that no other call can choose until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    numbers: &'a Numbers,
    pub(super) number: u32,
}

impl Numbers {
    /// The lowest number that no port has or requests. `None`: all are in use.
    pub(super) fn choose(&self, replica: &Replica) -> Option<Held<'_>> {
        let columns = ["ofport", "ofport_request"];
        let of_row = |row: &ovsdb::Row| columns.map(|column| row.integer(column));
        let taken = replica.rows(INTERFACE).flat_map(of_row).flatten();
        let taken: BTreeSet<u32> = taken.filter_map(|number| number.try_into().ok()).collect();
        let mut held = self.held.lock();
        let mut free = NUMBERS.filter(|number| !taken.contains(number) && !held.contains(number));
        let number = free.next()?;
        held.insert(number);
        Some(Held { numbers: self, number })
    }

    /// Holds a number. `None`: another call holds it.
    pub(super) fn hold(&self, number: u32) -> Option<Held<'_>> {
        let is_free = self.held.lock().insert(number);
        is_free.then(|| Held { numbers: self, number })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.numbers.held.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_has_one_holder_at_a_time() {
        let numbers = Numbers::default();
        let held = numbers.hold(1000).unwrap();
        assert!(numbers.hold(1000).is_none());
        assert!(numbers.hold(1000).is_none(), "who did not get it has not given it back");
        assert!(numbers.hold(1001).is_some());
        drop(held);
        assert!(numbers.hold(1000).is_some());
    }
}
