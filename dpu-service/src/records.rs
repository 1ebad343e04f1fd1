//! The journal's tables and what is in them.
/// Why the journal can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct OpenError;
/// The journal.
#[derive(Debug)]
pub struct Records;
