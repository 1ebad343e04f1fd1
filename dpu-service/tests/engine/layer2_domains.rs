//! The same subnet in several layer-2 domains: an address belongs to one attachment in a domain, and networks that
//! would meet are refused.

use std::{sync::Arc, time::Duration};

use dpu_service::{attachments::Settings, host::Hello};
use model::{AttachSpec, AttachmentKey, HostRights, Network, Record};
use offload_proto::{Failure, Reason};

use crate::world::{World, configuration, hello, host, key, network, requesting, settings, spec};

fn tenant(name: &str, vlan: u16, cidr: &str) -> Network {
    network(&format!("name = '{name}'\nvlan = {vlan}\n[[subnets]]\ncidr = '{cidr}'\n"))
}

fn with_gateway(name: &str, vlan: u16) -> Network {
    network(&format!(
        "name = '{name}'\nvlan = {vlan}\ngateway_mode = 'dpu'\n\
         [[subnets]]\ncidr = '10.2.0.0/29'\ngateway = '10.2.0.1'\n"
    ))
}

fn on(network: &str, container: &str) -> AttachSpec {
    requesting(spec(container), |it| it.network = network.into())
}

fn asking_for(network: &str, container: &str, address: &str) -> AttachSpec {
    requesting(on(network, container), |it| it.addresses = vec![address.parse().unwrap()])
}

fn host_port(network: &str, name: &str) -> AttachSpec {
    let key = AttachmentKey {
        host: host(),
        container_id: "host-port".into(),
        interface_name: name.into(),
    };
    AttachSpec { key, ..requesting(spec(""), |it| it.network = network.into()) }
}

async fn apply(world: &World, network: Network) -> Result<(), Failure> {
    world.engine.networks().apply(network, None, false).await.map(drop)
}

/// The reason for which a network is refused, from the API as from the file.
async fn assert_conflict(world: &World, network: Network, named: &[&str]) {
    let refused = world.engine.networks().apply(network.clone(), None, true).await.unwrap_err();
    assert_eq!(refused.reason, Reason::SubnetConflict, "{refused}");
    for word in named {
        assert!(refused.message.contains(word), "{word:?} is not in {refused}");
    }
    assert_eq!(apply(world, network).await.unwrap_err().reason, Reason::SubnetConflict);
}

/// Two tenants with 10.2.0.0/29 in VLANs 20 and 30.
async fn two_tenants(settings: Settings) -> World {
    let world = World::with(configuration(), settings, 8).await;
    for (name, vlan) in [("acme", 20), ("bolt", 30)] {
        apply(&world, tenant(name, vlan, "10.2.0.0/29")).await.unwrap();
    }
    world
}

fn address(record: &Record) -> String {
    record.leases[0].address.ip().to_string()
}

async fn attached(world: &World, spec: AttachSpec) -> Arc<Record> {
    world.attach(spec).await.unwrap().record
}

/// The service dies and restarts; the host knows these containers.
async fn restart(world: &mut World, containers: &[&str]) {
    world.restart().await;
    let pending = containers.iter().map(|container| key(container)).collect();
    let hello = hello(&world.kernel, &world.boot_id, &[]);
    world.connect(Hello { pending, ..hello }).await;
}

#[tokio::test]
async fn two_vlans_have_the_same_addresses() {
    let mut world = two_tenants(settings()).await;
    let [a, b] = [on("acme", "a"), on("bolt", "b")];
    let (of_a, of_b) = (attached(&world, a).await, attached(&world, b).await);
    assert_eq!(address(&of_a), address(&of_b));
    attached(&world, asking_for("acme", "c", "10.2.0.5")).await;
    attached(&world, asking_for("bolt", "d", "10.2.0.5")).await;
    for network in ["acme", "bolt"] {
        let again = asking_for(network, "e", "10.2.0.5");
        assert_eq!(world.refused(again).await, Reason::AddressInUse);
    }
    world.check();
    let held = |world: &World| -> Vec<u64> {
        let views = world.engine.networks().list();
        views.iter().map(|view| view.subnets[0].held).collect()
    };
    assert_eq!(held(&world), [2, 2, 0], "acme, bolt and red");

    restart(&mut world, &["a", "b", "c", "d"]).await;
    assert_eq!(held(&world), [2, 2, 0]);
    for network in ["acme", "bolt"] {
        let again = asking_for(network, "e", "10.2.0.5");
        assert_eq!(world.refused(again).await, Reason::AddressInUse);
    }
    world.detach("c").await;
    assert_eq!(world.refused(asking_for("bolt", "e", "10.2.0.5")).await, Reason::AddressInUse);
    attached(&world, asking_for("acme", "e", "10.2.0.5")).await;
    world.check();
}

