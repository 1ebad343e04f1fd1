//! A mistake in a file, with its place.

use std::fmt;

/// A mistake, with line and column if they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line and column, from 1.
    pub place: Option<(usize, usize)>,
    /// The sentence.
    pub message: String,
}

/// Formats the mistake to follow the file's name.
impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(out, ":{line}:{column}")?;
        }
        write!(out, ": {}", self.message)
    }
}
