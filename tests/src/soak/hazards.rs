//! What a soak does beyond calls, kills and cuts.

use std::{fmt, str::FromStr};

/// An optional activity of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hazard {
    /// Pods change their interfaces.
    Hostile,
    /// Callers die during their calls.
    Dying,
    /// Programs and callers are suspended and continued.
    Suspended,
    /// Traffic verifies each pod's network, after its attach and at each rest.
    Traffic,
    /// The DPU's pool and offers change, and hosts learn it late: some speculative moves are wrong.
    SpeculativeMoves,
    /// Simulated hosts of the DPU attach and detach pods during the round, with faults of their own.
    Crowd,
}

impl Hazard {
    /// All activities.
    pub const ALL: [Self; 6] = [
        Self::Hostile,
        Self::Dying,
        Self::Suspended,
        Self::Traffic,
        Self::SpeculativeMoves,
        Self::Crowd,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Hostile => "hostile",
            Self::Dying => "dying",
            Self::Suspended => "suspended",
            Self::Traffic => "traffic",
            Self::SpeculativeMoves => "speculation",
            Self::Crowd => "crowd",
        }
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Hazard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|hazard| hazard.name() == text);
        found.ok_or_else(|| format!("{text} is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
