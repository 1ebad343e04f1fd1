//! Routes, policy rules and sysctls, from a network to its attachments.

use model::{AttachSpec, PolicyRule, Route};

use crate::world::{World, network, requesting, spec};

fn sources(rules: &[PolicyRule]) -> Vec<String> {
    rules.iter().map(|rule| rule.source.to_string()).collect()
}

fn of_network(name: &str) -> AttachSpec {
    requesting(spec(name), |it| it.network = name.into())
}

#[tokio::test]
async fn own_address_rules_use_the_pods_addresses() {
    let world = World::new().await;
    let both = "subnets = [{ cidr = '10.2.0.0/24' }, { cidr = 'fd00:2::/64' }]
                routes = [{ destination = '0.0.0.0/0', gateway = '10.2.0.9', table = 7 },
                          { destination = '::/0', gateway = 'fd00:2::9', table = 7 }]";
    for (name, source, expected) in [
        ("both", "own", &["10.2.0.1/32", "fd00:2::1/128"][..]),
        ("v4", "own-ipv4", &["10.2.0.1/32"]),
        ("v6", "own-ipv6", &["fd00:2::1/128"]),
        ("prefix", "10.0.0.0/8", &["10.0.0.0/8"]),
    ] {
        let rule = format!("rules = [{{ source = '{source}', table = 7, priority = 9 }}]");
        let applied = network(&format!("name = '{name}'\n{both}\n{rule}"));
        world.engine.networks().apply(applied, None, false).await.unwrap();
        let view = world.attach(of_network(name)).await.unwrap();
        let rules = view.record.rules();
        assert_eq!(sources(&rules), expected);
        assert!(rules.iter().all(|rule| (rule.table, rule.priority) == (7, 9)));
        world.detach(name).await;
        world.engine.networks().delete(name.into(), false).await.unwrap();
    }
}

#[tokio::test]
async fn dropping_route_replaces_its_own_default_route() {
    let world = World::new().await;
    let attached = async |name: &str, route: &str| {
        let applied = network(&format!(
            "name = '{name}'\nsubnets = [{{ cidr = '10.2.0.0/24', gateway = '10.2.0.1' }}]\n\
             routes = [{{ destination = '0.0.0.0/0', kind = 'blackhole', {route} }}]"
        ));
        world.engine.networks().apply(applied, None, false).await.unwrap();
        let view = world.attach(of_network(name)).await.unwrap();
        world.detach(name).await;
        world.engine.networks().delete(name.into(), false).await.unwrap();
        let gateways = view.record.routes().into_iter().map(|route: Route| route.gateway);
        gateways.flatten().map(|gateway| gateway.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(attached("last", "priority = 9999").await, ["10.2.0.1"]);
    assert_eq!(attached("elsewhere", "table = 7").await, ["10.2.0.1"]);
    assert_eq!(attached("instead", "table = 254").await, [""; 0]);
}
