//! Changes of networks while attachments run.

use dpu_service::{
    attachments::{Applied, Configuration, Depth, Origin, Settings, SubnetChange},
    host::{Hello, HostTime, Inventory, PhysicalFunction, VfCondition, VirtualFunction},
};
use model::{AttachSpec, Bandwidth, HostName, Network, PortMapping, Protocol, Record};
use offload_proto::Reason;
use vf_alloc::{FunctionId, PfId};

use crate::{
    fake_kernel::FABRIC_MAC,
    world::{
        VFS, World, configuration, hello, key, network, pool, red, requesting, settings, spec,
    },
};

type Hosts = Vec<(HostName, Vec<PfId>)>;

fn blue(cidr: &str, vlan: u16) -> Network {
    network(&format!("name = 'blue'\nvlan = {vlan}\n[[subnets]]\ncidr = '{cidr}'\n"))
}

fn on_blue(container: &str) -> AttachSpec {
    requesting(spec(container), |it| it.network = "blue".into())
}

async fn apply(world: &World, network: Network) -> Result<Applied, Reason> {
    let applied = world.engine.networks().apply(network, None, false).await;
    applied.map(|(_, applied)| applied).map_err(|failure| failure.reason)
}

#[tokio::test]
async fn a_network_is_created_changed_and_left_unchanged() {
    let mut world = World::new().await;
    let tried = world.engine.networks().apply(blue("10.2.0.0/24", 200), None, true).await.unwrap();
    assert_eq!(tried.1, Applied::Created);
    assert_eq!(world.refused(on_blue("pod")).await, Reason::NetworkUnknown);
    assert_eq!(apply(&world, blue("10.2.0.0/24", 200)).await, Ok(Applied::Created));
    assert_eq!(apply(&world, blue("10.2.0.0/24", 200)).await, Ok(Applied::Unchanged));
    let old = world.attach(on_blue("old")).await.unwrap();
    assert_eq!(apply(&world, blue("10.2.0.0/16", 300)).await, Ok(Applied::Changed));

    // Running attachments keep their snapshot.
    let new = world.attach(on_blue("new")).await.unwrap();
    assert_eq!(old.record.network.vlan, Some(200));
    assert_eq!(new.record.network.vlan, Some(300));
    world.check();

    world.restart().await;
    let views = world.engine.networks().list();
    let blue = views.iter().find(|view| view.network.name == "blue").unwrap();
    assert_eq!((blue.origin, blue.attachments), (Origin::Api, 2));
    assert_eq!(blue.subnets[0].held, 1, "the other address is held in VLAN 200");
}

/// A representor without a label costs no extra request.
#[tokio::test]
async fn labels_need_a_capability_only_if_set() {
    let world = World::new().await;
    let mut calls = Vec::new();
    for (pod, text) in [("plain", ""), ("grouped", "link_group = 9"), ("named", "link_alias = 'a'")]
    {
        apply(&world, network(&format!("name = 'blue'\n{text}"))).await.unwrap();
        let before = world.kernel.calls();
        let view = world.attach(on_blue(pod)).await.unwrap();
        calls.push(world.kernel.calls() - before);
        let label = &view.record.port_settings().label;
        assert_eq!(world.kernel.port(view.record.vf).representor.label, *label);
        world.detach(pod).await;
        world.check();
    }
    assert_eq!(calls[1..], [calls[0] + 1, calls[0] + 1]);
}