#[tokio::test]
async fn address_is_in_cool_down_in_its_domain() {
    let cooling = Settings { address_cool_down: Duration::from_secs(600), ..settings() };
    let mut world = two_tenants(cooling).await;
    let asked = |network: &str, container: &str| asking_for(network, container, "10.2.0.5");
    attached(&world, asked("acme", "a")).await;
    world.detach("a").await;
    assert_eq!(world.refused(asked("acme", "other")).await, Reason::AddressInUse);
    attached(&world, asked("bolt", "b")).await;
    world.detach("b").await;
    // Now both are in cool-down, each with its own row in the journal, for their former owners only.
    for restarts in [false, true] {
        if restarts {
            restart(&mut world, &[]).await;
        }
        for (network, owner, other) in [("acme", "a", "b"), ("bolt", "b", "a")] {
            assert_eq!(world.refused(asked(network, other)).await, Reason::AddressInUse);
            attached(&world, asked(network, owner)).await;
            world.detach(owner).await;
        }
    }
}

#[tokio::test]
async fn changed_vlan_leaves_the_cool_down_behind() {
    let cooling = Settings { address_cool_down: Duration::from_secs(600), ..settings() };
    let mut world = World::with(configuration(), cooling, 8).await;
    let asked = |container: &str| asking_for("acme", container, "10.2.0.5");
    apply(&world, tenant("acme", 20, "10.2.0.0/29")).await.unwrap();
    attached(&world, asked("a")).await;
    world.detach("a").await;
    apply(&world, tenant("acme", 21, "10.2.0.0/29")).await.unwrap();
    attached(&world, asked("b")).await;
    world.detach("b").await;
    for (vlan, owner, other) in [(21, "b", "a"), (20, "a", "b")] {
        apply(&world, tenant("acme", vlan, "10.2.0.0/29")).await.unwrap();
        restart(&mut world, &[]).await;
        assert_eq!(world.refused(asked(other)).await, Reason::AddressInUse);
        attached(&world, asked(owner)).await;
        world.detach(owner).await;
    }
}

#[tokio::test]
async fn changed_vlan_leaves_running_pods_their_domain() {
    let mut world = World::with(configuration(), settings(), 8).await;
    apply(&world, tenant("acme", 20, "10.2.0.0/29")).await.unwrap();
    attached(&world, asking_for("acme", "old", "10.2.0.5")).await;
    apply(&world, tenant("acme", 21, "10.2.0.0/29")).await.unwrap();
    attached(&world, asking_for("acme", "new", "10.2.0.5")).await;
    world.check();
    // Another network moves into the old pod's domain.
    apply(&world, tenant("bolt", 20, "10.2.0.0/28")).await.unwrap();
    for restarts in [false, true] {
        if restarts {
            restart(&mut world, &["old", "new"]).await;
        }
        for network in ["acme", "bolt"] {
            let again = asking_for(network, "third", "10.2.0.5");
            assert_eq!(world.refused(again).await, Reason::AddressInUse);
        }
        world.check();
    }
    world.detach("old").await;
    attached(&world, asking_for("bolt", "third", "10.2.0.5")).await;
    world.check();
    // Back in the old VLAN, the network finds the address held again.
    world.engine.networks().delete("bolt".into(), true).await.unwrap();
    apply(&world, tenant("acme", 20, "10.2.0.0/29")).await.unwrap();
    assert_eq!(world.refused(asking_for("acme", "fourth", "10.2.0.5")).await, Reason::AddressInUse);
    world.detach("third").await;
    attached(&world, asking_for("acme", "fourth", "10.2.0.5")).await;
    world.check();
}

