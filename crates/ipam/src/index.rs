//! From keys to places: a hash table that is full.
//!
//! The usual open-addressing table leaves an eighth to a half of its room empty and, when it grows,
//! moves everything at once. This one is made of segments of a hundred or so entries. Linear hashing
//! splits or joins one segment at a time, so that no call has much to move. A segment has no gaps:
//! its entries lie in the order of their hashes, which are spread evenly, so that the hash itself
//! tells within a few entries where to look. Keys and places lie in arrays of their own, and a place
//! takes no more bytes than the highest of its segment needs.

use std::hash::Hash;

use ahash::RandomState;

/// A number that stands for an address. Small numbers take less room.
pub(crate) type Place = u64;

/// How many entries a segment has on average. More: less room for the segments' own fields. Fewer:
/// less to move when an entry is put into the middle.
const ENTRIES_PER_SEGMENT: usize = 128;

/// A row of segments; in rows, so that the list of segments never has to be moved as a whole.
const SEGMENTS_PER_ROW: usize = 1024;

/// By how many entries a full segment grows. One with twice as much room to spare shrinks.
const ENTRIES_PER_STEP: usize = 4;

/// A map from keys to places.
#[derive(Debug)]
pub(crate) struct Index<K> {
    hasher: RandomState,
    rows: Vec<Vec<Segment<K>>>,
    segments: usize,
    entries: usize,
}

/// Some entries, in the order of their hashes.
#[derive(Debug)]
struct Segment<K> {
    keys: Vec<K>,
    /// The places, least significant byte first, each of as many bytes as the others.
    places: Vec<u8>,
}

/// Where a key that is not in the index would be. Any change to the index invalidates it.
#[derive(Debug)]
pub(crate) struct Gap {
    segment: usize,
    position: usize,
}