#[tokio::test]
async fn subnets_with_leases_cannot_be_removed() {
    let mut world = World::new().await;
    let change = |add: &[&str], remove: &[&str]| {
        let subnet = |cidr: &&str| toml::from_str(&format!("cidr = '{cidr}'")).unwrap();
        let remove = remove.iter().map(|cidr| cidr.parse().unwrap()).collect();
        SubnetChange { add: add.iter().map(subnet).collect(), remove }
    };
    let changed = async |world: &World, name: &str, change: SubnetChange| {
        let changed = world.engine.networks().change_subnets(name.into(), change).await;
        changed.map(|(_, applied)| applied).map_err(|failure| failure.reason)
    };
    apply(&world, blue("10.2.0.0/24", 200)).await.unwrap();
    let added = change(&["10.3.0.0/24"], &[]);
    assert_eq!(changed(&world, "blue", added.clone()).await, Ok(Applied::Changed));
    assert_eq!(changed(&world, "blue", added).await, Ok(Applied::Unchanged));
    let view = world.attach(on_blue("pod")).await.unwrap();
    assert_eq!(view.record.network.subnets.len(), 2);
    assert_eq!(view.record.leases[0].address.to_string(), "10.2.0.1/24");
    // All or nothing.
    let half = change(&["10.4.0.0/24"], &["10.2.0.0/24"]);
    assert_eq!(changed(&world, "blue", half.clone()).await, Err(Reason::LeaseInTheWay));
    world.set_full(true);
    let full = changed(&world, "blue", change(&["10.4.0.0/24"], &[])).await;
    assert_eq!(full, Err(Reason::JournalUnavailable));
    world.set_full(false);
    assert_eq!(
        changed(&world, "red", change(&["10.5.0.0/24"], &[])).await,
        Err(Reason::NetworkFixed)
    );
    assert_eq!(changed(&world, "none", half.clone()).await, Err(Reason::NetworkUnknown));
    let overlapping = change(&["10.2.0.0/16"], &[]);
    assert_eq!(changed(&world, "blue", overlapping).await, Err(Reason::InvalidRequest));
    world.detach("pod").await;
    assert_eq!(changed(&world, "blue", half.clone()).await, Ok(Applied::Changed));
    assert_eq!(
        changed(&world, "blue", half).await,
        Ok(Applied::Unchanged),
        "no change was reported"
    );
    world.restart().await;
    let views = world.engine.networks().list();
    let blue = views.iter().find(|view| view.network.name == "blue").unwrap();
    let cidrs: Vec<_> = blue.network.subnets.iter().map(|of| of.cidr.to_string()).collect();
    assert_eq!(cidrs, ["10.3.0.0/24", "10.4.0.0/24"]);
}

#[tokio::test]
async fn shrinking_over_a_lease_is_refused() {
    let world = World::new().await;
    apply(&world, blue("10.2.0.0/24", 200)).await.unwrap();
    let asking =
        requesting(on_blue("pod"), |it| it.addresses = vec!["10.2.0.200".parse().unwrap()]);
    let view = world.attach(asking).await.unwrap();
    let failure =
        world.engine.networks().apply(blue("10.2.0.0/25", 200), None, false).await.unwrap_err();
    assert_eq!(failure.reason, Reason::LeaseInTheWay);
    assert!(failure.message.contains("10.2.0.200"), "{failure}");
    assert!(failure.message.contains(&view.record.id.to_string()), "{failure}");
    assert_eq!(apply(&world, blue("10.3.0.0/24", 200)).await, Err(Reason::LeaseInTheWay));
    world.detach("pod").await;
    assert_eq!(apply(&world, blue("10.2.0.0/25", 200)).await, Ok(Applied::Changed));
}

#[tokio::test]
async fn subnet_with_leases_is_resized_at_both_ends() {
    let world = World::new().await;
    apply(&world, blue("10.2.2.0/23", 200)).await.unwrap();
    let asking =
        requesting(on_blue("pod"), |it| it.addresses = vec!["10.2.3.200".parse().unwrap()]);
    world.attach(asking).await.unwrap();
    for cidr in ["10.2.3.0/24", "10.2.3.128/25", "10.2.0.0/22"] {
        assert_eq!(apply(&world, blue(cidr, 200)).await, Ok(Applied::Changed), "{cidr}");
        let views = world.engine.networks().list();
        let changed = views.iter().find(|view| view.network.name == "blue").unwrap();
        assert_eq!(changed.subnets[0].held, 1, "{cidr}");
    }
    world.check();
}