#[tokio::test]
async fn gateway_of_running_pods_is_kept_per_domain() {
    let world = World::with(configuration(), settings(), 8).await;
    let subnet = "[[subnets]]\ncidr = '10.2.0.0/29'\ngateway = '10.2.0.1'\n";
    apply(&world, network(&format!("name = 'acme'\nvlan = 20\n{subnet}"))).await.unwrap();
    attached(&world, on("acme", "old")).await;
    world.engine.networks().delete("acme".into(), true).await.unwrap();
    for (name, vlan) in [("bolt", 20), ("core", 30)] {
        apply(&world, tenant(name, vlan, "10.2.0.0/29")).await.unwrap();
    }
    let on_gateway = |network: &str| asking_for(network, "new", "10.2.0.1");
    assert_eq!(world.refused(on_gateway("bolt")).await, Reason::AddressNotAllowed);
    attached(&world, on_gateway("core")).await;
    world.check();
}

#[tokio::test]
async fn trunk_reaches_the_other_networks_domain() {
    let world = World::with(configuration(), settings(), 8).await;
    let trunk = |vlans: &str| {
        network(&format!(
            "name = 'acme'\nvlan = 20\ntrunk = [{vlans}]\n[[subnets]]\ncidr = '10.2.0.0/29'\n"
        ))
    };
    apply(&world, trunk("30")).await.unwrap();
    let bolt = || tenant("bolt", 30, "10.2.0.0/29");
    assert_eq!(apply(&world, bolt()).await.unwrap_err().reason, Reason::InvalidRequest);
    let old = attached(&world, on("acme", "old")).await;
    let elsewhere = tenant("acme", 20, "10.3.0.0/29");
    assert_eq!(apply(&world, elsewhere).await.unwrap_err().reason, Reason::LeaseInTheWay);
    apply(&world, trunk("")).await.unwrap();
    apply(&world, bolt()).await.unwrap();
    // The old pod may still send there.
    for network in ["acme", "bolt"] {
        let asked = asking_for(network, "new", &address(&old));
        assert_eq!(world.refused(asked).await, Reason::AddressInUse);
    }
    assert_eq!(apply(&world, trunk("30")).await.unwrap_err().reason, Reason::InvalidRequest);
    world.detach("old").await;
    attached(&world, asking_for("bolt", "new", &address(&old))).await;
    world.check();
}

/// One attachment of a network stays in the VLAN that the network has left.
#[tokio::test]
async fn trunk_joins_no_two_holders_of_an_address() {
    let world = World::with(configuration(), settings(), 8).await;
    for (name, vlan) in [("acme", 20), ("bolt", 30)] {
        apply(&world, tenant(name, vlan, "10.2.0.0/29")).await.unwrap();
        attached(&world, asking_for(name, name, "10.2.0.2")).await;
    }
    apply(&world, tenant("bolt", 31, "10.2.0.0/29")).await.unwrap();
    let trunk =
        network("name = 'acme'\nvlan = 20\ntrunk = [30]\n[[subnets]]\ncidr = '10.2.0.0/29'\n");
    assert_eq!(apply(&world, trunk.clone()).await.unwrap_err().reason, Reason::LeaseInTheWay);
    world.detach("bolt").await;
    apply(&world, trunk).await.unwrap();
    world.check();
}

/// The service accepts such a file at its start. The address stays held until both pods have ended.
#[tokio::test]
async fn trunk_of_the_file_frees_no_held_address() {
    let with_trunk = |vlans: &str| {
        let acme = format!(
            "name = 'acme'\nvlan = 20\ntrunk = [{vlans}]\n[[subnets]]\ncidr = '10.2.0.0/29'\n"
        );
        let mut file = configuration();
        file.networks.push(network(&acme));
        file
    };
    for (first, second) in [("acme", "bolt"), ("bolt", "acme")] {
        let mut world = World::with(with_trunk(""), settings(), 8).await;
        apply(&world, tenant("bolt", 30, "10.2.0.0/29")).await.unwrap();
        for name in ["acme", "bolt"] {
            attached(&world, asking_for(name, name, "10.2.0.2")).await;
        }
        apply(&world, tenant("bolt", 31, "10.2.0.0/29")).await.unwrap();
        world.configuration = with_trunk("30");
        restart(&mut world, &["acme", "bolt"]).await;
        let joined = |world: &World| {
            let warnings = world.warnings();
            warnings.iter().any(|warning| warning.contains("10.2.0.2") && warning.contains("acme"))
        };
        assert!(joined(&world));
        world.engine.load_configuration(world.configuration.clone()).await.unwrap();

        let asked = || asking_for("acme", "new", "10.2.0.2");
        world.detach(first).await;
        assert!(!joined(&world));
        assert_eq!(world.refused(asked()).await, Reason::AddressInUse, "{first} has ended");
        restart(&mut world, &[second]).await;
        assert_eq!(world.refused(asked()).await, Reason::AddressInUse, "{first} has ended");
        world.detach(second).await;
        attached(&world, asked()).await;
        world.check();
    }
}

