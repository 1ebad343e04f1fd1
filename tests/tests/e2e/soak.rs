//! A short soak; `hack/soak` runs long ones.

use std::time::{SystemTime, UNIX_EPOCH};

use e2e::{
    scenarios::figure,
    soak::{Hazard, Soak},
};

/// Takes 15 seconds.
const OPERATIONS: usize = 300;

fn soak(hosts: usize, seed: u64) {
    let fabric = std::env::var("OFFLOAD_TEST_FABRIC").unwrap_or_else(|_| "bridge".to_owned());
    println!(
        "hack/soak --hosts {hosts} --ops {OPERATIONS} --seed {seed} --fabric {fabric} --without speculation \
         does the same again"
    );
    // With so few operations, no speculative move may be wrong, although a soak with this hazard requires one.
    let hazards: Vec<_> =
        Hazard::ALL.into_iter().filter(|one| *one != Hazard::SpeculativeMoves).collect();
    let mut soak = Soak::start(hosts, OPERATIONS, seed, &hazards, None);
    let folder = soak.folder();
    while soak.advance() {}
    let progress = soak.progress();
    let outcome = soak.end();
    let broken = outcome.violations();
    assert!(outcome.is_good(), "seed {seed}, {}: {progress}\n{broken}", folder.display());
    figure(OPERATIONS, "operations of a soak in every test run");
}

#[test]
fn short_soak_violates_nothing() {
    soak(1, 20);
}

#[test]
fn random_two_host_soak_violates_nothing() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    soak(2, now.as_secs());
}
