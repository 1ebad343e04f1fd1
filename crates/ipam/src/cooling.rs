//! Addresses in cool-down, in the order in which their cool-downs end.

use std::{collections::VecDeque, iter};

/// The numbers of addresses whose cool-down ends in the same second. Never empty.
#[derive(Debug)]
struct Batch {
    until: u64,
    numbers: Vec<u128>,
}

/// Addresses in cool-down. The batch that ends first is the first.
#[derive(Debug, Default)]
pub(crate) struct Cooling(VecDeque<Batch>);

impl Cooling {
    /// Adds an address until `until`. Fast if no other cool-down ends later.
    pub(crate) fn add(&mut self, number: u128, until: u64) {
        let is_last = self.0.back().is_none_or(|last| last.until <= until);
        let end = if is_last { self.0.len() } else { self.end_of(until) };
        match end.checked_sub(1).map(|last| &mut self.0[last]) {
            Some(last) if last.until == until => last.numbers.push(number),
            _ => self.0.insert(end, Batch { until, numbers: vec![number] }),
        }
    }

    /// The index after the batches that end at `now` or before.
    fn end_of(&self, now: u64) -> usize {
        self.0.partition_point(|batch| batch.until <= now)
    }

    /// Takes out the addresses whose cool-down is over at `now`.
    pub(crate) fn take_due(&mut self, now: u64) -> impl Iterator<Item = u128> {
        let next_due = move || {
            self.0.front().filter(|first| first.until <= now)?;
            self.0.pop_front()
        };
        iter::from_fn(next_due).flat_map(|batch| batch.numbers)
    }

    /// Shortens all cool-downs to `latest`, except endless ones: a clock that was ahead has set them.
    pub(crate) fn shorten(&mut self, latest: u64) {
        let mut late = self.0.split_off(self.end_of(latest));
        let is_forever = late.back().is_some_and(|last| last.until == u64::MAX);
        let forever = if is_forever { late.pop_back() } else { None };
        let numbers: Vec<_> = late.into_iter().flat_map(|batch| batch.numbers).collect();
        if !numbers.is_empty() {
            self.0.push_back(Batch { until: latest, numbers });
        }
        self.0.extend(forever);
    }

    /// When the first cool-down ends.
    pub(crate) fn first_end(&self) -> Option<u64> {
        self.0.front().map(|batch| batch.until)
    }

    /// Takes out the suitable address whose cool-down ends first, if it ends before that time.
    pub(crate) fn take_earliest(
        &mut self,
        ends_before: u64,
        is_suitable: impl Fn(u128) -> bool,
    ) -> Option<u128> {
        let batches = self.0.iter().take_while(|batch| batch.until < ends_before);
        let number = batches.flat_map(|batch| &batch.numbers).copied().find(|&n| is_suitable(n))?;
        self.remove(number);
        Some(number)
    }

    /// When an address's cool-down ends. Searches all addresses in cool-down.
    pub(crate) fn until(&self, number: u128) -> Option<u64> {
        let with_it = self.0.iter().find(|batch| batch.numbers.contains(&number));
        with_it.map(|batch| batch.until)
    }

    /// Takes an address out before its cool-down is over. Searches all addresses in cool-down.
    pub(crate) fn remove(&mut self, number: u128) {
        self.retain(|other| other != number);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(u128) -> bool) {
        self.0.retain_mut(|batch| {
            batch.numbers.retain(|&number| keep(number));
            !batch.numbers.is_empty()
        });
    }

    /// The number of addresses still in cool-down at `now`.
    pub(crate) fn count(&self, now: u64) -> usize {
        self.0.range(self.end_of(now)..).map(|batch| batch.numbers.len()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u128> {
        self.0.iter().flat_map(|batch| &batch.numbers).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_over_at_its_end() {
        let mut cooling = Cooling::default();
        for (number, until) in [(1, 10), (2, 20), (3, 10)] {
            cooling.add(number, until);
        }
        assert_eq!(cooling.take_due(9).count(), 0);
        assert_eq!(cooling.take_due(10).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((cooling.first_end(), cooling.count(0)), (Some(20), 1));
    }
}
