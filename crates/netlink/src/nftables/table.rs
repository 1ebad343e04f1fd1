//! What a table is made of.

use std::ffi::{CStr, CString};

use super::name;

/// The room that the kernel has for the name of a link.
const LINK_NAME_LEN: usize = 16;

/// The name of a link, as sets have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkName([u8; LINK_NAME_LEN]);

impl LinkName {
    /// A name of at most 15 bytes; what is longer is cut off, and names no link.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; LINK_NAME_LEN];
        let room = bytes.iter_mut().take(LINK_NAME_LEN - 1);
        room.zip(name.as_bytes()).for_each(|(to, from)| *to = *from);
        Self(bytes)
    }
}

/// A table of the family `inet`, for both versions of IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(super) name: CString,
    pub(super) sets: Vec<Set>,
    pub(super) chains: Vec<Chain>,
}

impl Table {
    /// A table with these sets and chains.
    #[must_use]
    pub fn new(table: &str, sets: Vec<Set>, chains: Vec<Chain>) -> Self {
        Self { name: name(table), sets, chains }
    }
}

/// A named set of links, or of pairs of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub(super) name: &'static CStr,
    pub(super) key: Key,
    pub(super) elements: Vec<Vec<u8>>,
}

/// What a set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Link,
    Pair,
}

impl Key {
    pub(super) const fn length(self) -> u32 {
        match self {
            Self::Link => 16,
            Self::Pair => 32,
        }
    }
}

impl Set {
    /// A set of links.
    pub fn of_links(name: &'static CStr, links: impl IntoIterator<Item = LinkName>) -> Self {
        let elements = links.into_iter().map(|link| link.0.to_vec()).collect();
        Self { name, key: Key::Link, elements }
    }

    /// A set of pairs: the link that a packet comes in by, and the one that it goes out by.
    pub fn of_pairs(
        name: &'static CStr,
        pairs: impl IntoIterator<Item = (LinkName, LinkName)>,
    ) -> Self {
        let elements = pairs.into_iter().map(|(from, to)| [from.0, to.0].concat()).collect();
        Self { name, key: Key::Pair, elements }
    }
}

/// A chain of rules that the kernel calls; a packet that comes to its end is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static CStr,
    /// Where the kernel calls it.
    pub hook: Hook,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Where the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// For all packets that come in, before it is looked up to which connection they belong.
    BeforeTracking,
    /// For packets to the namespace's own addresses, as a filter.
    Input,
    /// For packets from link to link, as a filter.
    Forward,
    /// For the first packet of each connection that leaves by a link, to translate its source.
    SourceTranslation,
}

/// What a packet has to be, and what becomes of it then.
pub type Rule = Vec<Term>;

/// A part of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// It came in by a link of that set.
    From(&'static CStr),
    /// It goes out by a link of that set.
    To(&'static CStr),
    /// The links that it comes in and goes out by are a pair of that set.
    Between(&'static CStr),
    /// It belongs to a connection that was let pass, or is an error about one.
    OfKnownConnection,
    /// Packets to where it is from do not go out by the link that it came in by. Not after routing.
    FromElsewhere,
    /// It is of that protocol above IP.
    Protocol(u8),
    /// It is not looked up to which connection it belongs.
    Untracked,
    /// It passes this chain.
    Accept,
    /// It is thrown away.
    Drop,
    /// It gets an address of the link that it leaves by for its source.
    Masquerade,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_room_for_its_end() {
        assert_eq!(LinkName::new("p0").0[..3], *b"p0\0");
        assert_eq!(LinkName::new("0123456789abcdefgh").0, *b"0123456789abcde\0");
    }
}
