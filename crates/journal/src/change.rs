//! Changes of rows.

/// A put or a deletion of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub(crate) table: &'static str,
    pub(crate) key: Vec<u8>,
    /// `None`: delete the row.
    pub(crate) value: Option<Vec<u8>>,
}

impl Change {
    /// Puts `value` at `key` of `table`, replacing an existing row.
    pub fn put(table: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { table, key: key.into(), value: Some(value.into()) }
    }

    /// Deletes the row at `key` of `table` if it exists.
    pub fn delete(table: &'static str, key: impl Into<Vec<u8>>) -> Self {
        Self { table, key: key.into(), value: None }
    }
}
