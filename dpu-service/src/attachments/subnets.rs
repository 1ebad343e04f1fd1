//! Adding and removing subnets of a network while its attachments run.

use ipnetwork::IpNetwork;
use offload_proto::{Failure, Reason};

use super::refuse_first;
use model::{Network, Subnet, check::check_network};

/// Changes of a network's subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetChange {
    /// Subnets to add. One that already exists with the same settings is accepted.
    pub add: Vec<Subnet>,
    /// Subnets to remove. One that does not exist is accepted.
    pub remove: Vec<IpNetwork>,
}

impl SubnetChange {
    /// Returns the network with the changes. Repeating a change gives the same network.
    ///
    /// # Errors
    /// [`Reason::InvalidRequest`]: a subnet exists with other settings, or the resulting network is invalid.
    pub(super) fn made_of(self, mut network: Network) -> Result<Network, Failure> {
        network.subnets.retain(|subnet| !self.remove.contains(&subnet.cidr));
        for subnet in self.add {
            match network.subnets.iter().find(|there| there.cidr == subnet.cidr) {
                Some(there) if *there == subnet => {}
                Some(_) => {
                    let message = format!(
                        "network {:?}: it has subnet {} already, with other settings: apply the whole network to \
                         change them",
                        network.name, subnet.cidr
                    );
                    return Err(Failure::new(Reason::InvalidRequest, message));
                }
                None => network.subnets.push(subnet),
            }
        }
        refuse_first(check_network(&network))?;
        Ok(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(subnets: &str) -> Network {
        toml::from_str(&format!("name = 'red'\nsubnets = [{subnets}]")).unwrap()
    }

    fn change(add: &str, remove: &[&str]) -> SubnetChange {
        let remove = remove.iter().map(|cidr| cidr.parse().unwrap()).collect();
        SubnetChange { add: network(add).subnets, remove }
    }

    const TEN: &str = "{ cidr = '10.1.0.0/24', gateway = '10.1.0.1' }";
    const SIX: &str = "{ cidr = 'fd00::/64' }";

    #[test]
    fn changed_subnets_keep_the_order_of_others() {
        let made = |before: &str, add: &str, remove: &[&str]| {
            change(add, remove).made_of(network(before)).unwrap()
        };
        assert_eq!(made("", TEN, &[]), network(TEN));
        assert_eq!(made(TEN, TEN, &[]), network(TEN));
        assert_eq!(made(TEN, SIX, &[]), network(&format!("{TEN}, {SIX}")));
        assert_eq!(made(&format!("{TEN}, {SIX}"), "", &["10.1.0.0/24"]), network(SIX));
        assert_eq!(made(TEN, SIX, &["10.1.0.0/24"]), network(SIX));
        let without_gateway = "{ cidr = '10.1.0.0/24' }";
        assert_eq!(made(TEN, without_gateway, &["10.1.0.0/24"]), network(without_gateway));
    }

    #[test]
    fn a_change_may_be_asked_for_again() {
        let before = network(&format!("{TEN}, {SIX}"));
        let change = change("{ cidr = '10.2.0.0/24' }", &["10.1.0.0/24"]);
        let once = change.clone().made_of(before).unwrap();
        assert_eq!(change.made_of(once.clone()), Ok(once));
    }

    #[test]
    fn invalid_subnet_changes_are_refused_by_name() {
        for (add, shown) in [
            ("{ cidr = '10.1.0.0/24' }", "subnet 10.1.0.0/24 already"),
            ("{ cidr = '10.2.0.1/24' }", "10.2.0.1/24 has host bits"),
            ("{ cidr = '10.2.0.0/24', gateway = '10.3.0.1' }", "gateway 10.3.0.1 is outside"),
        ] {
            let failure = change(add, &[]).made_of(network(TEN)).unwrap_err();
            assert_eq!(failure.reason, Reason::InvalidRequest);
            assert!(failure.message.contains(shown), "{failure}");
            assert!(failure.message.contains("network \"red\""), "{failure}");
        }
    }
}
