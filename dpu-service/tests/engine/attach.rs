//! Attaches and their refusals.

use std::time::Duration;

use dpu_service::{
    attachments::AttachmentFilter,
    host::{Asked, HostTime},
};
use model::{AntiSpoofing, AttachmentState, Bandwidth, HostName};
use offload_proto::Reason;
use vf_alloc::FunctionId;

use crate::world::{
    World, configuration, detach_of, host, key, network, requesting, settings, spec,
};

#[tokio::test]
async fn pod_gets_a_vf_addresses_and_default_routes() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.check();
    assert_eq!(world.state("pod"), Some(AttachmentState::Attached));
    let leases: Vec<_> = view.record.leases.iter().map(|l| l.address.to_string()).collect();
    assert_eq!(leases, ["10.1.0.2/24", "fd00:1::2/64"]);
    let routes: Vec<_> = view.record.routes().iter().map(|r| r.destination.to_string()).collect();
    assert_eq!(routes, ["0.0.0.0/0", "::/0"]);
    assert!(view.record.mac.to_string().starts_with("02:"));
    assert!(view.record.device.as_str().starts_with("d000:"));
    world.detach("pod").await;
    world.check();
    assert!(world.list().is_empty());
}

#[tokio::test]
async fn await_port_returns_when_the_port_forwards() {
    let world = World::new().await;
    let view = world.attach(spec("pod")).await.unwrap();
    let (id, vf) = (view.record.id, view.record.vf);
    assert!(world.engine.forwards(id).await);
    world.kernel.change_port(vf, |port| port.is_waiting_for_vf = true);
    assert!(!world.engine.forwards(id).await);

    let (short, long) = (Duration::from_millis(1), Duration::from_secs(60));
    assert!(!world.engine.await_port(&host(), id, short).await.unwrap());
    let carrier = async {
        tokio::task::yield_now().await;
        world.kernel.change_port(vf, |port| port.is_waiting_for_vf = false);
        world.engine.kernel_changed();
    };
    let host = host();
    let (output, ()) = tokio::join!(world.engine.await_port(&host, id, long), carrier);
    assert!(output.unwrap());

    let unknown_host = HostName("node-2".into());
    let refused = world.engine.await_port(&unknown_host, id, short).await.unwrap_err();
    assert_eq!(refused.reason, Reason::AttachmentUnknown);
}