#[tokio::test]
async fn network_in_use_is_deleted_only_by_force() {
    let mut world = World::new().await;
    apply(&world, blue("10.2.0.0/30", 200)).await.unwrap();
    let view = world.attach(on_blue("pod")).await.unwrap();
    let delete = |force| world.engine.networks().delete("blue".into(), force);
    let refused = delete(false).await.unwrap_err();
    assert_eq!(refused.reason, Reason::NetworkInUse);
    assert!(refused.message.starts_with("network blue "), "{refused}");
    assert!(refused.message.ends_with(" 1 attachment"), "{refused}");
    delete(true).await.unwrap();
    assert_eq!(delete(true).await.unwrap_err().reason, Reason::NetworkUnknown);
    assert_eq!(world.refused(on_blue("other")).await, Reason::NetworkUnknown);
    assert_eq!(world.attach(on_blue("pod")).await.unwrap().record, view.record);
    world.check();

    // Created again, it does not lease what is still held.
    world.restart().await;
    let pending = vec![key("pod")];
    let hello = hello(&world.kernel, "boot-1", &[]);
    world.connect(Hello { pending, ..hello }).await;
    apply(&world, blue("10.2.0.0/30", 200)).await.unwrap();
    let other = world.attach(on_blue("other")).await.unwrap();
    assert_ne!(view.record.leases, other.record.leases);
    assert_eq!(world.refused(on_blue("third")).await, Reason::AddressesExhausted);
    world.detach("pod").await;
    world.attach(on_blue("third")).await.unwrap();
    world.detach("other").await;
    world.detach("third").await;
    delete_for_good(&world).await;
}

#[tokio::test]
async fn named_networks_are_resolved_at_the_attach() {
    let mut world = World::new().await;
    let green = network("name = 'green'\nsubnets = [{ cidr = '10.3.0.0/24' }]");
    let allow = "allow = [{ from_networks = ['blue', 'green'] }]";
    let with_rules = |rules: &str| {
        network(&format!("name = 'blue'\n{rules}\nsubnets = [{{ cidr = '10.2.0.0/24' }}]"))
    };
    assert_eq!(apply(&world, with_rules(allow)).await, Err(Reason::InvalidRequest));
    assert_eq!(apply(&world, green.clone()).await, Ok(Applied::Created));
    assert_eq!(apply(&world, with_rules(allow)).await, Ok(Applied::Created));
    let first = world.attach(on_blue("first")).await.unwrap().record;
    let sources = |record: &Record| {
        let shown = record.port_settings().ingress_rules.unwrap()[0].to_string();
        shown.split_once(" may ").unwrap().0.to_owned()
    };
    assert_eq!(sources(&first), "10.2.0.0/24 10.3.0.0/24");

    let bare = Network { subnets: Vec::new(), ..green.clone() };
    assert_eq!(apply(&world, bare).await, Err(Reason::InvalidRequest));
    let wider = network("name = 'green'\nsubnets = [{ cidr = '10.3.0.0/16' }]");
    assert_eq!(apply(&world, wider).await, Ok(Applied::Changed));
    for force in [false, true] {
        let refused = world.engine.networks().delete("green".into(), force).await.unwrap_err();
        assert_eq!(refused.reason, Reason::NetworkNamed);
        for named in ["network green", "`allow`", "network blue"] {
            assert!(refused.message.contains(named), "{refused}");
        }
    }
    let second = world.attach(on_blue("second")).await.unwrap().record;
    assert_eq!(sources(&second), "10.2.0.0/24 10.3.0.0/16");
    assert_eq!(
        apply(&world, with_rules("allow = [{ from_networks = ['blue'] }]")).await,
        Ok(Applied::Changed)
    );
    world.engine.networks().delete("green".into(), false).await.unwrap();
    let third = world.attach(on_blue("third")).await.unwrap().record;
    assert_eq!(sources(&third), "10.2.0.0/24");

    // Running attachments keep their settings.
    assert_eq!(apply(&world, with_rules("")).await, Ok(Applied::Changed));
    world.restart().await;
    let restored: Vec<_> = world.list().into_iter().map(|view| view.record).collect();
    assert!([first, second, third].iter().all(|record| restored.contains(record)));
}

