//! Violations of invariants.

use std::fmt;

/// A violated invariant.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: ViolationKind,
    what: String,
}

/// Kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViolationKind {
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

impl Violation {
    pub(crate) fn lost(what: String) -> Self {
        Self { kind: ViolationKind::Lost, what }
    }

    pub(crate) fn leaked(what: String) -> Self {
        Self { kind: ViolationKind::Leaked, what }
    }

    pub(crate) fn doubled(what: String) -> Self {
        Self { kind: ViolationKind::Doubled, what }
    }

    pub(crate) fn unclean(what: String) -> Self {
        Self { kind: ViolationKind::Unclean, what }
    }

    pub(crate) fn without_network(what: String) -> Self {
        Self { kind: ViolationKind::WithoutNetwork, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ViolationKind::Lost => "lost",
            ViolationKind::Leaked => "leaked",
            ViolationKind::Doubled => "doubled",
            ViolationKind::Unclean => "unclean",
            ViolationKind::WithoutNetwork => "without network",
        };
        write!(out, "{kind}: {}", self.what)
    }
}
