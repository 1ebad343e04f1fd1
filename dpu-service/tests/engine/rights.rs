//! Rights of hosts: networks and MAC addresses.

use dpu_service::{attachments::Configuration, sessions::HostCommand};
use model::{AntiSpoofing, AttachSpec, HostRights, Network};
use offload_proto::{Reason, form::HOST_PORT_CONTAINER};

use crate::{
    other_host::{self, OtherHost, for_both, other},
    world::{World, configuration, host, network, red, requesting, settings, spec},
};

fn green() -> Network {
    network("name = 'green'\nnamespaces = ['prod', 'stage']")
}

fn with_green() -> Configuration {
    let mut configuration = configuration();
    configuration.networks.push(green());
    configuration
}

fn limited(networks: &[&str], any_mac: bool) -> Configuration {
    let networks = networks.iter().map(|name| (*name).to_owned()).collect();
    let rights = [(host(), HostRights { networks, any_mac })].into();
    Configuration { rights, ..with_green() }
}

fn on_green(container: &str, namespace: &str) -> AttachSpec {
    let mut spec = requesting(spec(container), |it| it.network = "green".into());
    spec.pod.namespace = namespace.into();
    spec
}

fn with_mac(container: &str, mac: &str) -> AttachSpec {
    requesting(spec(container), |it| it.mac = Some(mac.parse().unwrap()))
}

fn sending_from(container: &str, sources: &[&str]) -> AttachSpec {
    let asked_sources = sources.iter().map(|source| source.parse().unwrap()).collect();
    requesting(spec(container), |it| it.allowed_sources = asked_sources)
}

#[tokio::test]
async fn pods_use_the_sources_their_network_allows() {
    let mut configuration = configuration();
    let network = &mut configuration.networks[0];
    network.allowed_sources = ["10.1.0.7".parse().unwrap()].into();
    network.optional_sources =
        ["00:00:5e:00:01:07", "fd07::/64"].map(|source| source.parse().unwrap()).into();
    let world = World::with(configuration, settings(), 4).await;
    let asked = sending_from("router", &["00:00:5e:00:01:07", "fd07::1", "10.1.0.7"]);
    let view = world.attach(asked.clone()).await.unwrap();
    assert_eq!(view.record.allowed_sources(), asked.interface.allowed_sources);
    let plain = world.attached("plain").await;
    assert_eq!(plain.record.allowed_sources(), ["10.1.0.7".parse().unwrap()].into());
    for source in ["00:00:5e:00:01:08", "fd08::1", "fd07::/48", "10.1.0.8"] {
        let refused = world.attach(sending_from("thief", &[source])).await.unwrap_err();
        assert_refused_with(&refused, Reason::SourceNotAllowed, &["network red", source]);
    }
    let other = world.attach(sending_from("router", &[])).await.unwrap_err();
    assert_refused_with(&other, Reason::AttachmentDiffers, &["allowed sources"]);
    world.check();
}

/// A network without subnets does not know its pods' addresses unless it names other sources.
#[tokio::test]
async fn requested_sources_do_not_narrow_unknown_addresses() {
    let mut configuration = configuration();
    let sources = "optional_sources = ['10.1.0.7', '00:00:5e:00:01:07']";
    configuration.networks.push(network(&format!("name = 'open'\n{sources}")));
    configuration
        .networks
        .push(network(&format!("name = 'narrow'\nallowed_sources = ['10.2.0.0/16']\n{sources}")));
    let world = World::with(configuration, settings(), 4).await;
    for (name, checked) in [("open", 1), ("narrow", 3)] {
        let asked = sending_from(name, &["10.1.0.7", "00:00:5e:00:01:07"]);
        let view = world.attach(requesting(asked, |it| it.network = name.into())).await.unwrap();
        let sources = view.record.port_settings().allowed_sources;
        assert_eq!(sources.len(), checked, "{name}: {sources:?}");
        assert!(sources.contains(&"00:00:5e:00:01:07".parse().unwrap()), "{name}");
    }
    world.check();
}

