//! Reasons of refusals.

use crate::{Device, FunctionId, Usage, VfState};

/// Why no VF was reserved. The allocator is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum ReserveError {
    #[error("there is no VF pool {pool:?}")]
    PoolUnknown { pool: String },
    #[error(
        "VF pool {pool:?} has no {} for this host ({usage}{})", wanted(*usage), also(*named_only)
    )]
    Exhausted {
        pool: String,
        /// The usage of the pool's VFs on this host, without `named_only`. Free ones are all offered.
        usage: Usage,
        /// How many of the pool's VFs on this host another pool gives only to requests that name one.
        named_only: usize,
    },
    #[error("VF pool {pool:?} gives VFs only to requests that name one")]
    PinnedOnly { pool: String },
    #[error("this host offers no VF at PCI address {device}")]
    PinnedUnknown { device: Device },
    #[error("VF {vf} at PCI address {device} is not free: it is {state}")]
    PinnedNotFree { device: Device, vf: FunctionId, state: VfState },
    #[error("VF {vf} at PCI address {device} is free, but its offer and the request do not match")]
    NotOffered { device: Device, vf: FunctionId },
    #[error("VF {vf} at PCI address {device} is not in VF pool {pool:?}")]
    PinnedNotInPool { device: Device, vf: FunctionId, pool: String },
    #[error("the attachment holds VF {held} already, which is not the one at PCI address {device}")]
    KeyHoldsAnother { held: FunctionId, device: Device },
    #[error("the attachment's VF {held} is being released")]
    KeyReleasing { held: FunctionId },
    #[error("the attachment holds VF {held}, which is another host's")]
    OtherHost { held: FunctionId },
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
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum ClearError {
    #[error("there is no VF {vf}")]
    Unknown { vf: FunctionId },
    #[error("VF {vf} is not quarantined; it is {state}")]
    NotQuarantined { vf: FunctionId, state: VfState },
}

/// Why a journal's record contradicts another one. The allocator is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum RestoreError<K> {
    #[error("VF {vf} is held by {holder} and claimed by {claimant}")]
    VfHeld { vf: FunctionId, holder: K, claimant: K },
    #[error("{key} holds VF {held} and claims VF {claimed}")]
    KeyHoldsAnother { key: K, held: FunctionId, claimed: FunctionId },
}
