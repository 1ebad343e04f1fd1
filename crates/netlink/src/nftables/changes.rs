//! Differences between tables as element changes of their sets.

use std::{collections::BTreeSet, ffi::CStr};

use super::table::{Bytes, Element, Set, Table};

/// The element changes that turn one table into another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes(Vec<SetChange>);

/// The elements to delete from and to add to a set. Both lists are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetChange {
    /// Position of the set in the table.
    set: usize,
    pub(super) surplus: Vec<Element>,
    pub(super) missing: Vec<Element>,
}

impl Changes {
    fn of(changes: impl Iterator<Item = SetChange>) -> Self {
        let is_one = |change: &SetChange| !change.surplus.is_empty() || !change.missing.is_empty();
        Self(changes.filter(is_one).collect())
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pairs each change with its set, in the order of the table's sets.
    pub(super) fn by_set<S>(
        &self,
        sets: impl IntoIterator<Item = S>,
    ) -> impl Iterator<Item = (&SetChange, S)> {
        let mut changes = self.0.iter().peekable();
        let sets = sets.into_iter().enumerate();
        sets.filter_map(move |(number, set)| {
            changes.next_if(|change| change.set == number).map(|change| (change, set))
        })
    }
}

/// The elements of all sets with this name.
fn elements_of(sets: &[Set], name: &CStr) -> BTreeSet<Element> {
    let named = sets.iter().filter(|set| set.name == name);
    named.flat_map(|set| set.elements.iter().copied()).collect()
}

impl Table {
    /// Computes the changes that turn this table into `after`. `None` if the tables differ by more than elements of
    /// sets.
    #[must_use]
    pub fn changes_to(&self, after: &Self) -> Option<Changes> {
        let change = |(set, (old, new)): (usize, (&Set, &Set))| SetChange {
            set,
            surplus: old.lacking_in(new),
            missing: new.lacking_in(old),
        };
        let sets = self.sets.iter().zip(&after.sets).enumerate();
        self.is_shaped_like(after).then(|| Changes::of(sets.map(change)))
    }

    /// Computes the changes after which the sets contain the elements of `wanted` (sets of the same names) and no other
    /// element with a key of `wanted` or `concerned`.
    #[must_use]
    pub fn changes_among(&self, concerned: &[Set], wanted: &[Set]) -> Changes {
        let sets = self.sets.iter().enumerate();
        Changes::of(sets.map(|(number, set)| {
            let wanted = elements_of(wanted, set.name);
            let concerned = elements_of(concerned, set.name);
            let there = concerned.union(&wanted).filter_map(|element| set.with_key(element.key));
            let there: BTreeSet<_> = there.collect();
            SetChange {
                set: number,
                surplus: there.difference(&wanted).copied().collect(),
                missing: wanted.difference(&there).copied().collect(),
            }
        }))
    }

    /// Applies changes that the kernel has accepted for its own table.
    pub(super) fn apply(&mut self, changes: &Changes) {
        for (SetChange { surplus, missing, .. }, set) in changes.by_set(&mut self.sets) {
            if !surplus.is_empty() {
                set.elements.retain(|element| surplus.binary_search(element).is_err());
            }
            set.elements.extend(missing);
            // The stable sort merges sorted runs: a sorted set plus a few new elements costs one pass.
            set.elements.sort();
        }
    }

    /// Whether the tables are equal apart from elements of sets.
    fn is_shaped_like(&self, other: &Self) -> bool {
        let shapes = |table: &'_ Self| {
            let shape =
                |set: &Set| (set.name, set.key, set.value, set.is_of_packets, set.is_of_arp);
            table.sets.iter().map(shape).collect::<Vec<_>>()
        };
        self.name == other.name && self.chains == other.chains && shapes(self) == shapes(other)
    }
}

impl Set {
    fn with_key(&self, key: Bytes) -> Option<Element> {
        let place = self.elements.binary_search_by_key(&key, |element| element.key);
        place.ok().and_then(|place| self.elements.get(place)).copied()
    }

    /// Elements that `other` lacks or has with another value. Both sets are sorted, so one pass is enough.
    fn lacking_in(&self, other: &Self) -> Vec<Element> {
        let mut rest = other.elements.iter().peekable();
        let is_lacking = |element: &&Element| {
            while rest.next_if(|next| next < element).is_some() {}
            rest.next_if(|next| next == element).is_none()
        };
        self.elements.iter().filter(is_lacking).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{nftables::ProtocolPort, sysctl::Family};

    fn ports(of: impl IntoIterator<Item = (u16, u16)>) -> Set {
        let port = |(port, target)| {
            let target = SocketAddr::new([10, 0, 0, 2].into(), target);
            (ProtocolPort { protocol: 6, port }, target)
        };
        Set::from_ports(c"ports", Family::V4, of.into_iter().map(port))
    }

    #[test]
    fn sets_differ_by_missing_or_changed_elements() {
        let (one, other) = (ports([(3, 80), (1, 80), (2, 80)]), ports([(4, 80), (1, 80), (2, 81)]));
        assert_eq!(one.lacking_in(&other), ports([(2, 80), (3, 80)]).elements);
        assert_eq!(other.lacking_in(&one), ports([(2, 81), (4, 80)]).elements);
        assert_eq!(one.lacking_in(&one), []);
        assert_eq!(ports([(2, 80), (1, 80), (2, 80)]), ports([(1, 80), (2, 80)]));
    }

    fn table(of: impl IntoIterator<Item = (u16, u16)>) -> Table {
        Table::new("ours", vec![Set::of_links(c"links", []), ports(of)], Vec::new())
    }

    #[test]
    fn element_changes_produce_wanted_table() {
        let (before, after) =
            (table([(3, 80), (1, 80), (2, 80)]), table([(4, 80), (1, 80), (2, 81)]));
        let changes = before.changes_to(&after).unwrap();
        let mut changed = before.clone();
        changed.apply(&changes);
        assert_eq!(changed, after);
        assert!(changed.changes_to(&after).unwrap().is_empty());
        let other = Table::new("ours", vec![ports([])], Vec::new());
        assert_eq!(before.changes_to(&other), None);
    }

    #[test]
    fn changes_leave_other_keys_alone() {
        let before = table([(1, 80), (2, 80), (3, 80)]);
        let changes = before
            .changes_among(&[ports([(1, 90), (3, 80), (5, 80)])], &[ports([(2, 81), (3, 80)])]);
        let mut changed = before.clone();
        changed.apply(&changes);
        assert_eq!(changed, table([(2, 81), (3, 80)]));
        assert!(before.changes_among(&[], &[ports([(2, 80)])]).is_empty());
    }
}
