//! Which addresses are taken, and which is the next free one.
//!
//! Addresses are numbers, and 4096 neighbours make a chunk. A chunk exists once one of its addresses
//! is taken, so that the size of the subnet does not matter, and stays for the next user of its room
//! when it is empty again. In a chunk, a word of one bit for each of its 64 words tells which of them
//! are full; runs of full chunks are skipped as one. So a search looks at a handful of words, however
//! much is taken.

use std::collections::BTreeMap;

use crate::{
    segment::Place,
    subnet::{Span, Subnet},
};

const WORDS: usize = 64;
const WORD_BITS: u32 = u64::BITS;
/// The low bits of an address's number: which bit of a chunk it is.
pub(crate) const CHUNK_BITS: u32 = 12;
const CHUNK_MASK: u128 = (1 << CHUNK_BITS) - 1;

/// How many more chunks than needed may be in use before the search goes back to earlier addresses
/// rather than on to fresh ones, where survivors would leave a nearly empty chunk each.
const SPARSE_CHUNKS: u128 = 64;
const SPARSE_FACTOR: u128 = 8;

type Words = [u64; WORDS];

/// Which addresses of a subnet are taken.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "unboxed, the chunks would be copied whenever the list grows")]
pub(crate) struct Bitmap {
    chunks: Vec<Box<Chunk>>,
    by_number: BTreeMap<u128, usize>,
    /// Slots of `chunks` that are out of use.
    spare: Vec<usize>,
    /// The chunk of the last search or change, which the next one is likely to want too.
    recent: Option<(u128, usize)>,
    /// A chunk that became empty. It stays until the next one does, as it may be wanted at once.
    empty: Option<usize>,
    full: Runs,
    /// How many addresses are taken that are handed out unasked.
    open_taken: u64,
}

/// 4096 neighbours.
#[derive(Debug)]
struct Chunk {
    /// The addresses' numbers without their low bits.
    number: u128,
    taken: Words,
    /// What is not handed out unasked. `None`: all of it is.
    closed: Option<Box<Words>>,
    /// Which words have every bit taken or closed.
    full_words: u64,
    taken_count: u32,
}

impl Bitmap {
    /// The place of an address, for as long as it is taken.
    pub(crate) fn taken(&self, address: u128) -> Option<Place> {
        let slot = self.slot(address >> CHUNK_BITS)?;
        let bit = bit_of(address);
        self.chunks[slot].is_taken(bit).then(|| place(slot, bit))
    }

    /// The address at `place`, which is taken.
    pub(crate) fn address(&self, place: Place) -> u128 {
        let (slot, bit) = split(place);
        self.chunks[slot].number << CHUNK_BITS | bit as u128
    }

    /// How many addresses are taken of those that are handed out unasked.
    pub(crate) const fn open_taken(&self) -> u64 {
        self.open_taken
    }

    /// Takes a free address.
    pub(crate) fn take(&mut self, subnet: &Subnet, address: u128) -> Place {
        let number = address >> CHUNK_BITS;
        let slot = match self.slot(number) {
            Some(slot) => slot,
            None => self.add_chunk(Chunk::new(number, subnet)),
        };
        self.recent = Some((number, slot));
        let bit = bit_of(address);
        let chunk = &mut self.chunks[slot];
        chunk.take(bit);
        if chunk.is_open(bit) {
            self.open_taken += 1;
            if chunk.is_full() {
                self.full.add(number);
            }
        }
        place(slot, bit)
    }

    /// Makes the address at `place` free. A chunk of which no place is in use any more, if there is
    /// one: the high bits of its places.
    pub(crate) fn free(&mut self, place: Place) -> Option<usize> {
        let (slot, bit) = split(place);
        let chunk = &mut self.chunks[slot];
        if chunk.is_open(bit) {
            self.open_taken -= 1;
            if chunk.is_full() {
                self.full.remove(chunk.number);
            }
        }
        chunk.free(bit);
        if chunk.taken_count == 0 { self.drop_earlier(slot) } else { None }
    }

    fn slot(&self, number: u128) -> Option<usize> {
        match self.recent {
            Some((recent, slot)) if recent == number => Some(slot),
            _ => self.by_number.get(&number).copied(),
        }
    }

    /// The first free address from `start` on, all around, of those that are handed out unasked.
    pub(crate) fn next_free(&self, subnet: &Subnet, start: u128) -> Option<u128> {
        if let Some(next) = self.free_nearby(start) {
            return Some(next);
        }
        let next = self.free_from(subnet, start).or_else(|| self.free_from(subnet, 0))?;
        let fresh = !self.by_number.contains_key(&(next >> CHUNK_BITS));
        if fresh && self.is_sparse() { self.free_from(subnet, 0) } else { Some(next) }
    }