#[tokio::test]
async fn attach_and_detach_may_be_repeated() {
    let world = World::new().await;
    let first = world.attach(spec("pod")).await.unwrap();
    let again = world.attach(spec("pod")).await.unwrap();
    assert_eq!(first, again);
    world.detach("pod").await;
    world.detach("pod").await;
    world.engine.detach(detach_of("never seen")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn exhausted_pool_is_named_and_status_is_ok() {
    let world = World::with(configuration(), settings(), 2).await;
    world.attached("a").await;
    world.attached("b").await;
    let failure = world.attach(spec("c")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::VfsExhausted);
    assert!(failure.message.contains("\"default\""), "{failure}");
    assert!(world.engine.status().is_empty());
    world.check();
    world.detach("a").await;
    world.attached("c").await;
    world.check();
}

/// DPUs on one layer-2 network do not know each other's addresses.
#[tokio::test]
async fn generated_mac_addresses_are_random() {
    const PODS: u16 = 16;
    let world = World::with(configuration(), settings(), PODS).await;
    let mut macs = Vec::new();
    for number in 0..PODS {
        macs.push(world.attached(&number.to_string()).await.record.mac.0);
    }
    assert!(macs.iter().all(|mac| mac[0] == 0x02));
    for byte in 1..6 {
        assert!(macs.iter().any(|mac| mac[byte] != macs[0][byte]), "byte {byte} of {macs:?}");
    }
}

#[tokio::test]
async fn requested_macs_and_vfs_are_given_or_refused() {
    let world = World::new().await;
    let mac = |text: &str| Some(text.parse().unwrap());
    let device = |text: &str| Some(text.into());
    let limited = Bandwidth { ingress_rate: 1_000_000, ..Bandwidth::default() };
    let wanted = requesting(spec("a"), |it| {
        it.mac = mac("02:5e:00:00:00:01");
        it.device = device("d000:00:00.3");
    });
    let view = world.attach(wanted.clone()).await.unwrap();
    assert_eq!(view.record.vf, FunctionId::local(0, 2));
    for (spec, reason) in [
        (requesting(spec("b"), |it| it.mac = mac("02:5e:00:00:00:01")), Reason::MacInUse),
        (requesting(spec("b"), |it| it.mac = mac("03:00:00:00:00:01")), Reason::InvalidRequest),
        (requesting(spec("b"), |it| it.device = device("d000:00:00.3")), Reason::VfNotFree),
        (requesting(spec("b"), |it| it.device = device("0000:03:00.1")), Reason::VfUnknown),
        (requesting(spec("b"), |it| it.network = "blue".into()), Reason::NetworkUnknown),
        (
            requesting(wanted.clone(), |it| it.mac = mac("02:5e:00:00:00:02")),
            Reason::AttachmentDiffers,
        ),
        (requesting(wanted, |it| it.bandwidth = limited), Reason::AttachmentDiffers),
    ] {
        assert_eq!(world.refused(spec).await, reason);
        world.check();
    }
}

#[tokio::test]
async fn setting_unsupported_by_the_card_is_refused() {
    let world = World::new().await;
    world.kernel.forbid_vlans();
    let failure = world.attach(spec("pod")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::Unsupported);
    assert!(failure.message.contains("VLAN 100"), "{failure}");
    world.check();
    assert_eq!(world.engine.operators().pools()[0].usage.free, usize::from(crate::world::VFS));
}

#[tokio::test]
async fn full_guard_needs_representors() {
    let mut configuration = configuration();
    configuration.networks[0].anti_spoofing = AntiSpoofing::Mac;
    configuration.networks[0].link_group = 0;
    let mut world = World::with(configuration, settings(), 4).await;
    world.kernel.leave_all_to_the_hosts();
    world.restart().await;
    world.hello(&[]).await;
    let free = network("name = 'free'\nanti_spoofing = 'off'\n[[subnets]]\ncidr = '10.2.0.0/24'");
    world.engine.networks().apply(free, None, false).await.unwrap();
    let full = network("name = 'full'\n[[subnets]]\ncidr = '10.3.0.0/24'");
    let refused = world.engine.networks().apply(full, None, true).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Unsupported);
    for named in ["network full", "host node-1", "anti_spoofing = \"full\""] {
        assert!(refused.message.contains(named), "{refused}");
    }
    world.attached("pod").await;
}

#[tokio::test]
async fn the_tighter_rate_wins() {
    let mut configuration = configuration();
    configuration.networks[0].bandwidth.ingress_rate = 1000;
    configuration.networks[0].bandwidth.egress_share = 800;
    let world = World::with(configuration, settings(), 4).await;
    let mut asking = spec("pod");
    asking.interface.bandwidth.ingress_rate = 2000;
    asking.interface.bandwidth.egress_rate = 500;
    let view = world.attach(asking).await.unwrap();
    assert_eq!(view.record.bandwidth.ingress_rate, 1000);
    assert_eq!(view.record.bandwidth.egress_rate, 500);
    assert_eq!(view.record.bandwidth.egress_share, 500, "no more than it may send");
    world.check();
}

#[tokio::test]
async fn only_the_session_in_force_may_attach() {
    let mut world = World::new().await;
    let old = Asked { session: world.session_id(), as_of: HostTime::default() };
    world.hello(&[]).await;
    let failure = world.engine.attach(spec("pod"), old).await.unwrap_err();
    assert_eq!(failure.reason, Reason::StaleSession);
    world.attached("pod").await;
}

#[tokio::test]
async fn draining_refuses_only_new_attachments() {
    let mut world = World::new().await;
    let view = world.attach(spec("old")).await.unwrap();
    world.engine.operators().set_draining(Some("maintenance".into()));
    assert!(matches!(
        world.command(),
        Some(dpu_service::sessions::HostCommand::Draining { reason }) if reason == "maintenance"
    ));
    assert_eq!(world.refused(spec("new")).await, Reason::Draining);
    assert_eq!(world.attach(spec("old")).await.unwrap().record, view.record);
    let obstacles = world.engine.obstacles();
    assert!(obstacles.len() == 1 && obstacles[0].reason == Reason::Draining, "{obstacles:?}");
    world.engine.operators().set_draining(None);
    world.attach(spec("new")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn check_names_the_missing_step() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    let check = || world.engine.check(key("pod"), Some(view.record.id));
    assert_eq!(check().await.unwrap().record, view.record);
    world.kernel.change_port(view.record.vf, |port| port.membership = None);
    let failure = check().await.unwrap_err();
    assert_eq!(failure.reason, Reason::CheckFailed);
    assert!(failure.message.contains("fabric-join"), "{failure}");
    let unknown = world.engine.check(key("other"), None).await.unwrap_err();
    assert_eq!(unknown.reason, Reason::AttachmentUnknown);
}

/// What the journal and the card know is still shown.
#[tokio::test]
async fn absent_fabric_leaves_other_answers_available() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    let (operators, why) = (world.engine.operators(), "can't ask the fabric's daemon");
    world.kernel.set_fabric_away(true);
    let vfs = operators.vfs().await.unwrap();
    assert!(vfs.iter().all(|vf| vf.representor == vf.vf.to_string()), "{vfs:?}");
    let traffic = operators.traffic(&AttachmentFilter::default()).await;
    assert_eq!((traffic.attachments.len(), traffic.unknown.as_deref()), (1, Some(why)));
    let detail = operators.attachment(&view.record.id.to_string()).await.unwrap();
    assert_eq!(
        (&*detail.representor, detail.unknown),
        (&*view.record.vf.to_string(), vec![why.into()])
    );
    let unknown = detail.steps.iter().filter(|step| !step.is_known);
    let names: Vec<_> = unknown.clone().map(|step| step.name).collect();
    assert_eq!(names, ["fabric-join", "guard", "egress-limit"]);
    assert!(unknown.clone().all(|step| !step.in_place && step.detail == why));
    assert_eq!(detail.steps.iter().filter(|step| step.in_place).count(), 5);
    let failure = world.engine.check(key("pod"), None).await.unwrap_err();
    assert!(failure.message.contains("fabric-join of pf0vf0"), "{failure}");
    world.kernel.set_fabric_away(false);
    assert_eq!(operators.traffic(&AttachmentFilter::default()).await.unknown, None);
    world.check();
}

#[tokio::test]
async fn attachment_is_found_by_id_prefix() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    let id = view.record.id.to_string();
    for beginning in [&id[..], &id[..13], &id[..4]] {
        let detail = world.engine.operators().attachment(beginning).await.unwrap();
        assert_eq!(detail.view.record, view.record);
        assert_eq!(detail.representor, view.record.vf.to_string());
        assert!(detail.steps.iter().all(|step| step.in_place), "{:?}", detail.steps);
        let kinds: Vec<_> = detail.events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, ["AttachmentReserved", "AttachmentProgrammed", "AttachmentAttached"]);
    }
    world.attached("other").await;
    let reason = |failure: offload_proto::Failure| failure.reason;
    let find =
        async |id: &str| world.engine.operators().attachment(id).await.map_err(reason).unwrap_err();
    assert_eq!(find(&id[..4]).await, Reason::InvalidRequest);
    assert_eq!(find(&id[..3]).await, Reason::InvalidRequest);
    assert_eq!(find("ffff").await, Reason::AttachmentUnknown);
}

#[tokio::test]
async fn a_host_that_is_not_served_gets_nothing() {
    let world = World::new().await;
    let mut unknown_host = spec("pod");
    unknown_host.key.host = HostName("node-9".into());
    assert_eq!(world.refused(unknown_host).await, Reason::HostUnknown);
}
