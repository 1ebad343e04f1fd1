//! Which key holds which place, found from either side.
//!
//! The keys lie where their places are: next to those that were given out before and after them. The
//! index finds a key's place by its hash, and the key there tells whether it is the right one.

use std::hash::Hash;

use ahash::RandomState;

use crate::{
    index::{Entry, Gap, Index},
    segment::Place,
};

/// How many places lie together, and go together: those of a chunk of the bitmap.
const PLACES_PER_CHUNK: usize = 1 << crate::bitmap::CHUNK_BITS;

/// How many keys lie together. A lonely one takes as much room as all that could lie before it.
const KEYS_PER_BLOCK: usize = 512;

const BLOCKS: usize = PLACES_PER_CHUNK / KEYS_PER_BLOCK;

/// Keys by place, as far as the last one that was set; where none was, there is a copy of another.
type Blocks<K> = Box<[Vec<K>; BLOCKS]>;

/// Who holds what.
#[derive(Debug)]
pub(crate) struct Leases<K> {
    hasher: RandomState,
    index: Index,
    chunks: Vec<Blocks<K>>,
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
        let (chunk, block, offset) = split(place);
        let key = self.chunks.get(chunk)?[block].get(offset)?;
        (self.get(key) == Some(place)).then_some(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, Place)> {
        self.index.places().map(|place| (key_of(&self.chunks, place), place))
    }

    /// Gives the room of a chunk back of which no place is held.
    pub(crate) fn clear_chunk(&mut self, chunk: usize) {
        if let Some(blocks) = self.chunks.get_mut(chunk) {
            **blocks = [const { Vec::new() }; BLOCKS];
        }
    }

    fn set_key(&mut self, place: Place, key: K) {
        let (chunk, block, offset) = split(place);
        while self.chunks.len() <= chunk {
            self.chunks.push(Box::new([const { Vec::new() }; BLOCKS]));
        }
        let keys = &mut self.chunks[chunk][block];
        match keys.get_mut(offset) {
            Some(known) => *known = key,
            None => {
                keys.reserve_exact((offset + 1).next_power_of_two() - keys.len());
                keys.resize(offset + 1, key);
            }
        }
    }
}

fn key_of<K>(chunks: &[Blocks<K>], place: Place) -> &K {
    let (chunk, block, offset) = split(place);
    &chunks[chunk][block][offset]
}

#[expect(clippy::cast_possible_truncation, reason = "it indexes what there is room for")]
const fn split(place: Place) -> (usize, usize, usize) {
    let place = place as usize;
    let block = place / KEYS_PER_BLOCK % BLOCKS;
    (place / PLACES_PER_CHUNK, block, place % KEYS_PER_BLOCK)
}
