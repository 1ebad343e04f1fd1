//! Checks of the group and alias by which other programs' rules find a network's representors.

use vf_alloc::software_card::CardLink;

use crate::Network;

/// The largest group that `ip link` accepts and shows.
const LARGEST_GROUP: u32 = i32::MAX.cast_unsigned();

/// The longest alias that the kernel accepts, in bytes.
const LONGEST_ALIAS: usize = 255;

/// Checks both. Returns one sentence for each problem.
pub(super) fn check_label(network: &Network) -> impl Iterator<Item = String> {
    check_group(network.link_group).into_iter().chain(check_alias(&network.link_alias))
}

fn check_group(group: u32) -> Option<String> {
    (group > LARGEST_GROUP)
        .then(|| format!("link_group {group} must be 1 to {LARGEST_GROUP}, or 0 for none"))
}

fn check_alias(alias: &str) -> Option<String> {
    if alias.len() > LONGEST_ALIAS {
        let length = alias.len();
        return Some(format!("link_alias has {length} bytes; {LONGEST_ALIAS} are the most"));
    }
    if alias.chars().any(char::is_control) {
        return Some(format!("link_alias {alias:?} must be one line of visible characters"));
    }
    CardLink::of(alias).is_some().then(|| {
        format!("link_alias {alias:?} has the form of the virtual card's own links: choose another")
    })
}

#[cfg(test)]
mod tests {
    use crate::check::networks::{
        check_network,
        tests::{assert_problem, network},
    };

    fn of(alias: &str) -> String {
        format!("name = \"a\"\nlink_alias = {alias:?}")
    }

    #[test]
    fn groups_are_numbers_and_aliases_lines() {
        for good in [
            "name = \"a\"\nlink_group = 2147483647",
            "name = \"a\"\nlink_group = 0\nlink_alias = \"\"",
            &of("tenant a/ß"),
            &of(&"x".repeat(255)),
        ] {
            assert_eq!(check_network(&network(good)), [""; 0]);
        }
        let large = "name = \"a\"\nlink_group = 2147483648";
        assert_problem(large, "link_group 2147483648 must be 1 to 2147483647, or 0 for none");
        for wrong in ["link_group = 4294967296", "link_group = -1", "link_group = \"pods\""] {
            assert!(toml::from_str::<crate::Network>(&format!("name = 'a'\n{wrong}")).is_err());
        }
    }

    #[test]
    fn unusable_alias_is_refused_by_name() {
        assert_problem(&of(&"x".repeat(256)), "link_alias has 256 bytes; 255 are the most");
        assert_problem(&of("two\nlines"), "link_alias \"two\\nlines\" must be one line");
        assert_problem(
            &of("virtual-nic uplink p0"),
            "has the form of the virtual card's own links",
        );
    }
}
