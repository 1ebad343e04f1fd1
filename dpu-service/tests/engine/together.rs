//! Networks of configuration file and API together: no address is held twice, and suspended networks are reported.

use dpu_service::attachments::{Origin, Settings, SubnetChange};
use ipnetwork::IpNetwork;
use model::{AttachSpec, Network, Record};
use offload_proto::{Failure, Reason};

use crate::world::{World, configuration, key, network, pool, red, requesting, settings, spec};

/// A network in the untagged domain.
fn named(name: &str, cidr: &str) -> Network {
    network(&format!("name = '{name}'\n[[subnets]]\ncidr = '{cidr}'\n"))
}

fn on(network: &str, container: &str) -> AttachSpec {
    requesting(spec(container), |it| it.network = network.into())
}

async fn apply(world: &World, network: Network) -> Result<(), Failure> {
    world.engine.networks().apply(network, None, false).await.map(drop)
}

fn addresses(record: &Record) -> Vec<IpNetwork> {
    record.leases.iter().map(|lease| lease.address).collect()
}

/// Fails unless there is exactly one warning, with all of `words`.
fn assert_warning(world: &World, words: &[&str]) {
    let warnings = world.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(words.iter().all(|word| warnings[0].contains(word)), "{warnings:?}");
}

#[tokio::test]
async fn overlapping_subnets_are_refused() {
    let world = World::new().await;
    apply(&world, named("blue", "10.2.0.0/24")).await.unwrap();
    let twice =
        "name = 'green'\n[[subnets]]\ncidr = '10.3.0.0/16'\n[[subnets]]\ncidr = '10.3.1.0/24'";
    let refused = [
        (named("green", "10.2.0.0/24"), "blue"),
        (named("green", "10.2.0.0/30"), "blue"),
        (named("green", "10.2.0.0/15"), "blue"),
        (Network { vlan: Some(100), ..named("green", "10.1.0.0/16") }, "red"),
        (network(twice), "green"),
    ];
    for (refused, other) in refused {
        let failure = apply(&world, refused.clone()).await.unwrap_err();
        assert_eq!(failure.reason, Reason::InvalidRequest, "{refused:?}");
        assert!(failure.message.contains(other), "{failure}");
    }
    let mut file = configuration();
    file.networks.push(named("green", "10.2.0.0/16"));
    let failure = world.engine.load_configuration(file).await.unwrap_err();
    assert!(failure.message.contains("blue") && failure.message.contains("green"), "{failure}");
    // Its own subnet does not count as a conflict.
    apply(&world, named("blue", "10.2.0.0/16")).await.unwrap();
}

#[tokio::test]
async fn addresses_of_a_renamed_network_stay_held() {
    let mut world = World::new().await;
    let old = world.attached("old").await;
    world.configuration.networks = vec![Network { name: "rouge".into(), ..red() }];
    world.restart().await;
    world.connect(pending("old", &world)).await;
    let new = world.attach(spec("new")).await.unwrap();
    assert_eq!(new.record.network.name, "rouge");
    world.check();
    let asked = requesting(spec("third"), |it| {
        it.addresses = vec![addresses(&old.record)[0].to_string().parse().unwrap()];
    });
    assert_eq!(world.refused(asked.clone()).await, Reason::AddressInUse);
    // Released, they are available.
    world.detach("old").await;
    world.attach(asked).await.unwrap();
    world.check();
}

fn pending(container: &str, world: &World) -> dpu_service::host::Hello {
    let pending = vec![key(container)];
    dpu_service::host::Hello { pending, ..crate::world::hello(&world.kernel, &world.boot_id, &[]) }
}

#[tokio::test]
async fn addresses_of_a_deleted_network_stay_held() {
    let world = World::new().await;
    apply(&world, named("blue", "10.2.0.0/30")).await.unwrap();
    world.attach(on("blue", "old")).await.unwrap();
    world.engine.networks().delete("blue".into(), true).await.unwrap();
    apply(&world, named("green", "10.2.0.0/29")).await.unwrap();
    apply(&world, named("violet", "10.4.0.0/24")).await.unwrap();
    for container in ["a", "b"] {
        world.attach(on("green", container)).await.unwrap();
    }
    world.check();
    // A network that grows over them cannot lease them either.
    let world = World::new().await;
    apply(&world, named("blue", "10.2.0.0/30")).await.unwrap();
    world.attach(on("blue", "old")).await.unwrap();
    world.engine.networks().delete("blue".into(), true).await.unwrap();
    apply(&world, named("green", "10.2.0.4/30")).await.unwrap();
    apply(&world, named("green", "10.2.0.0/29")).await.unwrap();
    for container in ["a", "b", "c"] {
        world.attach(on("green", container)).await.unwrap();
    }
    world.check();
}