#[tokio::test]
async fn force_deleted_network_blocks_no_other_change() {
    let world = World::new().await;
    let one = |name: &str, number: u8, rest: &str| -> Network {
        let subnet = format!("cidr = '10.{number}.0.0/24', gateway = '10.{number}.0.1'");
        let text =
            format!("name = '{name}'\ngateway_mode = 'dpu'\n{rest}\nsubnets = [{{ {subnet} }}]");
        toml::from_str(&text).unwrap()
    };
    for network in [one("ruby", 21, ""), one("rose", 22, "reaches = ['ruby']")] {
        apply(&world, network).await.unwrap();
    }
    world.engine.networks().delete("ruby".into(), true).await.unwrap();
    assert_eq!(apply(&world, one("green", 23, "")).await, Ok(Applied::Created));
    let changed = one("rose", 22, "mtu = 1400\nreaches = ['ruby']");
    assert_eq!(apply(&world, changed).await, Err(Reason::InvalidRequest));
    assert_eq!(apply(&world, one("ruby", 21, "")).await, Ok(Applied::Created));
    assert_eq!(
        apply(&world, one("rose", 22, "mtu = 1400\nreaches = ['ruby']")).await,
        Ok(Applied::Changed)
    );
}

#[tokio::test]
async fn mac_addresses_of_gateways_are_reserved() {
    let world = World::new().await;
    apply(&world, blue("10.2.0.0/24", 200)).await.unwrap();
    let asking = requesting(spec("pod"), |it| it.mac = Some("0e:c5:cc:d2:9b:c2".parse().unwrap()));
    let failure = world.attach(asking).await.unwrap_err();
    assert_eq!(failure.reason, Reason::MacInUse);
    assert!(failure.message.contains("network blue"), "{failure}");
}

#[tokio::test]
async fn mac_addresses_of_fabric_links_are_refused() {
    let world = World::new().await;
    let asking = |mac| requesting(spec("pod"), |it| it.mac = Some(mac));
    let failure = world.attach(asking(FABRIC_MAC)).await.unwrap_err();
    assert_eq!(failure.reason, Reason::MacInUse);
    assert!(failure.message.contains("fabric"), "{failure}");
    world.check();
    world.attach(asking("0e:00:00:00:00:0a".parse().unwrap())).await.unwrap();
}

#[tokio::test]
async fn network_that_is_being_deleted_takes_no_pods() {
    let world = World::new().await;
    apply(&world, blue("10.2.0.0/24", 200)).await.unwrap();
    // On one thread: the deletion already waits for the journal when the attach begins.
    let delete = world.engine.networks().delete("blue".into(), false);
    let (deleted, attached) = tokio::join!(delete, world.attach(on_blue("pod")));
    deleted.unwrap();
    assert_eq!(attached.unwrap_err().reason, Reason::NetworkUnknown);
    world.check();
}

#[tokio::test]
async fn network_that_is_being_renamed_takes_no_pods() {
    let world = World::new().await;
    apply(&world, blue("10.2.0.0/24", 200)).await.unwrap();
    let rename = world.engine.networks().rename("blue".into(), "teal".into());
    let (renamed, attached) = tokio::join!(rename, world.attach(on_blue("pod")));
    renamed.unwrap();
    assert_eq!(attached.unwrap_err().reason, Reason::NetworkUnknown);
    world.check();
}

async fn delete_for_good(world: &World) {
    world.engine.networks().delete("blue".into(), false).await.unwrap();
    world.engine.reconcile(Depth::Thorough).await;
    world.check();
}

#[tokio::test]
async fn network_without_a_journal_row_is_refused() {
    let world = World::new().await;
    world.set_full(true);
    assert_eq!(apply(&world, blue("10.2.0.0/24", 1)).await, Err(Reason::JournalUnavailable));
    assert_eq!(world.refused(on_blue("pod")).await, Reason::NetworkUnknown);
    world.set_full(false);
    apply(&world, blue("10.2.0.0/24", 1)).await.unwrap();
    world.set_full(true);
    let failure = world.engine.networks().delete("blue".into(), false).await.unwrap_err();
    assert_eq!(failure.reason, Reason::JournalUnavailable);
    world.set_full(false);
    world.attach(on_blue("pod")).await.unwrap();
}

