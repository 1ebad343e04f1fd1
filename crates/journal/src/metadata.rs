//! The journal's metadata table, and the redb definition of all tables.

use redb::TableDefinition;

/// The table with the journal's owner and schema version.
pub(crate) const METADATA: &str = "journal";
pub(crate) const NAME: &[u8] = b"name";
pub(crate) const VERSION: &[u8] = b"version";

pub(crate) const fn definition(
    name: &'static str,
) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}