    /// The first free address from `start` on, if it is in the chunk of the last change, as it mostly
    /// is.
    fn free_nearby(&self, start: u128) -> Option<u128> {
        let (number, slot) = self.recent.filter(|&(number, _)| number == start >> CHUNK_BITS)?;
        let bit = self.chunks[slot].free_from(bit_of(start))?;
        Some(number << CHUNK_BITS | bit as u128)
    }

    fn is_sparse(&self) -> bool {
        let needed = u128::from(self.open_taken) >> CHUNK_BITS;
        self.by_number.len() as u128 > SPARSE_CHUNKS + SPARSE_FACTOR * needed
    }

    /// The first free address from `start` up to the end.
    fn free_from(&self, subnet: &Subnet, start: u128) -> Option<u128> {
        let mut next = subnet.next_open(start)?;
        loop {
            let number = next >> CHUNK_BITS;
            let after = match (self.full.end_of(number), self.by_number.get(&number)) {
                (Some(end), _) => end,
                (None, None) => return Some(next),
                (None, Some(&slot)) => match self.chunks[slot].free_from(bit_of(next)) {
                    Some(bit) => return Some(number << CHUNK_BITS | bit as u128),
                    None => number,
                },
            };
            next = subnet.next_open((after << CHUNK_BITS | CHUNK_MASK).checked_add(1)?)?;
        }
    }

    fn add_chunk(&mut self, chunk: Chunk) -> usize {
        let number = chunk.number;
        let slot = match self.spare.pop() {
            Some(slot) => {
                *self.chunks[slot] = chunk;
                slot
            }
            None => {
                self.chunks.push(Box::new(chunk));
                self.chunks.len() - 1
            }
        };
        self.by_number.insert(number, slot);
        slot
    }

    /// Drops the chunk that became empty before the one in `slot` did, if it is empty still.
    fn drop_earlier(&mut self, slot: usize) -> Option<usize> {
        let earlier = self.empty.replace(slot).filter(|&earlier| earlier != slot);
        let earlier = earlier.filter(|&earlier| self.chunks[earlier].taken_count == 0)?;
        let chunk = &mut self.chunks[earlier];
        chunk.closed = None;
        self.by_number.remove(&chunk.number);
        self.spare.push(earlier);
        self.recent = None;
        Some(earlier)
    }

    /// The places that are taken and that `subnet` would not hand out unasked. `None`: a subnet that
    /// has none of the addresses, as it is of the other family.
    pub(crate) fn taken_and_closed(&self, subnet: Option<&Subnet>) -> Vec<Place> {
        let mut places = Vec::new();
        for (&number, &slot) in &self.by_number {
            let closed = match subnet {
                Some(subnet) => closed_words(subnet, number),
                None => Some(Box::new([u64::MAX; WORDS])),
            };
            let Some(closed) = closed else { continue };
            let chunk = &self.chunks[slot];
            let bits = (0..WORDS).flat_map(|word| bits_of(word, chunk.taken[word] & closed[word]));
            places.extend(bits.map(|bit| place(slot, bit)));
        }
        places
    }

    /// Counts anew for another subnet of the same family, which contains all that is taken.
    pub(crate) fn reopen(&mut self, subnet: &Subnet) {
        self.full = Runs::default();
        self.open_taken = 0;
        for (&number, &slot) in &self.by_number {
            let chunk = &mut self.chunks[slot];
            chunk.close(closed_words(subnet, number));
            let open_taken = chunk.open_taken();
            self.open_taken += open_taken;
            if chunk.is_full() && open_taken > 0 {
                self.full.add(number);
            }
        }
    }
}

impl Chunk {
    fn new(number: u128, subnet: &Subnet) -> Self {
        let mut chunk =
            Self { number, taken: [0; WORDS], closed: None, full_words: 0, taken_count: 0 };
        chunk.close(closed_words(subnet, number));
        chunk
    }

    fn close(&mut self, closed: Option<Box<Words>>) {
        self.closed = closed;
        self.full_words = 0;
        for word in 0..WORDS {
            self.note_full(word);
        }
    }

    const fn is_taken(&self, bit: usize) -> bool {
        self.taken[word_of(bit)] & mask_of(bit) != 0
    }

    fn is_open(&self, bit: usize) -> bool {
        self.closed_word(word_of(bit)) & mask_of(bit) == 0
    }

    const fn is_full(&self) -> bool {
        self.full_words == u64::MAX
    }

