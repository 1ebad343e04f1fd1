//! The multicast groups that a link has joined.

use std::{fs, io, net::Ipv6Addr};

use crate::{Error, Netns};

/// The groups of all links of the calling thread's namespace.
const GROUPS: &str = "/proc/thread-self/net/igmp6";

/// Whether neighbours that ask for these IPv6 addresses of a link are heard: it has joined the groups
/// in which they do. The kernel does that some time after it was given an address.
///
/// # Errors
/// When the namespace can't be entered, or the kernel refuses to tell.
pub fn hears_neighbours(netns: &Netns, index: u32, addresses: &[Ipv6Addr]) -> Result<bool, Error> {
    let told = |error: &io::Error| Error::io(format!("list the groups of link {index}"), error);
    let groups = netns.run(|| fs::read_to_string(GROUPS))?.map_err(|error| told(&error))?;
    Ok(addresses.iter().all(|address| is_listed(&groups, index, solicited_node(*address))))
}

/// The group in which neighbours ask for an address: RFC 4291, section 2.7.1.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z])
}

/// A line has the link's index, its name, the group, and more.
fn is_listed(groups: &str, index: u32, group: Ipv6Addr) -> bool {
    let wanted = format!("{:032x}", group.to_bits());
    groups.lines().any(|line| {
        let mut words = line.split_whitespace();
        let is_links = words.next().and_then(|word| word.parse().ok()) == Some(index);
        is_links && words.nth(1) == Some(&*wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_at_its_own_link() {
        let groups = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                      3    eth0            ff0200000000000000000001ff00ab03     1 00000004 0\n";
        let group = solicited_node("fd00:10:1::ab03".parse().unwrap());
        assert_eq!(group, "ff02::1:ff00:ab03".parse::<Ipv6Addr>().unwrap());
        assert!(is_listed(groups, 3, group));
        assert!(!is_listed(groups, 1, group));
        assert!(!is_listed("", 3, group));
    }
}