#[tokio::test]
async fn subnet_routed_by_the_dpu_is_refused_elsewhere() {
    let world = two_tenants(settings()).await;
    assert_conflict(
        &world,
        with_gateway("core", 40),
        &["\"core\" in VLAN 40", "\"acme\" in VLAN 20"],
    )
    .await;
    // A later gateway.
    assert_conflict(&world, with_gateway("bolt", 30), &["\"bolt\" in VLAN 30", "\"acme\""]).await;
    let mut file = configuration();
    file.networks.push(with_gateway("core", 40));
    let refused = world.engine.load_configuration(file).await.unwrap_err();
    assert_eq!(refused.reason, Reason::SubnetConflict);

    for name in ["acme", "bolt"] {
        world.engine.networks().delete(name.into(), false).await.unwrap();
    }
    apply(&world, with_gateway("acme", 20)).await.unwrap();
    assert_conflict(&world, tenant("bolt", 30, "10.2.0.4/30"), &["\"bolt\"", "\"acme\""]).await;
    // Otherwise a network could reach both.
    let reaching = "name = 'core'\nvlan = 40\ngateway_mode = 'dpu'\nreaches = ['acme']\n\
                    [[subnets]]\ncidr = '10.3.0.0/24'\ngateway = '10.3.0.1'\n";
    apply(&world, network(reaching)).await.unwrap();
    assert_conflict(&world, with_gateway("bolt", 30), &["\"bolt\"", "\"acme\""]).await;
}

#[tokio::test]
async fn host_port_in_a_shared_subnet_is_refused() {
    let world = two_tenants(settings()).await;
    let refused = world.attach(host_port("acme", "offload0")).await.unwrap_err();
    assert_eq!(refused.reason, Reason::SubnetConflict);
    assert!(refused.message.contains("bolt in VLAN 30"), "{refused}");
    // Pods of a force-deleted network are still there.
    attached(&world, on("bolt", "pod")).await;
    world.engine.networks().delete("bolt".into(), true).await.unwrap();
    assert_eq!(world.refused(host_port("acme", "offload0")).await, Reason::SubnetConflict);
    world.detach("pod").await;
    attached(&world, host_port("acme", "offload0")).await;
    world.check();
}

#[tokio::test]
async fn network_beside_a_host_port_is_refused() {
    let mut world = World::with(configuration(), settings(), 8).await;
    apply(&world, tenant("acme", 20, "10.2.0.0/29")).await.unwrap();
    attached(&world, host_port("acme", "offload0")).await;
    let named = ["\"bolt\" in VLAN 30", "host node-1", "offload0"];
    assert_conflict(&world, tenant("bolt", 30, "10.2.0.0/24"), &named).await;
    // The network itself stays in the domain of its host port.
    assert_conflict(&world, tenant("acme", 21, "10.2.0.0/29"), &["offload0"]).await;
    let mut file = configuration();
    file.networks.push(tenant("bolt", 30, "10.2.0.0/24"));
    let refused = world.engine.load_configuration(file.clone()).await.unwrap_err();
    assert_eq!(refused.reason, Reason::SubnetConflict);

    // At a start the file wins, and the resulting conflicts are reported.
    world.configuration = file;
    world.restart().await;
    let warnings = world.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("offload0"), "{warnings:?}");
}

#[tokio::test]
async fn refusal_names_no_network_of_others() {
    let mut world = two_tenants(settings()).await;
    let rights = HostRights { networks: ["acme".to_owned()].into(), any_mac: true };
    world.configuration.rights = [(host(), rights)].into();
    world.engine.load_configuration(world.configuration.clone()).await.unwrap();
    let refused = world.attach(host_port("acme", "offload0")).await.unwrap_err();
    assert_eq!(refused.reason, Reason::SubnetConflict);
    assert!(!refused.message.contains("bolt") && !refused.message.contains("30"), "{refused}");
}
