//! The flow tables, in the order in which a frame passes them (`DROPS` last), and the priority in the first one.

/// The tables have high numbers, because in another program's bridge that program uses the low ones.
pub(super) const TAGS: u8 = 240;
pub(super) const MACS: u8 = 241;
pub(super) const NEIGHBOUR_LINKS: u8 = 242;
pub(super) const SOURCES: u8 = 243;
pub(super) const NEIGHBOURS: u8 = 244;
pub(super) const SENT: u8 = 245;
pub(super) const OPENED: u8 = 246;
pub(super) const RECEIVED: u8 = 247;
pub(super) const RULES: u8 = 248;
pub(super) const LET_IN: u8 = 250;
pub(super) const DROPS: u8 = 249;

/// A priority above those of other programs in table 0, so that their flows let no unchecked frame pass.
pub(super) const FIRST: u16 = 65_000;
