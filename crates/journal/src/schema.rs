//! Which tables a journal has, what is in them, and how those of an older version become these.

use std::collections::BTreeMap;

use crate::error::Cause;

/// Whose journal it is and what is in it.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// The program. A file of another one is refused.
    pub name: &'static str,
    /// The version of the tables' contents. A file of a newer one is refused, and one of an older
    /// version migrated when it is opened.
    pub version: u32,
    /// The tables.
    pub tables: &'static [&'static str],
    /// The way to this version: the last one leads here from the version before, the one before it
    /// from the version before that, and so on.
    pub migrations: &'static [Migration],
}

/// The rows of a table: keys, in order, with their values.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// The contents of all tables of a schema, by name.
pub type Tables = BTreeMap<&'static str, Rows>;

/// Makes of what one version wrote what the next one reads. It must not depend on anything but the
/// tables.
pub type Migration = fn(&mut Tables) -> Result<(), Cause>;
