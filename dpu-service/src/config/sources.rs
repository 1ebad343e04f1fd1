//! What makes sense in what a network says of whom its pods send for.

use std::collections::BTreeSet;

use super::networks::check_prefix;
use crate::model::{AntiSpoofing, Network, Source};

/// Most sources in a list: what a port is guarded by has an end.
const MOST_SOURCES: usize = 32;

/// Whether it names such as can send and are looked at. Returns one sentence for each problem.
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

/// Whether nobody can send from it: one sentence, which names the `key` that it stands under.
pub(crate) fn check_source(key: &str, source: Source) -> Option<String> {
    let why = match source {
        Source::Mac(mac) if mac.is_unicast() => return None,
        Source::Mac(_) => "which is no single station's MAC address".to_owned(),
        Source::Addresses(prefix) => match check_prefix(prefix) {
            Some(problem) => return Some(format!("{key}: {problem}")),
            None if prefix.network().is_multicast() => "which nobody sends from".to_owned(),
            None => return None,
        },
    };
    Some(format!("{key} holds {source}, {why}"))
}

/// Whether all sources mean something where that is checked.
fn check_use(key: &str, sources: &BTreeSet<Source>, checked: AntiSpoofing) -> Option<String> {
    let is_idle = sources.iter().any(|source| !checked.looks_at(*source));
    let checked = checked.name();
    is_idle.then(|| {
        format!("{key} holds what anti_spoofing = {checked:?} does not look at: leave that out")
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{
        check_network,
        networks::tests::{assert_problem, network},
    };

    #[test]
    fn allowed_sources_are_such_as_can_send_and_are_looked_at() {
        let sources = |level: &str, sources: &[&str]| {
            format!("name = \"a\"\nanti_spoofing = {level:?}\nallowed_sources = {sources:?}")
        };
        let all = ["00:00:5e:00:01:07", "10.0.0.7", "fd00::/64"];
        assert_eq!(check_network(&network(&sources("full", &all))), [""; 0]);
        assert_eq!(check_network(&network(&sources("mac", &all[..1]))), [""; 0]);
        assert_problem(&sources("mac", &all), "anti_spoofing = \"mac\" does not look at");
        assert_problem(&sources("off", &all[..1]), "anti_spoofing = \"off\" does not look at");
        assert_problem(&sources("full", &["ff:ff:ff:ff:ff:ff"]), "which is no single station's");
        assert_problem(&sources("full", &["10.0.0.1/8"]), "write 10.0.0.0/8");
        assert_problem(&sources("full", &["224.0.0.0/4"]), "which nobody sends from");
    }
}
