//! Group and alias of representors, by which other programs' rules find the links.

use std::fmt;

/// A link's group and its alias.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The group. 0: the kernel's default group of all links.
    pub group: u32,
    /// The alias. Empty: none.
    pub alias: String,
}

impl fmt::Display for Label {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "group {}", self.group)?;
        match self.alias.as_str() {
            "" => Ok(()),
            alias => write!(out, ", alias {alias:?}"),
        }
    }
}
