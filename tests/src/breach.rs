//! Violations of invariants.

use std::fmt;

/// A violated invariant.
#[derive(Clone, Debug)]
pub(crate) struct Breach {
    pub(crate) harm: Harm,
    what: String,
}

/// Kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// A confirmed object is missing.
    Lost,
    /// An unused object is not free.
    Leaked,
    /// Two owners have the same object.
    Doubled,
    /// A free object differs from its baseline.
    Unclean,
    /// The owner of an interface cannot use it.
    WithoutNetwork,
}

impl Breach {
    pub(crate) fn lost(what: String) -> Self {
        Self { harm: Harm::Lost, what }
    }

    pub(crate) fn leaked(what: String) -> Self {
        Self { harm: Harm::Leaked, what }
    }

    pub(crate) fn doubled(what: String) -> Self {
        Self { harm: Harm::Doubled, what }
    }

    pub(crate) fn unclean(what: String) -> Self {
        Self { harm: Harm::Unclean, what }
    }

    pub(crate) fn without_network(what: String) -> Self {
        Self { harm: Harm::WithoutNetwork, what }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let harm = match self.harm {
            Harm::Lost => "lost",
            Harm::Leaked => "leaked",
            Harm::Doubled => "doubled",
            Harm::Unclean => "unclean",
            Harm::WithoutNetwork => "without network",
        };
        write!(out, "{harm}: {}", self.what)
    }
}
