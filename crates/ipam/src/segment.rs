//! Places in the order of their holders' hashes, without gaps.
//!
//! Seven bits of a hash choose one of 128 groups, and two more are kept as the entry's tag. The groups
//! lie one after the other; how many entries each has is in one cache line, whose counts up to a group
//! add up to where it begins. So a place is found in three lines next to each other, and hardly any
//! key is looked at in vain.

use std::hint::black_box;

/// A number that stands for an address. Small numbers take less room.
pub(crate) type Place = u64;

const GROUP_BITS: u32 = 7;
const TAG_BITS: usize = 2;
const COUNT_BITS: usize = 4;
/// How many entries a group can have.
pub(crate) const GROUP_CAPACITY: usize = (1 << COUNT_BITS) - 1;

const COUNTS_PER_WORD: usize = u64::BITS as usize / COUNT_BITS;
const COUNT_WORDS: usize = (1 << GROUP_BITS) / COUNTS_PER_WORD;
const TAGS_PER_WORD: usize = u64::BITS as usize / TAG_BITS;
const TAGS_PER_BYTE: usize = 8 / TAG_BITS;
/// What the memory is fetched by.
const LINE: usize = 64;
const WORD: usize = size_of::<u64>();
/// Where the tags begin, which are followed by the places.
const TAGS_AT: usize = COUNT_WORDS * WORD;

/// By how many entries a full segment grows, and what a new one has room for at least. One with twice
/// as much room to spare shrinks.
const STEP: usize = 8;

/// Some entries.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Counts of entries by group; tags, in words; places, least significant byte first.
    bytes: Box<[u8]>,
    entries: u16,
    capacity: u16,
    /// How many bytes a place takes.
    width: u8,
}

/// A group's entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    number: usize,
    start: usize,
    entries: usize,
}

impl Group {
    pub(crate) const fn is_full(&self) -> bool {
        self.entries == GROUP_CAPACITY
    }
}

impl Segment {
    /// A segment that has room for some entries whose places take `width` bytes.
    #[expect(clippy::cast_possible_truncation, reason = "groups hold 1,920, a place takes 8 bytes")]
    pub(crate) fn new(capacity: usize, width: usize) -> Self {
        let capacity = capacity.max(STEP);
        let size = tags_end(capacity) + capacity * width;
        let bytes = vec![0; size].into_boxed_slice();
        Self { bytes, entries: 0, capacity: capacity as u16, width: width as u8 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.into()
    }

    pub(crate) fn width(&self) -> usize {
        self.width.into()
    }

    fn capacity(&self) -> usize {
        self.capacity.into()
    }

    /// Lets the memory fetch the lines around an entry of `hash` at once, and of those of later
    /// places so many, rather than each when the one before it has told which is wanted next.
    pub(crate) fn fetch(&self, hash: u64, later_lines: usize) {
        let expected = (self.len() * group_number(hash)) >> GROUP_BITS;
        black_box(self.bytes[TAGS_AT + expected / TAGS_PER_BYTE]);
        let (from, last) = (self.place_at(expected) - LINE, self.bytes.len() - 1);
        for line in 0..2 + later_lines {
            black_box(self.bytes[last.min(from + line * LINE)]);
        }
    }

    /// The group of `hash`.
    #[expect(clippy::cast_possible_truncation, reason = "the bits that count are few")]
    pub(crate) fn group(&self, hash: u64) -> Group {
        let number = group_number(hash);
        let (whole, shift) = (number / COUNTS_PER_WORD, number % COUNTS_PER_WORD * COUNT_BITS);
        let last = self.word(whole * WORD);
        let mut sums = sums_of_pairs(last & ((1 << shift) - 1));
        for (bytes, mask) in
            self.bytes.chunks_exact(WORD).zip(&MASKS[COUNT_WORDS - whole..][..COUNT_WORDS])
        {
            sums += sums_of_pairs(word(bytes) & mask);
        }
        let entries = (last >> shift) as usize & GROUP_CAPACITY;
        Group { number, start: sum_of_bytes(sums), entries }
    }

    /// The positions in `group` of those entries that have the tag of `hash`.
    pub(crate) fn candidates(
        &self,
        group: Group,
        hash: u64,
    ) -> impl Iterator<Item = usize> + use<> {
        let tags = self.word(TAGS_AT + group.start / TAGS_PER_BYTE);
        let tags = tags >> (group.start % TAGS_PER_BYTE * TAG_BITS);
        let differing = tags ^ (tag_of(hash) * LOW_BITS);
        let mut equal = !(differing | differing >> 1) & LOW_BITS;
        equal &= (1 << (group.entries * TAG_BITS)) - 1;
        std::iter::from_fn(move || {
            let bit = (equal != 0).then(|| equal.trailing_zeros() as usize)?;
            equal &= equal - 1;
            Some(group.start + bit / TAG_BITS)
        })
    }

    pub(crate) fn place(&self, position: usize) -> Place {
        let width = self.width();
        let end = self.place_at(position + 1);
        self.word(end - WORD) >> (u64::BITS as usize - 8 * width)
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.len()).map(|position| self.place(position))
    }

