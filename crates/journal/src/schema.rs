//! Schemas and migrations.

use std::collections::BTreeMap;

use crate::error::Cause;

/// The owner, tables and version of a journal.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// The owning program. A file of another program is refused.
    pub name: &'static str,
    /// The version of the tables' contents. Opening refuses a newer file and migrates an older one.
    pub version: u32,
    /// The tables.
    pub tables: &'static [&'static str],
    /// The migrations to this version. The last leads here from the previous version, the one before it to the previous
    /// version, and so on.
    pub migrations: &'static [Migration],
}

/// The rows of a table in the order of their keys: keys and values.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// The contents of all tables of a schema, by name.
pub type Tables = BTreeMap<&'static str, Rows>;

/// Converts the tables of one version to the next. It must depend on nothing but the tables.
pub type Migration = fn(&mut Tables) -> Result<(), Cause>;
