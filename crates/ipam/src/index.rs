//! From hashes to places: a hash table that is full.
//!
//! The usual open-addressing table leaves an eighth to a half of its room empty and, when it grows,
//! moves everything at once. This one is made of segments of some hundred entries. Linear hashing
//! splits or joins one segment at a time, so that no call has much to move.

use std::collections::BTreeSet;

use crate::segment::{Group, Place, Segment};

/// How many entries a segment has on average. More: less room for the segments' own fields. Fewer:
/// less to move when an entry is put into the middle.
const ENTRIES_PER_SEGMENT: usize = 256;

/// How many of a segment's cache lines change with one entry, at most; of large segments, not all.
const LINES_TO_CHANGE: usize = 10;

/// A row of segments; in rows, so that the list of segments never has to be moved as a whole.
const SEGMENTS_PER_ROW: usize = 1024;

/// Places by hash. Entries of the same hash are told apart by the caller.
#[derive(Debug)]
pub(crate) struct Index {
    rows: Vec<Vec<Segment>>,
    segments: usize,
    entries: usize,
    /// Hashes and places for which there was no room in their group: a handful among millions.
    excess: BTreeSet<(u64, Place)>,
}

/// Where an entry of `hash` would be. Any change to the index invalidates it.
#[derive(Debug)]
pub(crate) struct Gap {
    hash: u64,
    segment: usize,
    group: Group,
}

/// An entry that is there. Any change to the index invalidates it.
#[derive(Debug)]
pub(crate) struct Entry {
    around: Gap,
    /// `None`: it is in excess.
    position: Option<usize>,
    pub(crate) place: Place,
}