impl<K: Eq + Hash> Index<K> {
    pub(crate) fn new() -> Self {
        let rows = vec![vec![Segment::new(0, 1)]];
        Self { hasher: RandomState::new(), rows, segments: 1, entries: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries
    }

    pub(crate) fn get(&self, key: &K) -> Option<Place> {
        self.find(key).ok()
    }

    /// The place of `key`, or the gap to put it into.
    pub(crate) fn find(&self, key: &K) -> Result<Place, Gap> {
        let hash = self.hasher.hash_one(key);
        let number = self.segment_of(hash);
        let segment = self.segment(number);
        match segment.find(key, hash, &self.hasher) {
            Ok(position) => Ok(segment.place(position)),
            Err(position) => Err(Gap { segment: number, position }),
        }
    }

    /// Puts `key` into the gap that [`Self::find`] has just found for it.
    pub(crate) fn insert(&mut self, gap: &Gap, key: K, place: Place) {
        self.segment_mut(gap.segment).insert(gap.position, key, place);
        self.entries += 1;
        if self.entries > self.segments * ENTRIES_PER_SEGMENT {
            self.split();
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<Place> {
        let hash = self.hasher.hash_one(key);
        let number = self.segment_of(hash);
        let position = self.segment(number).find(key, hash, &self.hasher).ok()?;
        let place = self.segment_mut(number).remove(position);
        self.entries -= 1;
        if self.entries < self.segments / 2 * ENTRIES_PER_SEGMENT {
            self.join();
        }
        Some(place)
    }

    /// The key that is at `place`. Looks at every entry.
    pub(crate) fn key_at(&self, place: Place) -> Option<&K> {
        self.rows.iter().flatten().find_map(|segment| segment.key_at(place))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, Place)> {
        self.rows.iter().flatten().flat_map(|segment| segment.keys.iter().zip(segment.places()))
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

    fn segment(&self, number: usize) -> &Segment<K> {
        &self.rows[number / SEGMENTS_PER_ROW][number % SEGMENTS_PER_ROW]
    }

    fn segment_mut(&mut self, number: usize) -> &mut Segment<K> {
        &mut self.rows[number / SEGMENTS_PER_ROW][number % SEGMENTS_PER_ROW]
    }

    /// Adds a segment, with those entries of an earlier one whose hashes say so.
    fn split(&mut self) {
        let added = self.segments;
        let source = sibling(added);
        self.segments += 1;
        let full = std::mem::replace(self.segment_mut(source), Segment::new(0, 1));
        let (kept, moved) = full.part(|key| self.segment_of(self.hasher.hash_one(key)) == added);
        *self.segment_mut(source) = kept;
        self.push(moved);
    }

    fn push(&mut self, segment: Segment<K>) {
        match self.rows.last_mut() {
            Some(row) if row.len() < SEGMENTS_PER_ROW => row.push(segment),
            _ => self.rows.push(vec![segment]),
        }
    }

    /// Gives the entries of the last segment back to the one that it was split off from.
    fn join(&mut self) {
        let Some(row) = self.rows.last_mut().filter(|_| self.segments > 1) else { return };
        let Some(last) = row.pop() else { return };
        if row.is_empty() {
            self.rows.pop();
        }
        self.segments -= 1;
        let target = sibling(self.segments);
        let other = std::mem::replace(self.segment_mut(target), Segment::new(0, 1));
        *self.segment_mut(target) = other.merge(last, &self.hasher);
    }
}

/// The segment that segment `number` is split off from: the one without its highest bit.
const fn sibling(number: usize) -> usize {
    number - (1 << number.ilog2())
}

impl<K: Eq + Hash> Segment<K> {
    fn new(capacity: usize, width: usize) -> Self {
        Self { keys: Vec::with_capacity(capacity), places: Vec::with_capacity(capacity * width) }
    }

    /// How many bytes a place takes.
    const fn width(&self) -> usize {
        match self.keys.len() {
            0 => 1,
            entries => self.places.len() / entries,
        }
    }

    /// The position of `key`, or the one that keeps the order.
    fn find(&self, key: &K, hash: u64, hasher: &RandomState) -> Result<usize, usize> {
        let hash_at = |position: usize| hasher.hash_one(&self.keys[position]);
        let mut position = expected_position(hash, self.keys.len());
        while position < self.keys.len() && hash_at(position) < hash {
            position += 1;
        }
        while position > 0 && hash_at(position - 1) >= hash {
            position -= 1;
        }
        let gap = position;
        while position < self.keys.len() && hash_at(position) == hash {
            if self.keys[position] == *key {
                return Ok(position);
            }
            position += 1;
        }
        Err(gap)
    }

    fn place(&self, position: usize) -> Place {
        let width = self.width();
        read(&self.places[position * width..][..width])
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        self.places.chunks_exact(self.width()).map(read)
    }

    fn key_at(&self, place: Place) -> Option<&K> {
        self.places().position(|other| other == place).map(|position| &self.keys[position])
    }

    fn insert(&mut self, position: usize, key: K, place: Place) {
        let width = self.width().max(width_of(place));
        self.widen(width);
        if self.keys.len() == self.keys.capacity() {
            self.keys.reserve_exact(ENTRIES_PER_STEP);
            self.places.reserve_exact(ENTRIES_PER_STEP * width);
        }
        self.keys.insert(position, key);
        let (start, end) = (position * width, self.places.len());
        self.places.extend_from_slice(&[0; size_of::<Place>()][..width]);
        self.places.copy_within(start..end, start + width);
        self.places[start..start + width].copy_from_slice(&place.to_le_bytes()[..width]);
    }

    fn remove(&mut self, position: usize) -> Place {
        let width = self.width();
        let place = self.place(position);
        self.keys.remove(position);
        let start = position * width;
        self.places.copy_within(start + width.., start);
        self.places.truncate(self.keys.len() * width);
        if self.keys.capacity() >= self.keys.len() + 2 * ENTRIES_PER_STEP {
            self.shrink(width);
        }
        place
    }

    fn shrink(&mut self, width: usize) {
        let entries = self.keys.len() + ENTRIES_PER_STEP / 2;
        self.keys.shrink_to(entries);
        self.places.shrink_to(entries * width);
    }

    /// Gives each place at least `width` bytes.
    fn widen(&mut self, width: usize) {
        if width > self.width() && !self.keys.is_empty() {
            let mut wide = Vec::with_capacity(self.keys.capacity() * width);
            for place in self.places() {
                wide.extend_from_slice(&place.to_le_bytes()[..width]);
            }
            self.places = wide;
        }
    }

    /// Puts an entry at the end. `width` is the same for all of the segment's entries.
    fn push(&mut self, key: K, place: Place, width: usize) {
        self.keys.push(key);
        self.places.extend_from_slice(&place.to_le_bytes()[..width]);
    }

    /// Two segments: the entries that do not belong elsewhere, and those that do.
    fn part(self, belongs_elsewhere: impl Fn(&K) -> bool) -> (Self, Self) {
        let width = self.width();
        let moving = self.keys.iter().filter(|key| belongs_elsewhere(key)).count();
        let mut kept = Self::new(self.keys.len() - moving, width);
        let mut moved = Self::new(moving, width);
        let Self { keys, places } = self;
        for (key, place) in keys.into_iter().zip(places.chunks_exact(width)) {
            let target = if belongs_elsewhere(&key) { &mut moved } else { &mut kept };
            target.push(key, read(place), width);
        }
        (kept, moved)
    }

    /// One segment of the entries of two.
    fn merge(self, other: Self, hasher: &RandomState) -> Self {
        let width = self.width().max(other.width());
        let mut merged = Self::new(self.keys.len() + other.keys.len(), width);
        let mut left = self.into_entries().peekable();
        let mut right = other.into_entries().peekable();
        let hash = |entry: &(K, Place)| hasher.hash_one(&entry.0);
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(first), Some(second)) if hash(second) < hash(first) => right.next(),
                (Some(_), _) => left.next(),
                (None, _) => right.next(),
            };
            let Some((key, place)) = next else { return merged };
            merged.push(key, place, width);
        }
    }

    fn into_entries(self) -> impl Iterator<Item = (K, Place)> {
        let places: Vec<Place> = self.places().collect();
        self.keys.into_iter().zip(places)
    }
}

/// Where an entry of `hash` lies among `entries` if hashes are spread evenly.
fn expected_position(hash: u64, entries: usize) -> usize {
    let scaled = (u128::from(hash) * entries as u128) >> u64::BITS;
    usize::try_from(scaled).unwrap_or(0)
}

/// How many bytes `place` takes: one at least.
fn width_of(place: Place) -> usize {
    place.to_le_bytes().iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1)
}

