//! Why a request for a VF is refused.

use crate::{Device, FunctionId, Usage, VfState};

/// Why no VF was reserved. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// No such pool.
    #[error("there is no VF pool {pool:?}")]
    PoolUnknown {
        /// The name asked for.
        pool: String,
    },
    /// The pool has no free VF on this host, or none that is not promised.
    #[error(
        "VF pool {pool:?} has no {} for this host ({usage}{})", wanted(*usage), also(*named_only)
    )]
    Exhausted {
        /// The pool.
        pool: String,
        /// The pool's VFs on this host, but for the next ones. Those that are free are all promised.
        usage: Usage,
        /// Those of them that another pool gives only to requests that name one, whatever their state.
        named_only: usize,
    },
    /// The pool gives VFs only to requests that name one.
    #[error("VF pool {pool:?} gives VFs only to requests that name one")]
    PinnedOnly {
        /// The pool.
        pool: String,
    },
    /// The host has offered no VF of that device.
    #[error("this host offers no VF at PCI address {device}")]
    PinnedUnknown {
        /// The device asked for.
        device: Device,
    },
    /// The VF asked for is not free.
    #[error("VF {vf} at PCI address {device} is not free: it is {state}")]
    PinnedNotFree {
        /// The device asked for.
        device: Device,
        /// The VF there.
        vf: FunctionId,
        /// Its state.
        state: VfState,
    },
    /// The VF asked for is free, and is promised while the request does not say so, or the other way round.
    #[error("VF {vf} at PCI address {device} is free, but not promised as the request says")]
    NotPromised {
        /// The device asked for.
        device: Device,
        /// The VF there.
        vf: FunctionId,
    },
    /// The VF asked for is not one of the pool's.
    #[error("VF {vf} at PCI address {device} is not in VF pool {pool:?}")]
    PinnedNotInPool {
        /// The device asked for.
        device: Device,
        /// The VF there.
        vf: FunctionId,
        /// The pool asked for.
        pool: String,
    },
    /// The key holds a VF already, and it is not the one asked for.
    #[error("the attachment holds VF {held} already, which is not the one at PCI address {device}")]
    KeyHoldsAnother {
        /// The VF that it holds.
        held: FunctionId,
        /// The device asked for.
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
    if usage.free == 0 { "free VF" } else { "VF that is free and not promised" }
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
    /// Nobody has ever offered or held that VF.
    #[error("there is no VF {vf}")]
    Unknown {
        /// The VF asked for.
        vf: FunctionId,
    },
    /// It is not in quarantine.
    #[error("VF {vf} is not quarantined; it is {state}")]
    NotQuarantined {
        /// The VF asked for.
        vf: FunctionId,
        /// Its state.
        state: VfState,
    },
}

/// Why a journal's record contradicts another one. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<K> {
    /// Two keys claim one VF.
    #[error("VF {vf} is held by {holder} and claimed by {claimant}")]
    VfHeld {
        /// The VF.
        vf: FunctionId,
        /// Who holds it.
        holder: K,
        /// Who claims it too.
        claimant: K,
    },
    /// One key claims two VFs.
    #[error("{key} holds VF {held} and claims VF {claimed}")]
    KeyHoldsAnother {
        /// The key.
        key: K,
        /// The VF that it holds.
        held: FunctionId,
        /// The VF that it claims too.
        claimed: FunctionId,
    },
}
