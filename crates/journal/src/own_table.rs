//! The table in which the journal tells whose it is, and what all tables are to redb.

use redb::TableDefinition;

/// The journal's own table: whose it is.
pub(crate) const OWN: &str = "journal";
pub(crate) const NAME: &[u8] = b"name";
pub(crate) const VERSION: &[u8] = b"version";

pub(crate) const fn definition(
    name: &'static str,
) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}
