//! The VFs that the kubelet knows of.
//!
//! The kubelet may choose a VF before it learns that the VF has left the pool, for example by a reload of the
//! service or during a reset of the card. A refused Allocate would fail the pod for good. A refused ADD is retried, and
//! by then the VF may be back.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

/// How long a VF may be allocated after it left the pool: longer than the kubelet needs to learn of it.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Advertised {
    listed: HashSet<String>,
    left: HashMap<String, Instant>,
}

impl Advertised {
    /// Stores the list that the kubelet gets now.
    pub(super) fn learn(&mut self, listed: HashSet<String>, now: Instant) {
        let gone = self.listed.difference(&listed).map(|vf| (vf.clone(), now));
        self.left.extend(gone);
        self.left.retain(|vf, since| !listed.contains(vf) && now < *since + GRACE);
        self.listed = listed;
    }

    /// Whether the kubelet may have chosen the VF while it was in the pool.
    pub(super) fn has(&self, vf: &str, now: Instant) -> bool {
        self.listed.contains(vf) || self.left.get(vf).is_some_and(|since| now < *since + GRACE)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn vf_that_left_stays_allocatable_for_grace() {
        let (mut advertised, begin) = (Advertised::default(), Instant::now());
        let learn = |advertised: &mut Advertised, vfs: &[&str], now| {
            advertised.learn(vfs.iter().map(ToString::to_string).collect(), now);
        };
        learn(&mut advertised, &["a", "b"], begin);
        let left = begin + GRACE * 5;
        learn(&mut advertised, &["b"], left);
        let last = left + GRACE - Duration::from_millis(1);
        learn(&mut advertised, &["b"], last);
        assert!(advertised.has("a", last) && advertised.has("b", last));
        assert!(!advertised.has("a", left + GRACE));
        learn(&mut advertised, &["a"], last);
        assert!(advertised.has("a", left + GRACE), "it is back");
        assert!(!advertised.has("c", last));
    }
}
