//! Checks of the sources that a network's pods may send from.

use std::collections::BTreeSet;

use super::form::check_prefix;
use crate::{AntiSpoofing, Network, Source, anti_spoofing::macs};

/// The most sources in a list: each one adds to the guard of every port.
const MOST_SOURCES: usize = 32;

/// Checks both lists of a network. Returns one sentence for each problem.
pub(super) fn check_sources(network: &Network) -> Vec<String> {
    let mut problems = Vec::new();
    let lists = [
        ("allowed_sources", &network.allowed_sources),
        ("optional_sources", &network.optional_sources),
    ];
    for (key, sources) in lists {
        if sources.len() > MOST_SOURCES {
            let length = sources.len();
            problems.push(format!("{key} holds {length} sources; {MOST_SOURCES} are the most"));
        }
        problems.extend(sources.iter().filter_map(|source| check_source(key, *source)));
        problems.extend(check_use(key, sources, network.anti_spoofing));
    }
    problems
}

/// Checks that a device can send from the source. `key` names the source's key in the sentence.
pub fn check_source(key: &str, source: Source) -> Option<String> {
    let why = match source {
        Source::Mac(mac) if mac.is_unicast() => return None,
        Source::Mac(_) => "which is not the MAC address of one device".to_owned(),
        Source::Addresses(prefix) => match check_prefix(prefix) {
            Some(problem) => return Some(format!("{key}: {problem}")),
            None if prefix.network().is_multicast() => "which is no source address".to_owned(),
            None => return None,
        },
    };
    Some(format!("{key} holds {source}, {why}"))
}

/// Checks that the guard looks at each source.
fn check_use(key: &str, sources: &BTreeSet<Source>, checked: AntiSpoofing) -> Option<String> {
    let is_idle = sources.iter().any(|source| !checked.looks_at(*source));
    let checked = checked.name();
    is_idle.then(|| {
        format!(
            "{key} holds a source that anti_spoofing = {checked:?} does not check: leave it out"
        )
    })
}

/// Checks that the network does not need more than a PF checks, for SR-IOV cards without a DPU.
pub fn check_without_eswitch(network: &Network) -> Option<String> {
    let (what, instead) = match network.anti_spoofing {
        AntiSpoofing::Full => {
            ("anti_spoofing = \"full\"".to_owned(), "anti_spoofing = \"mac\" or \"off\"")
        }
        AntiSpoofing::Mac => {
            let mac = macs(&network.allowed_sources).next()?;
            (format!("{mac} among allowed_sources"), "anti_spoofing = \"off\" without it")
        }
        AntiSpoofing::Off => return None,
    };
    Some(format!(
        "network {:?}: {what} needs a DPU; without one (eswitch.driver = \"none\") a PF checks only the VF's own \
         MAC address: write {instead}",
        network.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{
        check_network,
        networks::tests::{assert_problem, network},
    };

    #[test]
    fn pfs_alone_look_at_mac_addresses_alone() {
        let reported =
            |lines: &str| check_without_eswitch(&network(&format!("name = \"a\"\n{lines}")));
        let unsaid = reported("").unwrap();
        assert!(unsaid.starts_with("network \"a\": anti_spoofing = \"full\" needs"), "{unsaid}");
        assert!(unsaid.ends_with("write anti_spoofing = \"mac\" or \"off\""), "{unsaid}");
        let mac = "anti_spoofing = \"mac\"";
        let other = reported(&format!("{mac}\nallowed_sources = [\"00:00:5e:00:01:07\"]")).unwrap();
        assert!(other.contains("00:00:5e:00:01:07 among allowed_sources needs"), "{other}");
        assert_eq!(reported(mac), None);
        assert_eq!(reported("anti_spoofing = \"off\""), None);
    }

    #[test]
    fn allowed_sources_can_send_and_are_checked() {
        let sources = |level: &str, sources: &[&str]| {
            format!("name = \"a\"\nanti_spoofing = {level:?}\nallowed_sources = {sources:?}")
        };
        let all = ["00:00:5e:00:01:07", "10.0.0.7", "fd00::/64"];
        assert_eq!(check_network(&network(&sources("full", &all))), [""; 0]);
        assert_eq!(check_network(&network(&sources("mac", &all[..1]))), [""; 0]);
        assert_problem(&sources("mac", &all), "anti_spoofing = \"mac\" does not check");
        assert_problem(&sources("off", &all[..1]), "anti_spoofing = \"off\" does not check");
        assert_problem(&sources("full", &["ff:ff:ff:ff:ff:ff"]), "which is not the MAC address");
        assert_problem(&sources("full", &["10.0.0.1/8"]), "write 10.0.0.0/8");
        assert_problem(&sources("full", &["224.0.0.0/4"]), "which is no source address");
    }
}
