//! What is wrong with a file, and where.

use std::fmt;

/// What is wrong, and at which line and column if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line and column, from 1.
    pub place: Option<(usize, usize)>,
    /// What is wrong.
    pub message: String,
}

/// As it follows a file's name.
impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(out, ":{line}:{column}")?;
        }
        write!(out, ": {}", self.message)
    }
}