#[tokio::test]
async fn unchecked_sources_may_be_requested() {
    let (mac, address) = ("00:00:5e:00:01:07", "10.1.0.7");
    for (level, passing, refused) in [
        (AntiSpoofing::Off, &[mac, address][..], &[][..]),
        (AntiSpoofing::Mac, &[address], &[mac]),
        (AntiSpoofing::Full, &[], &[mac, address]),
    ] {
        let mut configuration = configuration();
        configuration.networks[0].anti_spoofing = level;
        let world = World::with(configuration, settings(), 4).await;
        for source in refused {
            let refused = world.attach(sending_from("thief", &[source])).await.unwrap_err();
            assert_refused_with(&refused, Reason::SourceNotAllowed, &["network red", source]);
        }
        let view = world.attach(sending_from("router", passing)).await.unwrap();
        assert_eq!(view.record.allowed_sources().len(), passing.len());
        // No driver needs to allow what the guard passes anyway.
        assert!(view.record.port_settings().allowed_sources.is_empty());
        world.check();
    }
}

async fn load(world: &World, configuration: Configuration) {
    world.engine.load_configuration(configuration).await.unwrap();
}

#[track_caller]
fn assert_refused_with(refused: &offload_proto::Failure, reason: Reason, words: &[&str]) {
    assert_eq!(refused.reason, reason, "{refused}");
    assert!(words.iter().all(|word| refused.message.contains(word)), "{refused}");
}