#[tokio::test]
async fn networks_that_cant_be_are_refused() {
    let world = World::new().await;
    assert_eq!(apply(&world, red()).await, Err(Reason::NetworkFixed));
    let failure = world.engine.networks().delete("red".into(), true).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NetworkFixed);
    let second_default = Network { default: true, ..blue("10.2.0.0/24", 1) };
    assert_eq!(apply(&world, second_default).await, Err(Reason::InvalidRequest));
    let no_pool = Network { pool: "fast".into(), ..blue("10.2.0.0/24", 1) };
    let failure = world.engine.networks().apply(no_pool, None, false).await.unwrap_err();
    assert_eq!(failure.reason, Reason::InvalidRequest);
    assert!(failure.message.contains("\"fast\""), "{failure}");
}

#[tokio::test]
async fn configuration_is_loaded_completely_or_refused() {
    let world = World::new().await;
    world.attached("pod").await;
    let load = async |change: &dyn Fn(&mut Configuration)| {
        let mut configuration = configuration();
        change(&mut configuration);
        let loaded = world.engine.load_configuration(configuration).await;
        loaded.map_err(|failure| failure.reason)
    };
    let names = || -> Vec<_> {
        world.engine.networks().list().iter().map(|view| view.network.name.clone()).collect()
    };
    let green = || network("name = 'green'\n[[subnets]]\ncidr = '10.3.0.0/24'\n");

    let removed = load(&|new| new.networks = vec![green()]).await;
    assert_eq!(removed, Err(Reason::NetworkInUse));
    let shrunk = load(&|new| {
        new.networks[0].subnets.remove(0);
        new.networks.push(green());
    })
    .await;
    assert_eq!(shrunk, Err(Reason::LeaseInTheWay));
    let without_pool = load(&|new| new.pools = vec![pool("other", "p0")]).await;
    assert_eq!(without_pool, Err(Reason::InvalidRequest));
    assert_eq!(names(), ["red"]);

    load(&|new| new.networks.push(green())).await.unwrap();
    assert_eq!(names(), ["green", "red"]);
    load(&|new| new.pools.push(pool("other", "p0#3"))).await.unwrap();
    assert_eq!(names(), ["red"]);
    assert_eq!(world.engine.operators().pools().len(), 2);
    world.attached("another").await;
    world.check();
}

#[tokio::test]
async fn pfs_in_use_stay_where_they_are() {
    let mut world = World::new().await;
    world.attached("pod").await;
    let load = async |world: &World, change: &dyn Fn(&mut Hosts)| {
        let mut configuration = configuration();
        change(&mut configuration.hosts);
        world.engine.load_configuration(configuration).await.map_err(|failure| failure.message)
    };
    let moved = |hosts: &mut Hosts| {
        hosts[0].1.clear();
        hosts[1].1.push(PfId::local(0));
    };
    let refused = load(&world, &moved).await.unwrap_err();
    assert!(refused.contains("PF p0"), "{refused}");

    world.detach("pod").await;
    load(&world, &moved).await.unwrap();
    assert_eq!(world.engine.operators().pools()[0].usage.free, 0, "the new host has offered none");
    assert_eq!(world.refused(spec("pod")).await, Reason::VfsExhausted);
    let node_2 = HostName("node-2".into());
    let words = hello(&world.kernel, "boot-1", &[]);
    world.session = world.engine.hosts().hello(node_2, words).await.unwrap();
    assert_eq!(world.engine.operators().pools()[0].usage.free, 4);
}

#[tokio::test]
async fn the_number_of_attachments_and_networks_is_limited() {
    let limited = Settings { attachments: 1, networks: 1, ..settings() };
    let world = World::with(configuration(), limited, 4).await;
    world.attached("a").await;
    assert_eq!(world.refused(spec("b")).await, Reason::Overloaded);
    assert_eq!(apply(&world, blue("10.2.0.0/24", 1)).await, Err(Reason::Overloaded));
}

fn in_bridge(bridge: &str) -> Network {
    network(&format!("name = 'blue'\nbridge = '{bridge}'"))
}

