//! Two operators who change one network, and renamed networks.

use std::time::Duration;

use dpu_service::attachments::{Applied, NetworkView, Settings};
use model::{AttachSpec, HostRights, Network, ResourceVersion};
use offload_proto::Reason;

use crate::world::{VFS, World, configuration, host, network, requesting, settings, spec};

fn blue(vlan: u16) -> Network {
    network(&format!("name = 'blue'\nvlan = {vlan}\n[[subnets]]\ncidr = '10.2.0.0/24'\n"))
}

fn on(network: &str, container: &str) -> AttachSpec {
    requesting(spec(container), |it| it.network = network.into())
}

async fn apply(
    world: &World,
    network: Network,
    read: Option<&ResourceVersion>,
    dry_run: bool,
) -> Result<Applied, Reason> {
    let applied = world.engine.networks().apply(network, read.cloned(), dry_run).await;
    applied.map(|(_, applied)| applied).map_err(|failure| failure.reason)
}

async fn rename(world: &World, name: &str, new_name: &str) -> Result<NetworkView, Reason> {
    let renamed = world.engine.networks().rename(name.into(), new_name.into()).await;
    renamed.map_err(|failure| failure.reason)
}

fn names(world: &World) -> Vec<String> {
    let views = world.engine.networks().list();
    views.iter().map(|view| view.network.name.clone()).collect()
}

#[tokio::test]
async fn older_version_is_refused() {
    let world = World::new().await;
    apply(&world, blue(100), None, false).await.unwrap();
    let read = ResourceVersion::of(&blue(100));
    assert_eq!(apply(&world, blue(200), Some(&read), false).await, Ok(Applied::Changed));
    for dry_run in [true, false] {
        let late = apply(&world, blue(300), Some(&read), dry_run).await;
        assert_eq!(late, Err(Reason::NetworkConflict));
    }
    // A network equal to the one in force is accepted with any version, and without a version any is replaced.
    assert_eq!(apply(&world, blue(200), Some(&read), false).await, Ok(Applied::Unchanged));
    assert_eq!(apply(&world, blue(300), None, false).await, Ok(Applied::Changed));
}

#[tokio::test]
async fn deleted_network_is_not_made_again() {
    let world = World::new().await;
    let read = ResourceVersion::of(&blue(100));
    let late = apply(&world, blue(200), Some(&read), false).await;
    assert_eq!(late, Err(Reason::NetworkConflict));
    assert_eq!(names(&world), ["red"]);
}

#[tokio::test]
async fn renamed_network_keeps_attachments_and_addresses() {
    let settings = Settings { address_cool_down: Duration::from_secs(600), ..settings() };
    let mut world = World::with(configuration(), settings, VFS).await;
    apply(&world, blue(100), None, false).await.unwrap();
    let held = world.attach(on("blue", "held")).await.unwrap();
    world.attach(on("blue", "gone")).await.unwrap();
    world.detach("gone").await;
    let view = rename(&world, "blue", "azure").await.unwrap();
    assert_eq!((&*view.network.name, view.attachments, view.subnets[0].held), ("azure", 1, 1));
    world.check();
    assert_eq!(world.refused(on("blue", "late")).await, Reason::NetworkUnknown);
    // Neither a held address nor one in cool-down.
    let next = world.attach(on("azure", "next")).await.unwrap();
    assert_eq!(next.record.leases[0].address.to_string(), "10.2.0.3/24");
    world.check();
    let in_use = world.engine.networks().delete("azure".into(), false).await.unwrap_err();
    assert_eq!(in_use.reason, Reason::NetworkInUse);

    world.restart().await;
    assert_eq!(names(&world), ["azure", "red"]);
    for before in [held, next] {
        let after =
            world.list().into_iter().find(|view| view.record.id == before.record.id).unwrap();
        assert_eq!(after.record.network.name, "azure");
        assert_eq!(after.record.leases, before.record.leases);
    }
    world.check();
}

