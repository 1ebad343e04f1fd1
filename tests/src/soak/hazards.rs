//! What a soak does besides calling, killing and cutting.

use std::{fmt, str::FromStr};

/// Something that a soak does, unless it is told not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hazard {
    /// Pods do as they like to their interfaces.
    Hostile,
    /// Callers die amid their calls.
    Dying,
    /// Programs and callers are suspended and continued.
    Suspended,
    /// Each pod's network is proven by traffic, after its attach and at each rest.
    Traffic,
    /// The DPU changes its pool, and what it promises, and its hosts hear of it late: VFs move ahead
    /// that the DPU does not give.
    Guesses,
    /// Further hosts of the DPU, which are played: their pods come and go meanwhile, amid faults of
    /// their own.
    Crowd,
}

impl Hazard {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Hostile, Self::Dying, Self::Suspended, Self::Traffic, Self::Guesses, Self::Crowd];

    fn name(self) -> &'static str {
        match self {
            Self::Hostile => "hostile",
            Self::Dying => "dying",
            Self::Suspended => "suspended",
            Self::Traffic => "traffic",
            Self::Guesses => "guesses",
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
