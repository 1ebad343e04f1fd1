//! The VFs that the kubelet was told of.
//!
//! The kubelet may choose a VF just before it learns that the VF has left the pool, as by a reload of the service or while
//! a card is reset. A refused Allocate would end the pod for good. A refused ADD is repeated: by then the VF may be back.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

/// How long after it left the pool a VF may still be allocated: longer than the kubelet needs to learn that.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Advertised {
    listed: HashSet<String>,
    left: HashMap<String, Instant>,
}

impl Advertised {
    /// Notes the VFs of the list that the kubelet gets now.
    pub(super) fn learn(&mut self, listed: HashSet<String>, now: Instant) {
        let gone = self.listed.difference(&listed).map(|vf| (vf.clone(), now));
        self.left.extend(gone);
        self.left.retain(|vf, since| !listed.contains(vf) && now < *since + GRACE);
        self.listed = listed;
    }

    /// Whether the kubelet may have chosen a VF while it was in the pool.
    pub(super) fn has(&self, vf: &str, now: Instant) -> bool {
        self.listed.contains(vf) || self.left.get(vf).is_some_and(|since| now < *since + GRACE)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn vf_that_left_is_known_for_a_while() {
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