impl Index {
    pub(crate) fn new() -> Self {
        let rows = vec![vec![Segment::new(0, 1)]];
        Self { rows, segments: 1, entries: 0, excess: BTreeSet::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries
    }

    /// Lets the memory fetch what a look at the entry of `hash` takes.
    pub(crate) fn prepare_look(&self, hash: u64) {
        self.segment(self.segment_of(hash)).fetch(hash, 0);
    }

    /// Lets the memory fetch what a change of the entry of `hash` takes.
    pub(crate) fn prepare_change(&self, hash: u64) {
        self.segment(self.segment_of(hash)).fetch(hash, LINES_TO_CHANGE);
    }

    /// The entry of `hash` whose place is wanted, or the gap to put one into.
    pub(crate) fn find(&self, hash: u64, is_wanted: impl Fn(Place) -> bool) -> Result<Entry, Gap> {
        let number = self.segment_of(hash);
        let segment = self.segment(number);
        let group = segment.group(hash);
        let around = Gap { hash, segment: number, group };
        for position in segment.candidates(group, hash) {
            let place = segment.place(position);
            if is_wanted(place) {
                return Ok(Entry { around, position: Some(position), place });
            }
        }
        match self.find_in_excess(hash, is_wanted) {
            Some(place) => Ok(Entry { around, position: None, place }),
            None => Err(around),
        }
    }

    fn find_in_excess(&self, hash: u64, is_wanted: impl Fn(Place) -> bool) -> Option<Place> {
        if self.excess.is_empty() {
            return None;
        }
        let of_hash = self.excess.range((hash, 0)..=(hash, Place::MAX));
        of_hash.map(|&(_, place)| place).find(|&place| is_wanted(place))
    }

    /// Puts `place` into the gap that [`Self::find`] has just found for it.
    pub(crate) fn insert(&mut self, gap: &Gap, place: Place, hash_of: impl Fn(Place) -> u64) {
        self.put(gap, place);
        self.entries += 1;
        if self.entries > self.segments * ENTRIES_PER_SEGMENT {
            self.split(hash_of);
        }
    }

    /// Takes out the entry that [`Self::find`] has just found.
    pub(crate) fn remove(&mut self, entry: &Entry, hash_of: impl Fn(Place) -> u64) {
        let Gap { hash, segment, group } = entry.around;
        match entry.position {
            Some(position) => self.segment_mut(segment).remove(group, position),
            None => {
                self.excess.remove(&(hash, entry.place));
            }
        }
        self.entries -= 1;
        if self.entries < self.segments / 2 * ENTRIES_PER_SEGMENT {
            self.join(hash_of);
        }
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let excess = self.excess.iter().map(|&(_, place)| place);
        self.rows.iter().flatten().flat_map(Segment::places).chain(excess)
    }

    fn put(&mut self, gap: &Gap, place: Place) {
        if gap.group.is_full() {
            self.excess.insert((gap.hash, place));
        } else {
            self.segment_mut(gap.segment).insert(gap.group, gap.hash, place);
        }
    }

    /// The number of the segment for `hash`: as many of its low bits as there are segments for, or
    /// one bit fewer where that segment has not been split off yet.
    fn segment_of(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
        let bits = hash as usize;
        let mask = self.segments.next_power_of_two() - 1;
        let number = bits & mask;
        if number < self.segments { number } else { bits & (mask >> 1) }
    }

    fn segment(&self, number: usize) -> &Segment {
        &self.rows[number / SEGMENTS_PER_ROW][number % SEGMENTS_PER_ROW]
    }

    fn segment_mut(&mut self, number: usize) -> &mut Segment {
        &mut self.rows[number / SEGMENTS_PER_ROW][number % SEGMENTS_PER_ROW]
    }

    /// Adds a segment, with those entries of an earlier one whose hashes say so.
    fn split(&mut self, hash_of: impl Fn(Place) -> u64) {
        let source = sibling(self.segments);
        let half = self.segment(source).len() / 2;
        let width = self.segment(source).width();
        self.push(Segment::new(half, width));
        let full = std::mem::replace(self.segment_mut(source), Segment::new(half, width));
        self.put_all(&full, hash_of);
    }

    fn push(&mut self, segment: Segment) {
        match self.rows.last_mut() {
            Some(row) if row.len() < SEGMENTS_PER_ROW => row.push(segment),
            _ => self.rows.push(vec![segment]),
        }
        self.segments += 1;
    }

    /// Gives the entries of the last segment back to the one that it was split off from.
    fn join(&mut self, hash_of: impl Fn(Place) -> u64) {
        let Some(row) = self.rows.last_mut().filter(|_| self.segments > 1) else { return };
        let Some(last) = row.pop() else { return };
        if row.is_empty() {
            self.rows.pop();
        }
        self.segments -= 1;
        self.put_all(&last, hash_of);
    }

    fn put_all(&mut self, segment: &Segment, hash_of: impl Fn(Place) -> u64) {
        for place in segment.places() {
            let hash = hash_of(place);
            let segment = self.segment_of(hash);
            let group = self.segment(segment).group(hash);
            self.put(&Gap { hash, segment, group }, place);
        }
    }
}

/// The segment that segment `number` is split off from: the one without its highest bit.
const fn sibling(number: usize) -> usize {
    number - (1 << number.ilog2())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A key's place is the key itself, so that what is found tells whether it is the right one.
    fn put(index: &mut Index, hash_of: impl Fn(Place) -> u64, key: u64) {
        let gap = index.find(hash_of(key), |place| place == key).unwrap_err();
        index.insert(&gap, key, hash_of);
    }

    fn contains(index: &Index, hash_of: impl Fn(Place) -> u64, key: u64) -> bool {
        index.find(hash_of(key), |place| place == key).is_ok_and(|entry| entry.place == key)
    }

    fn remove(index: &mut Index, hash_of: impl Fn(Place) -> u64, key: u64) -> bool {
        let entry = index.find(hash_of(key), |place| place == key);
        if let Ok(entry) = &entry {
            index.remove(entry, hash_of);
        }
        entry.is_ok()
    }

    fn mixed(key: u64) -> u64 {
        let key = (key ^ key >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = (key ^ key >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key ^ key >> 32
    }

    /// A key of one to eight bytes.
    fn wide(key: u64) -> u64 {
        key << (key % 46)
    }

    /// Many segments, several rows, places of all widths: up, and down again.
    #[test]
    fn it_grows_and_shrinks_by_segments() {
        let mut index = Index::new();
        let count = 3 * (SEGMENTS_PER_ROW * ENTRIES_PER_SEGMENT) as u64 / 2;
        let keys: BTreeSet<u64> = (0..count).map(wide).collect();
        for &key in &keys {
            put(&mut index, mixed, key);
        }
        assert_eq!(index.rows.len(), 2);
        for &key in &keys {
            assert!(contains(&index, mixed, key));
            assert!(!contains(&index, mixed, !key));
        }
        assert_eq!(index.places().collect::<BTreeSet<u64>>(), keys);
        for &key in &keys {
            assert!(remove(&mut index, mixed, key));
            assert!(!remove(&mut index, mixed, key));
        }
        assert_eq!((index.len(), index.places().count()), (0, 0));
        assert!(index.segments <= 2);
    }

    /// Hashes from good ones to such as are all the same, so that groups overflow.
    fn hashes() -> impl Strategy<Value = fn(u64) -> u64> {
        prop_oneof![
            Just(mixed as fn(u64) -> u64),
            Just((|key| mixed(key % 40)) as fn(u64) -> u64),
            Just((|key| (mixed(key) % 40) << 55) as fn(u64) -> u64),
            Just((|_| u64::MAX) as fn(u64) -> u64),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_a_map_does(
            hash_of in hashes(),
            operations in prop::collection::vec((any::<bool>(), 0..2000_u64), 0..4000),
        ) {
            let (mut index, mut map) = (Index::new(), HashMap::new());
            for (add, key) in operations {
                let key = wide(key);
                if add && !map.contains_key(&key) {
                    put(&mut index, hash_of, key);
                    map.insert(key, ());
                } else {
                    prop_assert_eq!(remove(&mut index, hash_of, key), map.remove(&key).is_some());
                }
                prop_assert_eq!(index.len(), map.len());
            }
            let entries: HashMap<u64, ()> = index.places().map(|place| (place, ())).collect();
            prop_assert_eq!(&entries, &map);
            for &key in map.keys() {
                prop_assert!(contains(&index, hash_of, key));
            }
        }
    }
}