fn read(bytes: &[u8]) -> Place {
    let mut place = [0; size_of::<Place>()];
    place[..bytes.len()].copy_from_slice(bytes);
    Place::from_le_bytes(place)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn put(index: &mut Index<u64>, key: u64, place: Place) {
        let gap = index.find(&key).unwrap_err();
        index.insert(&gap, key, place);
    }

    /// Many segments, several rows, places of all widths: up, and down again.
    #[test]
    fn it_grows_and_shrinks_by_segments() {
        let mut index = Index::new();
        let count = 3 * (SEGMENTS_PER_ROW * ENTRIES_PER_SEGMENT) as u64 / 2;
        let place = |key: u64| key.wrapping_mul(key) >> (key % 40);
        for key in 0..count {
            put(&mut index, key, place(key));
        }
        assert_eq!(index.rows.len(), 2);
        for key in 0..count {
            assert_eq!(index.get(&key), Some(place(key)));
            assert_eq!(index.get(&(key + count)), None);
        }
        for key in 0..count {
            assert_eq!(index.remove(&key), Some(place(key)));
            assert_eq!(index.remove(&key), None);
        }
        assert_eq!((index.len(), index.iter().count()), (0, 0));
        assert!(index.segments <= 2);
    }

    proptest! {
        #[test]
        fn it_does_what_a_map_does(
            operations in prop::collection::vec((any::<bool>(), 0..2000_u64, any::<u32>()), 0..4000),
        ) {
            let (mut index, mut map) = (Index::new(), HashMap::new());
            for (add, key, place) in operations {
                let place = Place::from(place);
                if add && !map.contains_key(&key) {
                    put(&mut index, key, place);
                    map.insert(key, place);
                } else {
                    prop_assert_eq!(index.remove(&key), map.remove(&key));
                }
                prop_assert_eq!(index.len(), map.len());
            }
            let entries: HashMap<u64, Place> = index.iter().map(|(&key, place)| (key, place)).collect();
            prop_assert_eq!(&entries, &map);
            for (key, place) in map {
                prop_assert_eq!(index.get(&key), Some(place));
            }
        }
    }
}
