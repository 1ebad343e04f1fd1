//! What a commit changes.

/// One row put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub(crate) table: &'static str,
    pub(crate) key: Vec<u8>,
    /// `None`: deleted.
    pub(crate) value: Option<Vec<u8>>,
}

impl Change {
    /// Puts `value` in the place of whatever `key` has in `table`.
    pub fn put(table: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { table, key: key.into(), value: Some(value.into()) }
    }

    /// Deletes what `key` has in `table`, if anything.
    pub fn delete(table: &'static str, key: impl Into<Vec<u8>>) -> Self {
        Self { table, key: key.into(), value: None }
    }
}