async fn with_bridges() -> World {
    let bridges = ["br-offload", "br-storage"].map(String::from).into();
    World::with(configuration(), Settings { bridges, ..settings() }, VFS).await
}

#[tokio::test]
async fn network_with_an_unknown_bridge_is_refused() {
    let mut world = with_bridges().await;
    let refused =
        world.engine.networks().apply(in_bridge("br-storag"), None, false).await.unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidRequest);
    assert!(refused.message.ends_with("did you mean \"br-storage\"?"), "{refused}");
    apply(&world, in_bridge("br-storage")).await.unwrap();
    // Without its bridge the network is suspended; it resumes with the bridge.
    let bridges = world.settings.bridges.clone();
    world.settings.bridges.truncate(1);
    world.restart().await;
    let warnings = world.warnings().join("\n");
    assert!(warnings.contains("bridge \"br-storage\""), "{warnings}");
    world.hello(&[]).await;
    let failure = world.attach(on_blue("pod")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NetworkUnknown);
    assert!(failure.message.starts_with("network \"blue\" "), "{failure}");
    assert!(failure.message.contains("bridge \"br-storage\""), "{failure}");
    world.settings.bridges = bridges;
    world.restart().await;
    assert_eq!(apply(&world, in_bridge("br-storage")).await, Ok(Applied::Unchanged));
}

#[tokio::test]
async fn mapped_ports_need_a_fabric_with_gateways() {
    for (fabric, shown) in [("bridge", "gateway_mode = \"dpu\""), ("ovs", "no gateways")] {
        let fabric = serde_json::from_value(fabric.into()).unwrap();
        let world = World::with(configuration(), Settings { fabric, ..settings() }, 1).await;
        let port_mappings = vec![PortMapping {
            host_port: 8080,
            protocol: Protocol::Tcp,
            host_ip: None,
            container_port: 80,
        }];
        let failure = world
            .attach(requesting(spec("pod"), |it| it.port_mappings = port_mappings))
            .await
            .unwrap_err();
        assert_eq!(failure.reason, Reason::Unsupported);
        assert!(failure.message.contains(shown), "{failure}");
    }
}

#[tokio::test]
async fn too_many_mapped_ports_are_refused() {
    let gateway = "name = 'gate'\ngateway_mode = 'dpu'\n\
                   [[subnets]]\ncidr = '10.5.0.0/24'\ngateway = '10.5.0.1'\n";
    let file = Configuration { networks: vec![network(gateway)], ..configuration() };
    let world = World::with(file, settings(), 1).await;
    let mapping = |host_port| PortMapping {
        host_port,
        protocol: Protocol::Udp,
        host_ip: None,
        container_port: 80,
    };
    let port_mappings = (1..=4097).map(mapping).collect();
    let spec = requesting(spec("pod"), |it| {
        it.port_mappings = port_mappings;
        it.network = "gate".into();
    });
    assert_eq!(world.refused(spec).await, Reason::Overloaded);
}

#[tokio::test]
async fn start_without_an_attachments_bridge_is_refused() {
    let mut world = with_bridges().await;
    apply(&world, in_bridge("br-storage")).await.unwrap();
    let view = world.attach(on_blue("pod")).await.unwrap();
    assert_eq!(apply(&world, network("name = 'blue'")).await, Ok(Applied::Changed));
    assert_eq!(world.list()[0].record.network.bridge.as_deref(), Some("br-storage"));
    world.settings.bridges.truncate(1);
    let refused = world.refusal_with(&view.record).await.to_string();
    assert!(refused.contains(&view.record.id.to_string()), "{refused}");
    assert!(refused.contains("no bridge \"br-storage\""), "{refused}");
}

