//! Reasons of refusals.

use crate::{Device, FunctionId, Usage, VfState};

/// Why no VF was reserved. The allocator is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// There is no such pool.
    #[error("there is no VF pool {pool:?}")]
    PoolUnknown {
        /// The requested name.
        pool: String,
    },
    /// The pool has no free VF on this host, or only offered ones.
    #[error(
        "VF pool {pool:?} has no {} for this host ({usage}{})", wanted(*usage), also(*named_only)
    )]
    Exhausted {
        /// The pool.
        pool: String,
        /// The usage of the pool's VFs on this host, without `named_only`. Free ones are all offered.
        usage: Usage,
        /// How many of the pool's VFs on this host another pool gives only to requests that name one.
        named_only: usize,
    },
    /// The pool gives VFs only to requests that name one.
    #[error("VF pool {pool:?} gives VFs only to requests that name one")]
    PinnedOnly {
        /// The pool.
        pool: String,
    },
    /// The host has reported no VF with that device.
    #[error("this host offers no VF at PCI address {device}")]
    PinnedUnknown {
        /// The requested device.
        device: Device,
    },
    /// The requested VF is not free.
    #[error("VF {vf} at PCI address {device} is not free: it is {state}")]
    PinnedNotFree {
        /// The requested device.
        device: Device,
        /// The VF there.
        vf: FunctionId,
        /// Its state.
        state: VfState,
    },
    /// The requested VF is free, but its offer and the request do not match.
    #[error("VF {vf} at PCI address {device} is free, but its offer and the request do not match")]
    NotOffered {
        /// The requested device.
        device: Device,
        /// The VF there.
        vf: FunctionId,
    },
    /// The requested VF is not in the pool.
    #[error("VF {vf} at PCI address {device} is not in VF pool {pool:?}")]
    PinnedNotInPool {
        /// The requested device.
        device: Device,
        /// The VF there.
        vf: FunctionId,
        /// The requested pool.
        pool: String,
    },
    /// The key already holds a VF, and it is not the requested one.
    #[error("the attachment holds VF {held} already, which is not the one at PCI address {device}")]
    KeyHoldsAnother {
        /// The VF that it holds.
        held: FunctionId,
        /// The requested device.
        device: Device,
    },
    /// The key's VF is being released.
    #[error("the attachment's VF {held} is being released")]
    KeyReleasing {
        /// The VF that it still holds.
        held: FunctionId,
    },
    /// The key holds a VF of another host.
    #[error("the attachment holds VF {held}, which is another host's")]
    OtherHost {
        /// The VF that it holds.
        held: FunctionId,
    },
}

fn wanted(usage: Usage) -> &'static str {
    if usage.free == 0 { "free VF" } else { "VF that is free and not offered" }
}

fn also(named_only: usize) -> String {
    match named_only {
        0 => String::new(),
        count => format!("; {count} more are only for requests that name one"),
    }
}

/// Why a VF was not cleared of its quarantine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClearError {
    /// The VF was never reported or held.
    #[error("there is no VF {vf}")]
    Unknown {
        /// The requested VF.
        vf: FunctionId,
    },
    /// The VF is not in quarantine.
    #[error("VF {vf} is not quarantined; it is {state}")]
    NotQuarantined {
        /// The requested VF.
        vf: FunctionId,
        /// Its state.
        state: VfState,
    },
}

/// Why a journal's record contradicts another one. The allocator is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<K> {
    /// Two keys claim one VF.
    #[error("VF {vf} is held by {holder} and claimed by {claimant}")]
    VfHeld {
        /// The VF.
        vf: FunctionId,
        /// The holder.
        holder: K,
        /// The second key that claims the VF.
        claimant: K,
    },
    /// One key claims two VFs.
    #[error("{key} holds VF {held} and claims VF {claimed}")]
    KeyHoldsAnother {
        /// The key.
        key: K,
        /// The VF that it holds.
        held: FunctionId,
        /// The second VF that it claims.
        claimed: FunctionId,
    },
}
