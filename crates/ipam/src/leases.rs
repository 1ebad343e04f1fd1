//! Which key holds which place, found from either side.
//!
//! The keys lie where their places are: next to those that were given out before and after them. The
//! index finds a key's place by its hash, and the key there tells whether it is the right one.

use std::{hash::Hash, iter::repeat_n};

use ahash::RandomState;

use crate::{
    index::{Entry, Gap, Index},
    segment::Place,
};

/// How many keys lie together, and go together: those of a chunk of the bitmap.
const KEYS_PER_CHUNK: usize = 1 << crate::bitmap::CHUNK_BITS;

/// Where in a chunk its keys can begin. A lonely one takes as much room as lies between.
const KEYS_PER_BLOCK: usize = 512;

/// The keys of a chunk by place, from the block of the first one to the last one that was set; where
/// none was, there is a copy of another.
#[derive(Debug)]
struct Keys<K> {
    start: usize,
    keys: Vec<K>,
}

/// Who holds what.
#[derive(Debug)]
pub(crate) struct Leases<K> {
    hasher: RandomState,
    index: Index,
    /// Their heads are few enough to stay in the cache, so that a key is one wait for memory away.
    chunks: Vec<Keys<K>>,
}

impl<K: Copy + Eq + Hash> Leases<K> {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), index: Index::new(), chunks: Vec::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn get(&self, key: &K) -> Option<Place> {
        let hash = self.hasher.hash_one(key);
        self.index.prepare_look(hash);
        self.find_hashed(key, hash).ok().map(|entry| entry.place)
    }

    /// The place of `key`, or the gap to put it into.
    pub(crate) fn find(&self, key: &K) -> Result<Place, Gap> {
        let hash = self.hasher.hash_one(key);
        self.index.prepare_change(hash);
        self.find_hashed(key, hash).map(|entry| entry.place)
    }

    fn find_hashed(&self, key: &K, hash: u64) -> Result<Entry, Gap> {
        self.index.find(hash, |place| key_of(&self.chunks, place) == key)
    }

    /// Puts `key` into the gap that [`Self::find`] has just found for it.
    pub(crate) fn insert(&mut self, gap: &Gap, key: K, place: Place) {
        self.set_key(place, key);
        let Self { hasher, index, chunks } = self;
        index.insert(gap, place, |place| hasher.hash_one(key_of(chunks, place)));
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<Place> {
        let hash = self.hasher.hash_one(key);
        self.index.prepare_change(hash);
        let entry = self.find_hashed(key, hash).ok()?;
        let Self { hasher, index, chunks } = self;
        index.remove(&entry, |place| hasher.hash_one(key_of(chunks, place)));
        Some(entry.place)
    }

    /// The key that holds `place`, which is a taken one.
    pub(crate) fn key_at(&self, place: Place) -> Option<&K> {
        let (chunk, offset) = split(place);
        let key = self.chunks.get(chunk)?.get(offset)?;
        (self.get(key) == Some(place)).then_some(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, Place)> {
        self.index.places().map(|place| (key_of(&self.chunks, place), place))
    }

    /// Gives the room of a chunk back of which no place is held.
    pub(crate) fn clear_chunk(&mut self, chunk: usize) {
        if let Some(keys) = self.chunks.get_mut(chunk) {
            *keys = Keys::new();
        }
    }

    fn set_key(&mut self, place: Place, key: K) {
        let (chunk, offset) = split(place);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, Keys::new);
        }
        self.chunks[chunk].set(offset, key);
    }
}

impl<K: Copy> Keys<K> {
    const fn new() -> Self {
        Self { start: 0, keys: Vec::new() }
    }

    fn get(&self, offset: usize) -> Option<&K> {
        self.keys.get(offset.checked_sub(self.start)?)
    }

    fn set(&mut self, offset: usize, key: K) {
        self.start_at_most(offset / KEYS_PER_BLOCK * KEYS_PER_BLOCK, key);
        let offset = offset - self.start;
        match self.keys.get_mut(offset) {
            Some(known) => *known = key,
            None => {
                let room = (offset + 1).next_power_of_two().min(KEYS_PER_CHUNK - self.start);
                self.keys.reserve_exact(room - self.keys.len());
                self.keys.resize(offset + 1, key);
            }
        }
    }

    /// Makes room in front with copies of `key`.
    fn start_at_most(&mut self, start: usize, key: K) {
        if self.keys.is_empty() {
            self.start = start;
        } else if start < self.start {
            self.keys.splice(..0, repeat_n(key, self.start - start));
            self.start = start;
        }
    }
}

fn key_of<K>(chunks: &[Keys<K>], place: Place) -> &K {
    let (chunk, offset) = split(place);
    let Keys { start, keys } = &chunks[chunk];
    &keys[offset - start]
}

#[expect(clippy::cast_possible_truncation, reason = "it indexes what there is room for")]
const fn split(place: Place) -> (usize, usize) {
    let place = place as usize;
    (place / KEYS_PER_CHUNK, place % KEYS_PER_CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the middle of a chunk up and down, as requests and journals have it.
    #[test]
    fn keys_are_found_whatever_the_order_of_their_places() {
        let places = [4000, 4095, 3583, 600, 512, 511, 0, 4096 + 2000, 4096 + 7];
        let mut leases = Leases::new();
        for place in places {
            let gap = leases.find(&place).unwrap_err();
            leases.insert(&gap, place, place);
            for other in places {
                let key = leases.key_at(other).copied();
                assert_eq!(key, leases.get(&other), "place {other} once {place} is held");
            }
        }
        assert!(places.iter().all(|place| leases.key_at(*place) == Some(place)));
    }

    #[test]
    fn few_keys_far_up_in_a_chunk_take_a_block_at_most() {
        let mut keys = Keys::new();
        for offset in (KEYS_PER_CHUNK - 256..KEYS_PER_CHUNK).rev() {
            keys.set(offset, offset);
        }
        assert!(keys.keys.capacity() <= KEYS_PER_BLOCK);
        assert_eq!(keys.get(KEYS_PER_CHUNK - 256), Some(&(KEYS_PER_CHUNK - 256)));
        assert_eq!(keys.get(0), None);
    }
}