    fn closed_word(&self, word: usize) -> u64 {
        self.closed.as_ref().map_or(0, |closed| closed[word])
    }

    fn take(&mut self, bit: usize) {
        self.taken[word_of(bit)] |= mask_of(bit);
        self.taken_count += 1;
        self.note_full(word_of(bit));
    }

    fn free(&mut self, bit: usize) {
        self.taken[word_of(bit)] &= !mask_of(bit);
        self.taken_count -= 1;
        self.note_full(word_of(bit));
    }

    fn note_full(&mut self, word: usize) {
        if self.taken[word] | self.closed_word(word) == u64::MAX {
            self.full_words |= mask_of(word);
        } else {
            self.full_words &= !mask_of(word);
        }
    }

    /// The first bit from `start` on that is neither taken nor closed.
    fn free_from(&self, start: usize) -> Option<usize> {
        let word = word_of(start);
        let here = self.free_bits(word) & from_bit(start % WORDS);
        if here != 0 {
            return Some(word * WORDS + here.trailing_zeros() as usize);
        }
        let later = !self.full_words & from_bit(word) & !mask_of(word);
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some(word * WORDS + self.free_bits(word).trailing_zeros() as usize)
    }

    fn free_bits(&self, word: usize) -> u64 {
        !(self.taken[word] | self.closed_word(word))
    }

    fn open_taken(&self) -> u64 {
        let open = |word: usize| self.taken[word] & !self.closed_word(word);
        (0..WORDS).map(|word| u64::from(open(word).count_ones())).sum()
    }
}

/// What of chunk `number` the subnet does not hand out unasked. `None`: it hands out all of it.
fn closed_words(subnet: &Subnet, number: u128) -> Option<Box<Words>> {
    let chunk = (number << CHUNK_BITS, number << CHUNK_BITS | CHUNK_MASK);
    let mut closed = Box::new([u64::MAX; WORDS]);
    for &span in subnet.open_within(chunk) {
        if span.0 <= chunk.0 && chunk.1 <= span.1 {
            return None;
        }
        open_bits(&mut closed, (bit_of(span.0.max(chunk.0)), bit_of(span.1.min(chunk.1))));
    }
    Some(closed)
}

fn open_bits(closed: &mut Words, (first, last): (usize, usize)) {
    for (number, word) in closed.iter_mut().enumerate() {
        let (start, end) = (number * WORDS, number * WORDS + WORDS - 1);
        if first <= end && start <= last {
            let from = from_bit(first.max(start) % WORDS);
            let to = u64::MAX >> (WORDS - 1 - last.min(end) % WORDS);
            *word &= !(from & to);
        }
    }
}

fn bits_of(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(word * WORDS + bit)
    })
}

const fn bit_of(address: u128) -> usize {
    (address & CHUNK_MASK) as usize
}

const fn word_of(bit: usize) -> usize {
    bit / WORDS
}

const fn mask_of(bit: usize) -> u64 {
    1 << (bit % WORD_BITS as usize)
}

const fn from_bit(bit: usize) -> u64 {
    u64::MAX << bit
}

const fn place(slot: usize, bit: usize) -> Place {
    (slot << CHUNK_BITS | bit) as Place
}

#[expect(clippy::cast_possible_truncation, reason = "made from a usize by `place`")]
const fn split(place: Place) -> (usize, usize) {
    let place = place as usize;
    (place >> CHUNK_BITS, place & CHUNK_MASK as usize)
}

/// Runs of numbers, first to last; never two next to each other.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u128, u128>);

impl Runs {
    /// The run that contains `number`.
    fn around(&self, number: u128) -> Option<Span> {
        let (&first, &last) = self.0.range(..=number).next_back()?;
        (number <= last).then_some((first, last))
    }

    /// The last number of the run that contains `number`.
    fn end_of(&self, number: u128) -> Option<u128> {
        self.around(number).map(|(_, last)| last)
    }

    /// Adds a number that is in no run.
    fn add(&mut self, number: u128) {
        let before = number.checked_sub(1).and_then(|before| self.around(before));
        let first = before.map_or(number, |(first, _)| first);
        let last = self.0.remove(&(number + 1)).unwrap_or(number);
        self.0.insert(first, last);
    }

    /// Takes a number out of its run.
    fn remove(&mut self, number: u128) {
        let Some((first, last)) = self.around(number) else { return };
        self.0.remove(&first);
        if first < number {
            self.0.insert(first, number - 1);
        }
        if number < last {
            self.0.insert(number + 1, last);
        }
    }
}