#[tokio::test]
async fn addresses_of_a_deleted_network_cool_down() {
    let with_cool_down =
        Settings { address_cool_down: std::time::Duration::from_secs(600), ..settings() };
    let world = World::with(configuration(), with_cool_down, 4).await;
    apply(&world, named("blue", "10.2.0.0/30")).await.unwrap();
    for container in ["a", "b"] {
        world.attach(on("blue", container)).await.unwrap();
    }
    world.detach("a").await;
    world.engine.networks().delete("blue".into(), true).await.unwrap();
    apply(&world, named("green", "10.2.0.0/30")).await.unwrap();
    world.detach("b").await;
    let views = world.engine.networks().list();
    let green = views.iter().find(|view| view.network.name == "green").unwrap();
    assert_eq!(green.subnets[0].cooling, 2);
}

#[tokio::test]
async fn merged_subnet_keeps_both_addresses_held() {
    let mut world = World::new().await;
    let halves =
        "name = 'blue'\n[[subnets]]\ncidr = '10.2.0.0/30'\n[[subnets]]\ncidr = '10.2.0.4/30'";
    apply(&world, network(halves)).await.unwrap();
    let addresses = ["10.2.0.1", "10.2.0.5"].map(|address| address.parse().unwrap()).to_vec();
    world.attach(requesting(on("blue", "old"), |it| it.addresses = addresses)).await.unwrap();
    world.engine.networks().delete("blue".into(), true).await.unwrap();
    apply(&world, named("green", "10.2.0.0/29")).await.unwrap();
    for address in ["10.2.0.1", "10.2.0.5"] {
        let addresses = vec![address.parse().unwrap()];
        let failure =
            world.attach(requesting(on("green", "new"), |it| it.addresses = addresses)).await;
        assert_eq!(failure.unwrap_err().reason, Reason::AddressInUse);
    }
    world.detach("old").await;
    world.restart().await;
    assert_eq!(world.engine.networks().list()[0].subnets[0].held, 0);
}

