//! Programs as targets of faults.

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultTarget {
    /// The agent of this host.
    Agent(usize),
    Service,
}

impl FaultTarget {
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Agent(_) => "host-shim-agent",
            Self::Service => "dpu-service",
        }
    }
}
