//! Selection of the members of a large family that one run tests: a third, chosen by a seed. Three consecutive seeds
//! cover all.
//!
//! `OFFLOAD_TEST_SEED` is the seed; `hack/test` sets it. Without it, or with `OFFLOAD_TEST_WHOLE=1`, all are tried.

use std::env;

/// A run tests one of this many parts.
const PARTS: usize = 3;

/// The selection of this run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sample {
    /// All members.
    All,
    /// The part that this seed selects.
    Seed(u64),
}

impl Sample {
    /// Reads the environment. Prints how the selection can be repeated.
    ///
    /// # Panics
    /// If the seed is not a number.
    #[expect(clippy::print_stdout, reason = "a test that fails shows how it can be repeated")]
    pub(crate) fn of_this_run() -> Self {
        if env::var_os("OFFLOAD_TEST_WHOLE").is_some_and(|whole| whole == "1") {
            return Self::All;
        }
        let Ok(seed) = env::var("OFFLOAD_TEST_SEED") else { return Self::All };
        println!(
            "tries one of {PARTS} parts, OFFLOAD_TEST_SEED={seed}; OFFLOAD_TEST_WHOLE=1 tries all"
        );
        let number = seed.parse();
        Self::Seed(number.unwrap_or_else(|_| panic!("OFFLOAD_TEST_SEED={seed} is not a number")))
    }

    /// The members to test: at least one of a family that is not empty.
    pub(crate) fn of<T>(
        self,
        family: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    ) -> Vec<T> {
        let family = family.into_iter();
        let (first, step) = self.stride(family.len());
        family.skip(first).step_by(step).collect()
    }

    /// Index of the first selected member in a family of this size, and the distance to the next.
    pub(crate) fn stride(self, members: usize) -> (usize, usize) {
        match self {
            Self::All => (0, 1),
            Self::Seed(seed) => {
                let parts = PARTS.min(members).max(1);
                (usize::try_from(seed % parts as u64).expect("less than three"), PARTS)
            }
        }
    }
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
                    (seed..seed + 3).flat_map(|seed| Sample::Seed(seed).of(0..members)).collect();
                assert_eq!(chosen, BTreeSet::from_iter(0..members), "seed {seed}");
            }
        }
    }

    #[test]
    fn one_seed_selects_a_third() {
        for members in 1..20_usize {
            for seed in 0..6 {
                let chosen = Sample::Seed(seed).of(0..members).len();
                assert!((1.max(members / PARTS)..=members.div_ceil(PARTS)).contains(&chosen));
            }
        }
    }

    #[test]
    fn whole_families_are_chosen_whole() {
        assert_eq!(Sample::All.of(0..7), Vec::from_iter(0..7));
    }
}