#[tokio::test]
async fn suspended_network_is_a_fault_and_resumes() {
    let mut world = World::new().await;
    apply(&world, named("blue", "10.2.0.0/24")).await.unwrap();
    let running = world.attach(on("blue", "running")).await.unwrap();
    world.configuration.networks.push(named("green", "10.2.0.0/16"));
    world.restart().await;
    assert_warning(&world, &["blue", "not in force", "green"]);
    assert!(world.engine.status().is_empty(), "Attach is served");
    world.connect(pending("running", &world)).await;
    assert_eq!(world.refused(on("blue", "pod")).await, Reason::NetworkUnknown);
    // Running attachments keep what they hold, and no other gets it.
    assert_eq!(world.attach(on("blue", "running")).await.unwrap().record, running.record);
    world.attach(on("green", "pod")).await.unwrap();
    world.check();

    world.detach("pod").await;
    world.engine.load_configuration(configuration()).await.unwrap();
    assert_eq!(world.warnings(), [""; 0]);
    world.attach(on("blue", "pod")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn start_and_reload_refuse_the_same() {
    let mut world = World::new().await;
    world.configuration.networks[0].default = false;
    world.configuration.pools.push(pool("other", "p0#3"));
    world.engine.load_configuration(world.configuration.clone()).await.unwrap();
    let default = Network { default: true, ..named("blue", "10.2.0.0/24") };
    apply(&world, default).await.unwrap();
    apply(&world, Network { pool: "other".into(), ..named("green", "10.3.0.0/24") }).await.unwrap();
    apply(&world, named("violet", "10.4.0.0/24")).await.unwrap();

    world.configuration = configuration();
    world.configuration.networks.push(named("violet", "10.5.0.0/24"));
    world.restart().await;
    let warnings = world.warnings();
    let expected = [("blue", "default"), ("green", "other"), ("violet", "configuration file")];
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for (warning, (name, why)) in warnings.iter().zip(expected) {
        assert!(warning.contains(name) && warning.contains(why), "{warning}");
    }
    let views = world.engine.networks().list();
    let names: Vec<_> = views.iter().map(|view| (&*view.network.name, view.origin)).collect();
    assert_eq!(names, [("red", Origin::Configuration), ("violet", Origin::Configuration)]);

    // Each can be deleted or changed into one without a conflict; the file's own network stays.
    world.engine.networks().delete("violet".into(), false).await.unwrap();
    let failure = world.engine.networks().delete("violet".into(), false).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NetworkFixed);
    world.engine.networks().delete("green".into(), false).await.unwrap();
    apply(&world, named("blue", "10.2.0.0/24")).await.unwrap();
    assert_eq!(world.warnings(), [""; 0]);
    world.restart().await;
    assert_eq!(world.warnings(), [""; 0]);
    assert_eq!(world.engine.networks().list().len(), 3);
}

/// Addresses that pods use as gateway, next hop or broadcast address, by an earlier version of their network.
fn old_form() -> Network {
    network(
        "name = 'blue'\nroutes = [{ destination = '10.9.0.0/16', gateway = '10.2.0.2' }]\n\
         [[subnets]]\ncidr = '10.2.0.0/29'\ngateway = '10.2.0.1'\n",
    )
}

/// Last bytes of the addresses of as many pods as can be attached, in order.
async fn attach_all(world: &World, network: &str) -> Vec<u8> {
    let mut given = Vec::new();
    for number in 0.. {
        match world.attach(on(network, &format!("pod-{number}"))).await {
            Ok(view) => {
                let address = view.record.leases[0].address.ip().to_string();
                given.push(address.rsplit('.').next().unwrap().parse().unwrap());
            }
            Err(refused) => {
                assert_eq!(refused.reason, Reason::AddressesExhausted, "{refused}");
                break;
            }
        }
    }
    given.sort_unstable();
    given
}

/// The old gateway 10.2.0.1, next hop 10.2.0.2 and broadcast address 10.2.0.7 are excluded until the old pod ends.
async fn assert_used_addresses_are_taken(mut world: World, network: &str) {
    for address in ["10.2.0.1", "10.2.0.2", "10.2.0.7"] {
        let addresses = vec![address.parse().unwrap()];
        let asking = requesting(on(network, "asking"), |it| it.addresses = addresses);
        assert_eq!(world.refused(asking).await, Reason::AddressNotAllowed, "{address}");
    }
    world.restart().await;
    world.connect(pending("old", &world)).await;
    assert_eq!(attach_all(&world, network).await, [4, 5, 6, 8, 9, 10, 11, 12, 13]);
    world.check();
    world.detach("old").await;
    assert_eq!(attach_all(&world, network).await, Vec::from_iter(1..=13));
    world.check();
}

/// A world whose pod `old` has 10.2.0.3 by an earlier version of a network.
async fn with_old_pod() -> World {
    let world = World::with(configuration(), settings(), 32).await;
    apply(&world, old_form()).await.unwrap();
    let view = world.attach(on("blue", "old")).await.unwrap();
    assert_eq!(addresses(&view.record), ["10.2.0.3/29".parse::<IpNetwork>().unwrap()]);
    world
}

fn new_form(name: &str) -> Network {
    network(&format!("name = '{name}'\n[[subnets]]\ncidr = '10.2.0.0/28'\ngateway = '10.2.0.14'\n"))
}

#[tokio::test]
async fn changed_network_excludes_used_addresses() {
    let world = with_old_pod().await;
    apply(&world, new_form("blue")).await.unwrap();
    assert_used_addresses_are_taken(world, "blue").await;
}

#[tokio::test]
async fn renamed_network_excludes_used_addresses() {
    let world = with_old_pod().await;
    world.engine.networks().delete("blue".into(), true).await.unwrap();
    apply(&world, new_form("green")).await.unwrap();
    assert_used_addresses_are_taken(world, "green").await;
}

/// Another network or subnet whose gateway, next hop or broadcast address a pod holds.
#[tokio::test]
async fn held_addresses_become_no_gateway() {
    let mut world = World::new().await;
    apply(&world, named("blue", "10.2.0.0/28")).await.unwrap();
    let asking =
        requesting(on("blue", "pod"), |it| it.addresses = vec!["10.2.0.7".parse().unwrap()]);
    let view = world.attach(asking).await.unwrap();
    world.engine.networks().delete("blue".into(), true).await.unwrap();
    let other = |cidr: &str, keys: &str| {
        network(&format!("name = 'violet'\n{keys}\n[[subnets]]\ncidr = '{cidr}'\n"))
    };
    let next_hop = "routes = [{ destination = '10.9.0.0/16', gateway = '10.2.0.7' }]";
    let with_gateway =
        network("name = 'violet'\n[[subnets]]\ncidr = '10.2.0.0/28'\ngateway = '10.2.0.7'\n");
    for conflicting in [with_gateway, other("10.2.0.0/28", next_hop), other("10.2.0.0/29", "")] {
        let failure = apply(&world, conflicting).await.unwrap_err();
        assert_eq!(failure.reason, Reason::LeaseInTheWay);
        assert!(failure.message.contains(&view.record.id.to_string()), "{failure}");
    }
    apply(&world, named("violet", "10.8.0.0/24")).await.unwrap();
    let subnet = toml::from_str("cidr = '10.2.0.0/28'\ngateway = '10.2.0.7'").unwrap();
    let change = SubnetChange { add: vec![subnet], remove: Vec::new() };
    let added = world.engine.networks().change_subnets("violet".into(), change).await;
    assert_eq!(added.unwrap_err().reason, Reason::LeaseInTheWay);

    // A start accepts the file and reports the conflict.
    let green = "name = 'green'\n[[subnets]]\ncidr = '10.2.0.0/28'\ngateway = '10.2.0.7'\n";
    world.configuration.networks.push(network(green));
    world.restart().await;
    assert_warning(&world, &["network green", "10.2.0.7", &view.record.id.to_string()]);
}