#[tokio::test]
async fn rename_follows_a_networks_own_rules() {
    let world = World::new().await;
    let mut own = blue(100);
    own.allow = network("name = 'a'\nallow = [{ from_networks = ['blue'] }]").allow;
    apply(&world, own, None, false).await.unwrap();
    let held = world.attach(on("blue", "held")).await.unwrap();
    let ingress_rules = held.record.port_settings().ingress_rules;
    rename(&world, "blue", "azure").await.unwrap();
    let renamed = world.list().remove(0).record;
    assert!(renamed.network.allow[0].from_networks.contains("azure"));
    assert_eq!(renamed.port_settings().ingress_rules, ingress_rules);
    world.check();
}

#[tokio::test]
async fn impossible_renames_are_refused() {
    let world = World::new().await;
    apply(&world, blue(100), None, false).await.unwrap();
    for (name, new_name, reason) in [
        ("green", "azure", Reason::NetworkUnknown),
        ("red", "azure", Reason::NetworkFixed),
        ("blue", "red", Reason::InvalidRequest),
        ("blue", "blue", Reason::InvalidRequest),
    ] {
        assert_eq!(rename(&world, name, new_name).await.unwrap_err(), reason, "{name} {new_name}");
    }
    let allowing = network(
        "name = 'green'\nallow = [{ from_networks = ['blue'] }]\n[[subnets]]\ncidr = '10.3.0.0/24'\n",
    );
    apply(&world, allowing, None, false).await.unwrap();
    assert_eq!(rename(&world, "blue", "azure").await.unwrap_err(), Reason::NetworkNamed);
    world.attach(on("blue", "pod")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn gateway_in_use_keeps_its_name() {
    let world = World::new().await;
    let routed = network(
        "name = 'blue'\nvlan = 100\ngateway_mode = 'dpu'\n[[subnets]]\ncidr = '10.2.0.0/24'\ngateway = '10.2.0.1'\n",
    );
    apply(&world, routed, None, false).await.unwrap();
    world.attach(on("blue", "pod")).await.unwrap();
    assert_eq!(rename(&world, "blue", "azure").await.unwrap_err(), Reason::NetworkInUse);
    world.detach("pod").await;
    rename(&world, "blue", "azure").await.unwrap();
}

#[tokio::test]
async fn network_with_a_host_port_keeps_its_name() {
    let world = World::new().await;
    apply(&world, blue(100), None, false).await.unwrap();
    let mut port = on("blue", "host-port");
    port.key.interface_name = "offload0".into();
    world.attach(port).await.unwrap();
    assert_eq!(rename(&world, "blue", "azure").await.unwrap_err(), Reason::NetworkInUse);
}

#[tokio::test]
async fn rename_takes_no_network_from_a_host() {
    let mut world = World::new().await;
    let allowed = |networks: &[&str]| HostRights {
        networks: networks.iter().map(|name| (*name).to_owned()).collect(),
        ..HostRights::default()
    };
    apply(&world, blue(100), None, false).await.unwrap();
    world.configuration.rights.insert(host(), allowed(&["blue"]));
    world.engine.load_configuration(world.configuration.clone()).await.unwrap();
    assert_eq!(rename(&world, "blue", "azure").await.unwrap_err(), Reason::NetworkNamed);
    world.configuration.rights.insert(host(), allowed(&["blue", "azure"]));
    world.engine.load_configuration(world.configuration.clone()).await.unwrap();
    rename(&world, "blue", "azure").await.unwrap();
    world.attach(on("azure", "pod")).await.unwrap();
}

#[tokio::test]
async fn rename_on_a_full_disk_changes_nothing() {
    let mut world = World::new().await;
    apply(&world, blue(100), None, false).await.unwrap();
    world.attach(on("blue", "held")).await.unwrap();
    world.set_full(true);
    assert_eq!(rename(&world, "blue", "azure").await.unwrap_err(), Reason::JournalUnavailable);
    assert_eq!(names(&world), ["blue", "red"]);
    world.set_full(false);
    world.attach(on("blue", "next")).await.unwrap();
    world.restart().await;
    assert_eq!(names(&world), ["blue", "red"]);
    world.check();
}
