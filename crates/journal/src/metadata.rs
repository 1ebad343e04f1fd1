//! The journal's metadata table, the redb definition of all tables, and how their rows are read.

use redb::{ReadableTable, StorageError, TableDefinition};

use crate::Rows;

/// The table with the journal's owner and schema version.
pub(crate) const METADATA: &str = "journal";
pub(crate) const NAME: &[u8] = b"name";
pub(crate) const VERSION: &[u8] = b"version";

pub(crate) const fn definition(
    name: &'static str,
) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

pub(crate) fn rows(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
) -> Result<Rows, StorageError> {
    let mut rows = Rows::new();
    for row in table.iter()? {
        let (key, value) = row?;
        rows.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(rows)
}
