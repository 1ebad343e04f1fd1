//! Which members of a long family one run tries: a third, chosen by a seed. Three consecutive seeds choose all.
//!
//! `OFFLOAD_TEST_SEED` repeats a choice, `OFFLOAD_TEST_WHOLE=1` chooses all. Without a seed each run of the tests has
//! its own.

use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
    time::{SystemTime, UNIX_EPOCH},
};

/// A run tries one of so many parts.
const PARTS: usize = 3;

/// Which part of each family this run tries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// All of it.
    Whole,
    /// The part that this seed chooses.
    Part(u64),
}

impl Share {
    /// As the environment says. Prints how the choice can be repeated.
    #[expect(clippy::print_stdout, reason = "a test that fails shows how it can be repeated")]
    pub(crate) fn of_this_run() -> Self {
        if env::var_os("OFFLOAD_TEST_WHOLE").is_some_and(|whole| whole == "1") {
            return Self::Whole;
        }
        let seed = env::var("OFFLOAD_TEST_SEED").map_or_else(
            |_| seed_of_this_run(),
            |seed| seed.parse().unwrap_or_else(|_| panic!("OFFLOAD_TEST_SEED={seed} is no number")),
        );
        println!(
            "one of {PARTS} parts is tried; OFFLOAD_TEST_SEED={seed} tries the same one, OFFLOAD_TEST_WHOLE=1 all"
        );
        Self::Part(seed)
    }

    /// Those of `family` that are tried; of a family that is not empty at least one.
    pub(crate) fn of<T>(
        self,
        family: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    ) -> Vec<T> {
        let family = family.into_iter();
        let (first, step) = self.places(family.len());
        family.skip(first).step_by(step).collect()
    }

    /// The first place that is tried of a family of so many members, and the distance to the next one.
    pub(crate) fn places(self, members: usize) -> (usize, usize) {
        match self {
            Self::Whole => (0, 1),
            Self::Part(seed) => {
                let parts = PARTS.min(members).max(1);
                (usize::try_from(seed % parts as u64).expect("less than three"), PARTS)
            }
        }
    }
}

/// One seed for all tests of a run of cargo-nextest, which are processes of their own.
fn seed_of_this_run() -> u64 {
    let mut hasher = DefaultHasher::new();
    match env::var("NEXTEST_RUN_ID") {
        Ok(run) => run.hash(&mut hasher),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").hash(&mut hasher),
    }
    // Short enough to be typed.
    hasher.finish() % 1_000_000
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn three_consecutive_seeds_choose_all() {
        for members in 0..20 {
            for seed in [0, 1, 2, 7, 999_998] {
                let chosen: BTreeSet<_> =
                    (seed..seed + 3).flat_map(|seed| Share::Part(seed).of(0..members)).collect();
                assert_eq!(chosen, BTreeSet::from_iter(0..members), "seed {seed}");
            }
        }
    }

    #[test]
    fn one_seed_chooses_a_third_and_never_nothing() {
        for members in 1..20_usize {
            for seed in 0..6 {
                let chosen = Share::Part(seed).of(0..members).len();
                assert!((1.max(members / PARTS)..=members.div_ceil(PARTS)).contains(&chosen));
            }
        }
    }

    #[test]
    fn whole_families_are_chosen_whole() {
        assert_eq!(Share::Whole.of(0..7), Vec::from_iter(0..7));
    }
}
