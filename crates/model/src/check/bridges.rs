//! Checks of the bridge that a network names, and of tags that no fabric sets.

use crate::Network;

/// Checks that the network's bridge is one of the `known` ones. Returns one sentence if not.
pub fn check_bridge(network: &Network, known: &[String]) -> Option<String> {
    let wanted = network.bridge.as_ref().filter(|wanted| !known.contains(wanted))?;
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let way_out = match bootstrap::nearest(wanted, &known) {
        _ if known.is_empty() => "fabric.driver = \"none\" has none: leave it out".to_owned(),
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("add it to fabric.bridges with name = {wanted:?}, and restart the service"),
    };
    Some(format!("network {:?}: the fabric has no bridge {wanted:?}: {way_out}", network.name))
}

/// Refuses tags that no fabric sets: one sentence each, with the way out.
pub(super) fn check_tags(network: &Network) -> Vec<String> {
    let outer = network.outer_vlan.map(|outer| {
        format!(
            "outer_vlan = {outer} can't be done: the guard of pods' ports expects at most one tag; leave it out, and \
             have the switch at the uplink add the outer tag (QinQ)"
        )
    });
    let priority = (network.vlan_priority != 0).then(|| {
        format!(
            "vlan_priority = {} can't be done: a bridge sends pods' frames with priority 0; leave it out, and have \
             the switch at the uplink set the priority of the VLAN",
            network.vlan_priority
        )
    });
    outer.into_iter().chain(priority).collect()
}

#[cfg(test)]
mod tests {
    use crate::check::networks::tests::assert_problem;

    #[test]
    fn unsupported_tags_are_refused_by_name() {
        assert_problem("name = \"a\"\nouter_vlan = 100", "outer_vlan = 100 can't be done");
        assert_problem("name = \"a\"\nvlan_priority = 5", "vlan_priority = 5 can't be done");
    }
}
