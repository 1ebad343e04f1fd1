//! What must never be.

use std::fmt;

/// A promise that was broken.
#[derive(Clone, Debug)]
pub(crate) struct Breach {
    pub(crate) harm: Harm,
    what: String,
}

/// In which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// What was confirmed is not there.
    Lost,
    /// What nobody has is not free.
    Leaked,
    /// What one has another has too.
    Doubled,
    /// What is free is not as it was.
    Unclean,
    /// Whoever has an interface can't use it.
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
