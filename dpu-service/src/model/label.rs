//! By what the rules of others know the representors of a network's pods.

use std::fmt;

/// A link's group and its alias.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Its group. 0: none, which is the group of all links.
    pub group: u32,
    /// Its alias. Empty: none.
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
