//! How many neighbours the kernel keeps, for all networks together.

use bootstrap::Chain;
use netlink::{Family, raise_neighbour_threshold};

/// From where on the kernel forgets what it has not used for 5 s, and the most that it keeps. They are raised where they
/// are lower.
const LEAST: [(&str, u32); 2] = [("gc_thresh2", 32_768), ("gc_thresh3", 65_536)];

/// Raises the thresholds. Returns why they can't be, one sentence for each. A network namespace that is not the DPU's
/// first has none: there they are left to the first.
pub(super) fn raise() -> Vec<String> {
    let of_family = |family: Family| LEAST.map(|(key, least)| problem_of(family, key, least));
    [Family::V4, Family::V6].into_iter().flat_map(of_family).flatten().collect()
}

fn problem_of(family: Family, key: &str, least: u32) -> Option<String> {
    let error = raise_neighbour_threshold(family, key, least).err()?;
    (!error.is_not_found()).then(|| {
        format!(
            "too many neighbours of one network may leave no room for others: net.{family}.neigh.default.{key} is \
             lower than {least}, and can't be raised ({}): raise it with sysctl",
            Chain(&error)
        )
    })
}