    /// Adds an entry to `group`, which is that of `hash` and is not full.
    pub(crate) fn insert(&mut self, group: Group, hash: u64, place: Place) {
        let width = self.width().max(width_of(place));
        if self.len() == self.capacity() {
            self.resize(self.capacity() + STEP, width);
        } else if width > self.width() {
            self.resize(self.capacity(), width);
        }
        let position = group.start + group.entries;
        self.bytes[group.number / 2] += 1 << (group.number % 2 * COUNT_BITS);
        insert_tag(self.tags_mut(self.len() + 1), position, tag_of(hash));
        let from = self.place_at(position);
        self.bytes.copy_within(from..self.place_at(self.len()), from + width);
        self.entries += 1;
        self.set_place(position, place);
    }

    /// Takes out the entry at `position`, which is in `group`.
    pub(crate) fn remove(&mut self, group: Group, position: usize) {
        self.bytes[group.number / 2] -= 1 << (group.number % 2 * COUNT_BITS);
        remove_tag(self.tags_mut(self.len()), position);
        let next = self.place_at(position + 1);
        self.bytes.copy_within(next..self.place_at(self.len()), self.place_at(position));
        self.entries -= 1;
        if self.capacity() >= self.len() + 2 * STEP {
            self.resize(self.len() + STEP, self.width());
        }
    }

    /// Makes room for `capacity` entries whose places take `width` bytes.
    fn resize(&mut self, capacity: usize, width: usize) {
        let mut resized = Self::new(capacity, width);
        let tags = tags_end(self.len());
        resized.bytes[..tags].copy_from_slice(&self.bytes[..tags]);
        resized.entries = self.entries;
        if width == self.width() {
            let (from, to) = (self.place_at(0), self.place_at(self.len()));
            let at = resized.place_at(0);
            resized.bytes[at..at + to - from].copy_from_slice(&self.bytes[from..to]);
        } else {
            for (position, place) in self.places().enumerate() {
                resized.set_place(position, place);
            }
        }
        *self = resized;
    }

    fn word(&self, at: usize) -> u64 {
        word(&self.bytes[at..at + WORD])
    }

    fn tags_mut(&mut self, entries: usize) -> &mut [u8] {
        &mut self.bytes[TAGS_AT..tags_end(entries)]
    }

    fn place_at(&self, position: usize) -> usize {
        tags_end(self.capacity()) + position * self.width()
    }

    fn set_place(&mut self, position: usize, place: Place) {
        let end = self.place_at(position + 1);
        let shift = u64::BITS as usize - 8 * self.width();
        let before = self.word(end - WORD) & !(u64::MAX << shift);
        let word = before | place << shift;
        self.bytes[end - WORD..end].copy_from_slice(&word.to_le_bytes());
    }
}

/// All bits of some words, then none: those from `COUNT_WORDS - n` on are set for the first `n` words.
const MASKS: [u64; 2 * COUNT_WORDS] = {
    let mut masks = [0; 2 * COUNT_WORDS];
    let mut word = 0;
    while word < COUNT_WORDS {
        masks[word] = u64::MAX;
        word += 1;
    }
    masks
};

/// The low bit of each tag.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

const fn group_number(hash: u64) -> usize {
    (hash >> (u64::BITS - GROUP_BITS)) as usize
}

const fn tag_of(hash: u64) -> u64 {
    hash << GROUP_BITS >> (u64::BITS as usize - TAG_BITS)
}

/// Where the tags of `capacity` entries end.
const fn tags_end(capacity: usize) -> usize {
    TAGS_AT + capacity.div_ceil(TAGS_PER_WORD) * WORD
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The sums of the two counts in each byte.
const fn sums_of_pairs(counts: u64) -> u64 {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    (counts & LOW) + (counts >> COUNT_BITS & LOW)
}

const fn sum_of_bytes(bytes: u64) -> usize {
    const LOW: u64 = 0x00ff_00ff_00ff_00ff;
    let pairs = (bytes & LOW) + (bytes >> 8 & LOW);
    (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as usize
}

/// Puts a tag before that at `position`; there is room for one more.
fn insert_tag(tags: &mut [u8], position: usize, tag: u64) {
    let (first, shift) = (position / TAGS_PER_WORD, position % TAGS_PER_WORD * TAG_BITS);
    let mut carry = 0;
    for (number, bytes) in tags.chunks_exact_mut(WORD).enumerate() {
        let old = word(bytes);
        let kept = kept_bits(number, first, shift);
        let added = if number == first { tag << shift } else { carry };
        let new = old & kept | added | (old & !kept) << TAG_BITS;
        bytes.copy_from_slice(&new.to_le_bytes());
        carry = (old & !kept) >> (u64::BITS as usize - TAG_BITS);
    }
}

/// Takes out the tag at `position`.
fn remove_tag(tags: &mut [u8], position: usize) {
    let (first, shift) = (position / TAGS_PER_WORD, position % TAGS_PER_WORD * TAG_BITS);
    let mut carry = 0;
    for (number, bytes) in tags.chunks_exact_mut(WORD).enumerate().rev() {
        let old = word(bytes);
        let kept = kept_bits(number, first, shift);
        let new = old & kept | (old >> TAG_BITS | carry) & !kept;
        bytes.copy_from_slice(&new.to_le_bytes());
        carry = old << (u64::BITS as usize - TAG_BITS);
    }
}

/// The bits of a word that come before those from bit `shift` of word `first` on.
fn kept_bits(word: usize, first: usize, shift: usize) -> u64 {
    let partly = if word == first { (1 << shift) - 1 } else { 0 };
    if word < first { u64::MAX } else { partly }
}

/// How many bytes `place` takes: one at least.
pub(crate) fn width_of(place: Place) -> usize {
    place.to_le_bytes().iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1)
}
