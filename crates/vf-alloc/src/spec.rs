//! Specifications of pools.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use crate::{
    FunctionId, VfFacts,
    selector::{Selector, deserialize_selectors},
};

/// The choice of the PF for the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The PF with the most free VFs: PFs share the load.
    #[default]
    Spread,
    /// The PF with the fewest free VFs: PFs stay idle where possible.
    Pack,
}

/// A pool: a name, the VFs to allocate from, and their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// The unique name.
    pub name: String,
    /// The VFs. Selectors may overlap within a pool and between pools.
    #[serde(deserialize_with = "deserialize_selectors")]
    pub select: Vec<Selector>,
    /// The order across PFs.
    #[serde(default)]
    pub policy: Policy,
    /// Whether VFs are given only to requests that name one, because another program hands them out.
    #[serde(default)]
    pub pinned_only: bool,
}

impl PoolSpec {
    /// Whether VF `vf` is in the pool. Without `facts` only selectors by number match.
    #[must_use]
    pub fn selects(&self, vf: FunctionId, facts: Option<&VfFacts>) -> bool {
        let ids = facts.map(|facts| (facts.vendor_id, facts.device_id));
        self.select.iter().any(|selector| selector.selects(vf, ids))
    }

    /// The VFs that the pool selects by number. Selectors may overlap.
    pub(crate) fn numbered(&self) -> BTreeSet<FunctionId> {
        self.select.iter().flat_map(Selector::numbered).collect()
    }
}

/// Settings of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The number of consecutive failed attaches that quarantines a VF. 0: never.
    pub quarantine_after: u32,
    /// The numbers of offers are higher than this, so that offers of an earlier allocator are invalid.
    pub offered_before: u64,
}

/// Errors in the pools of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum SpecError {
    #[error("a VF pool has no name")]
    NoName,
    #[error("there are two VF pools named {name:?}")]
    Duplicate { name: String },
    #[error("VF pool {name:?} selects no VFs; list some in `select`, such as \"p0#0-63\"")]
    SelectsNothing { name: String },
    #[error("VF pool {name:?}: the range {selector} is the wrong way round")]
    Reversed { name: String, selector: Selector },
}

/// Checks each pool, and that no two have the same name.
pub(crate) fn check(pools: &[PoolSpec]) -> Result<(), SpecError> {
    let mut names = HashSet::new();
    for pool in pools {
        check_one(pool)?;
        if !names.insert(&pool.name) {
            return Err(SpecError::Duplicate { name: pool.name.clone() });
        }
    }
    Ok(())
}

fn check_one(pool: &PoolSpec) -> Result<(), SpecError> {
    let name = || pool.name.clone();
    if pool.name.is_empty() {
        return Err(SpecError::NoName);
    }
    if pool.select.is_empty() {
        return Err(SpecError::SelectsNothing { name: name() });
    }
    let reversed = |selector: &&Selector| matches!(selector, Selector::Functions { first, last, .. } if first > last);
    match pool.select.iter().find(reversed) {
        Some(&selector) => Err(SpecError::Reversed { name: name(), selector }),
        None => Ok(()),
    }
}