/// A world whose second host has a VF of another card in the same pool.
async fn with_two_cards() -> World {
    let mut configuration = configuration();
    configuration.pools = vec![toml::from_str("name = 'default'\nselect = ['p0', 'p1']").unwrap()];
    let world = World::with(configuration, settings(), VFS).await;
    let vf = FunctionId::local(1, 0);
    world.kernel.make(vf);
    world.engine.reconcile(Depth::Quick).await;
    let (number, device) = (vf.vf, "d001:00:00.1".into());
    let function = VirtualFunction { number, device, condition: VfCondition::Clean };
    let pf = PhysicalFunction { id: vf.pf, vendor_id: 0x1d0f, device_id: 1, vfs: vec![function] };
    let inventory = Inventory { as_of: HostTime::default(), pfs: vec![pf] };
    let hello = Hello { inventory, ..hello(&world.kernel, "boot-2", &[]) };
    let _ = world.engine.hosts().hello(HostName("node-2".into()), hello).await.unwrap();
    world
}

fn limited() -> Network {
    Network {
        bandwidth: Bandwidth { egress_rate: 8_000_000, ..Bandwidth::default() },
        ..blue("10.2.0.0/24", 200)
    }
}

#[tokio::test]
async fn network_no_card_supports_is_refused() {
    let world = with_two_cards().await;
    world.kernel.leave_limits_to(None);
    for dry_run in [true, false] {
        let refused = world.engine.networks().apply(limited(), None, dry_run).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Unsupported);
        for named in [
            "network blue ",
            "host node-1 (card pci/0000:00:00.0), host node-2 (card pci/0000:01:00.0)",
            "egress rate",
            "8000000 bit/s",
        ] {
            assert!(refused.message.contains(named), "{named}: {refused}");
        }
    }
    assert_eq!(world.engine.networks().list().len(), 1, "nothing was applied");
    assert_eq!(world.warnings(), [""; 0]);

    // A network in force stays unchanged.
    assert_eq!(apply(&world, blue("10.2.0.0/24", 200)).await, Ok(Applied::Created));
    assert_eq!(apply(&world, limited()).await, Err(Reason::Unsupported));
    world.attach(on_blue("pod")).await.unwrap();
    let bandwidth = limited().bandwidth;
    let by_itself = requesting(on_blue("limited"), |it| it.bandwidth = bandwidth);
    assert_eq!(world.refused(by_itself).await, Reason::Unsupported);
    world.check();
}

#[tokio::test]
async fn network_one_card_supports_is_applied_with_faults() {
    let world = with_two_cards().await;
    world.kernel.leave_limits_to(Some(PfId::local(1)));
    assert_eq!(apply(&world, limited()).await, Ok(Applied::Created));
    let warnings = world.warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    for named in ["network blue ", "host node-1 (card pci/0000:00:00.0): ", "egress rate"] {
        assert!(warning.contains(named), "{named}: {warning}");
    }
    assert_eq!(world.refused(on_blue("pod")).await, Reason::Unsupported);

    world.kernel.leave_limits_to(Some(PfId::local(0)));
    assert!(world.warnings()[0].contains("of host node-2 (card"));
    world.attach(on_blue("pod")).await.unwrap();
}

#[tokio::test]
async fn unsupported_network_of_the_file_is_a_fault() {
    let mut world = World::new().await;
    world.kernel.leave_limits_to(None);
    let mut configuration = configuration();
    configuration.networks.push(limited());
    world.engine.load_configuration(configuration.clone()).await.unwrap();
    let shown = |world: &World| world.warnings().join("\n");
    let is_shown = |shown: &str| shown.contains("network blue ") && shown.contains("host node-1");
    assert!(is_shown(&shown(&world)), "{}", shown(&world));
    world.configuration = configuration;
    world.restart().await;
    assert_eq!(shown(&world), "", "no VF is known yet, so that a card may come that can");
    world.hello(&[]).await;
    assert!(is_shown(&shown(&world)), "{}", shown(&world));
    world.attach(spec("pod")).await.unwrap();
}

/// What is the same for all cards is known without any.
#[tokio::test]
async fn network_no_port_supports_is_refused_without_hosts() {
    let mut world = World::new().await;
    world.kernel.forbid_vlans();
    world.restart().await;
    let refused =
        world.engine.networks().apply(blue("10.2.0.0/24", 200), None, false).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Unsupported);
    assert!(refused.message.starts_with("network blue: VLAN 200 "), "{refused}");
    assert_eq!(apply(&world, limited()).await, Err(Reason::Unsupported));
}
