//! The kernel's limit of neighbour entries, for all networks together.

use bootstrap::Chain;
use netlink::{Family, raise_neighbour_threshold};

/// The least thresholds: above the first, the kernel drops entries unused for 5 s; the second is the maximum.
const LEAST: [(&str, u32); 2] = [("gc_thresh2", 32_768), ("gc_thresh3", 65_536)];

/// Raises the thresholds where they are lower. Returns one sentence for each failure. Network namespaces other than
/// the first have no thresholds of their own; there it does nothing.
pub(super) fn raise() -> Vec<String> {
    let of_family = |family: Family| LEAST.map(|(key, least)| problem_of(family, key, least));
    [Family::V4, Family::V6].into_iter().flat_map(of_family).flatten().collect()
}

fn problem_of(family: Family, key: &str, least: u32) -> Option<String> {
    let error = raise_neighbour_threshold(family, key, least).err()?;
    (!error.is_not_found()).then(|| {
        format!(
            "neighbours of one network can leave no room for others: net.{family}.neigh.default.{key} is below {least} \
             and can't be raised ({}): raise it with sysctl",
            Chain(&error)
        )
    })
}