#[tokio::test]
async fn network_serves_its_namespaces_and_host_ports() {
    let world = World::with(with_green(), settings(), 4).await;
    world.attach(on_green("prod", "prod")).await.unwrap();
    world.attach(on_green(HOST_PORT_CONTAINER, "")).await.unwrap();
    let other = world.attach(on_green("dev", "dev")).await.unwrap_err();
    assert_refused_with(&other, Reason::NetworkNotAllowed, &["\"dev\"", "network green"]);
    let longer = world.attach(on_green("longer", "prod-2")).await.unwrap_err();
    assert_refused_with(&longer, Reason::NetworkNotAllowed, &["\"prod-2\""]);
    let without_pod = world.attach(on_green("nobody", "")).await.unwrap_err();
    assert_refused_with(
        &without_pod,
        Reason::NetworkNotAllowed,
        &["network green", "no namespace"],
    );
    // A request without a network gets the default one, which serves all.
    world.attach(spec("any")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn host_sees_only_its_networks() {
    let world = World::with(limited(&["red"], true), settings(), 4).await;
    world.attach(spec("on-default")).await.unwrap();
    let refused = world.attach(on_green("prod", "prod")).await.unwrap_err();
    let host = host().to_string();
    assert_refused_with(&refused, Reason::NetworkNotAllowed, &[&*host, "network green"]);
    load(&world, limited(&["green"], true)).await;
    world.attach(on_green("prod", "prod")).await.unwrap();
    let refused = world.attach(spec("on-default-2")).await.unwrap_err();
    assert_refused_with(&refused, Reason::NetworkNotAllowed, &[&*host, "names no network"]);
    world.check();
}

#[tokio::test]
async fn running_attachments_keep_revoked_rights() {
    let mut world = World::with(with_green(), settings(), 4).await;
    let running = world.attach(on_green("prod", "prod")).await.unwrap();
    let mut closed = limited(&["red"], false);
    closed.networks[1].namespaces = ["stage".to_owned()].into();
    load(&world, closed).await;
    assert_eq!(world.attach(on_green("prod", "prod")).await.unwrap().record, running.record);
    world.restart().await;
    world.check();
    world.detach("prod").await;
    world.check();
}

#[tokio::test]
async fn host_without_any_mac_keeps_the_prefix() {
    let world = World::with(limited(&[], false), settings(), 4).await;
    let refused = world.attach(with_mac("pod", "06:5e:00:00:00:01")).await.unwrap_err();
    assert_refused_with(&refused, Reason::MacNotAllowed, &["06:5e:00:00:00:01", "begin with 02,"]);
    world.attach(with_mac("pod", "02:5e:00:00:00:01")).await.unwrap();
    load(&world, limited(&[], true)).await;
    world.attach(with_mac("other", "06:5e:00:00:00:01")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn addresses_of_routers_are_refused() {
    let mut configuration = configuration();
    configuration.networks.push(network(
        "name = 'blue'\n[[subnets]]\ncidr = '10.2.0.0/24'\ngateway = '10.2.0.1'\n\
         [[routes]]\ndestination = '10.9.0.0/16'\ngateway = '10.2.0.7'\n",
    ));
    let world = World::with(configuration, settings(), 4).await;
    for address in ["10.2.0.1", "10.2.0.7"] {
        let asking = requesting(spec("pod"), |it| {
            it.network = "blue".into();
            it.addresses = vec![address.parse().unwrap()];
        });
        let refused = world.attach(asking).await.unwrap_err();
        assert_refused_with(&refused, Reason::AddressNotAllowed, &[address]);
    }
    world.check();
}

#[tokio::test]
async fn refusals_name_no_other_hosts_attachment() {
    let world = World::with(for_both(), settings(), 4).await;
    let neighbour = OtherHost::connect(&world).await;
    let theirs = neighbour.attach(other_host::on_green("theirs")).await.unwrap().record;
    let address = theirs.leases[0].address.ip().to_string().parse().unwrap();
    let spies = [
        (requesting(spec("spy"), |it| it.mac = Some(theirs.mac)), Reason::MacInUse),
        (
            requesting(other_host::on_green("spy"), |it| {
                it.network = "green".into();
                it.addresses = vec![address];
            }),
            Reason::AddressInUse,
        ),
    ];
    for (spy, reason) in spies {
        let own = spy.key.host == other();
        let refused = match own {
            true => neighbour.attach(spy).await.unwrap_err(),
            false => world.attach(spy).await.unwrap_err(),
        };
        assert_eq!(refused.reason, reason, "{refused}");
        assert_eq!(refused.message.contains(&theirs.id.to_string()), own, "{refused}");
    }
}

#[tokio::test]
async fn host_sees_only_networks_it_may_use() {
    let limits = HostRights { networks: ["green".to_owned()].into(), any_mac: true };
    let rights = [(host(), limits)].into();
    let file = Configuration { rights, ..with_green() };
    let world = World::with(file, settings(), 4).await;
    let networks = world.engine.networks();
    let shown = networks.shown_to(&host());
    assert_eq!(shown.pools.keys().collect::<Vec<_>>(), ["green"]);
    assert_eq!(shown.default, None);
    assert_eq!(networks.shown_to(&other()).default.as_deref(), Some("red"));
    for hidden in ["red", "nowhere"] {
        let refused = networks.prefixes_of(&host(), hidden).unwrap_err();
        assert_eq!(refused.reason, Reason::NetworkNotAllowed);
        let asked = requesting(spec("pod"), |it| it.network = hidden.into());
        assert_eq!(world.refused(asked).await, Reason::NetworkNotAllowed);
    }
    let refused = world.attach(spec("pod")).await.unwrap_err();
    assert_eq!(refused.reason, Reason::NetworkNotAllowed);
    assert!(!refused.message.contains("red"), "{refused}");
}

/// Names of the networks reported to the host since the last call.
fn reported_networks(world: &mut World) -> Vec<(String, bool)> {
    let commands = std::iter::from_fn(|| world.command());
    let text = commands.filter_map(|command| match command {
        HostCommand::NetworkChanged(changed) => Some((changed.network, changed.deleted)),
        _ => None,
    });
    text.collect()
}

#[tokio::test]
async fn host_is_notified_only_of_its_networks() {
    let mut world = World::with(limited(&["red", "blue"], true), settings(), 4).await;
    for name in ["blue", "violet"] {
        let network = network(&format!("name = '{name}'"));
        world.engine.networks().apply(network, None, false).await.unwrap();
    }
    assert_eq!(reported_networks(&mut world), [("blue".to_owned(), false)]);
    // Changed rights are reported, too.
    world.engine.load_configuration(limited(&["violet"], true)).await.unwrap();
    let mut text = reported_networks(&mut world);
    text.sort();
    let expected = [("blue", true), ("red", true), ("violet", false)];
    assert_eq!(text, expected.map(|(name, deleted)| (name.to_owned(), deleted)));
}

#[tokio::test]
async fn host_learns_of_network_deleted_with_its_right() {
    let mut world = World::with(limited(&["red", "green"], true), settings(), 4).await;
    let without_green = Configuration { networks: vec![red()], ..limited(&["red"], true) };
    world.engine.load_configuration(without_green).await.unwrap();
    assert_eq!(reported_networks(&mut world), [("green".to_owned(), true)]);
}
