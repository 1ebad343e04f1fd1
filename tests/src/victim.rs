//! The two programs, as those that something happens to.

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Agent,
    Service,
}

impl Victim {
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Agent => "host-shim-agent",
            Self::Service => "dpu-service",
        }
    }
}
