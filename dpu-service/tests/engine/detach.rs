//! Detaches and other ends of attachments.

use std::time::Duration;

use dpu_service::{
    attachments::{Configuration, Depth, Detach, Settings},
    events::EventKind,
};
use model::{AttachSpec, AttachmentState};
use netlink::MacAddress;
use offload_proto::Reason;
use vf_alloc::FunctionId;

use crate::{
    other_host::{OtherHost, for_both, on_green},
    world::{
        VFS, World, configuration, detach_of, free_vfs, host, inventory, key, live, network, red,
        requesting, settings, spec, without,
    },
};

#[tokio::test]
async fn a_late_detach_leaves_a_newer_attachment_alone() {
    let world = World::new().await;
    let old = world.attach(spec("pod")).await.unwrap();
    world.detach("pod").await;
    let new = world.attach(spec("pod")).await.unwrap();
    assert_ne!(old.record.id, new.record.id);
    world.engine.detach(Detach { id: Some(old.record.id), ..detach_of("pod") }).await.unwrap();
    assert_eq!(world.list(), [new]);
    world.check();
}

#[tokio::test]
async fn a_vf_that_is_not_back_is_held() {
    let world = World::with(configuration(), settings(), 1).await;
    let view = world.attached("pod").await;
    world.engine.detach(Detach { returned: false, ..detach_of("pod") }).await.unwrap();
    world.check();
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing));
    assert_eq!(world.refused(spec("pod")).await, Reason::Releasing);
    assert_eq!(world.refused(spec("other")).await, Reason::Releasing);
    // First still in the pod, then back.
    let tell = async |in_use: &[FunctionId]| {
        world.send_inventory(&inventory(&world.kernel, in_use)).await;
    };
    tell(&[view.record.vf]).await;
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing));
    tell(&[]).await;
    assert_eq!(world.state("pod"), None);
    world.attached("other").await;
    world.check();
}

/// The next request may come before the host has reported that everything is back.
#[tokio::test]
async fn resources_being_released_may_be_requested_again() {
    let tiny = network("name = 'tiny'\nsubnets = [{ cidr = '10.7.0.0/30', gateway = '10.7.0.1' }]");
    let configuration = Configuration { networks: vec![red(), tiny], ..configuration() };
    let world = World::with(configuration, settings(), 2).await;
    let tiny = || requesting(spec("other"), |it| it.network = "tiny".into());
    let mac = Some(MacAddress([2, 0, 0, 0, 0, 7]));
    let pod = world
        .attach(AttachSpec { key: key("pod"), ..requesting(tiny(), |it| it.mac = mac) })
        .await
        .unwrap();
    world.engine.detach(Detach { returned: false, ..detach_of("pod") }).await.unwrap();
    let addresses = vec!["10.7.0.2".parse().unwrap()];
    let wants = [
        (requesting(spec("other"), |it| it.mac = mac), Reason::MacInUse),
        (requesting(tiny(), |it| it.addresses = addresses), Reason::AddressInUse),
        (tiny(), Reason::AddressesExhausted),
        (
            requesting(spec("other"), |it| it.device = Some(pod.record.device.clone())),
            Reason::VfNotFree,
        ),
    ];
    for (wanted, _) in &wants {
        assert_eq!(world.refused(wanted.clone()).await, Reason::Releasing, "{wanted:?}");
    }
    world.attached("last").await;
    assert_eq!(world.refused(spec("other")).await, Reason::Releasing);
    // A longer release has no known end.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    assert_eq!(world.refused(spec("other")).await, Reason::VfsExhausted);
    world.detach("last").await;
    for (wanted, refusal) in wants {
        assert_eq!(world.refused(wanted).await, refusal);
    }
    world.detach("pod").await;
    world.attach(requesting(tiny(), |it| it.mac = mac)).await.unwrap();
    world.check();
}

/// The host resets the pool's only VF, and the DPU surveys while its representor is missing.
#[tokio::test]
async fn vf_in_reset_may_be_requested_again() {
    let world = World::with(configuration(), settings(), 1).await;
    let record = world.attached("pod").await.record;
    world.detach("pod").await;
    world.kernel.take_away(record.vf);
    world.engine.reconcile(Depth::Quick).await;
    let named = || requesting(spec("next"), |it| it.device = Some(record.device.clone()));
    for wanted in [spec("next"), named()] {
        assert_eq!(world.refused(wanted).await, Reason::Releasing);
    }
    // A representor that stays away counts as gone.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    assert_eq!(world.refused(spec("next")).await, Reason::VfsExhausted);
    assert_eq!(world.refused(named()).await, Reason::VfNotFree);
    world.kernel.make(record.vf);
    world.engine.reconcile(Depth::Quick).await;
    world.attached("next").await;
    world.check();
}

/// A VF never goes to another host, so another host's release frees none.
#[tokio::test]
async fn vfs_released_by_another_host_are_not_awaited() {
    let mut file = for_both();
    file.pools = vec![toml::from_str("name = 'both'\nselect = ['p0', 'p1']").unwrap()];
    file.networks.iter_mut().for_each(|network| network.pool = "both".into());
    let world = World::with(file, settings(), 1).await;
    let other = OtherHost::connect(&world).await;
    let leaving = other.attach(on_green("leaving")).await.unwrap().record;
    let detach = Detach { key: leaving.key.clone(), returned: false, ..detach_of("") };
    world.engine.detach(detach).await.unwrap();
    world.attached("pod").await;
    assert_eq!(world.refused(spec("next")).await, Reason::VfsExhausted);
    // The same holds for another host's VF with a missing representor, and for a held VF.
    let free = FunctionId { vf: leaving.vf.vf ^ 1, ..leaving.vf };
    for lost in [free, world.list()[0].record.vf] {
        world.kernel.take_away(lost);
        world.engine.reconcile(Depth::Quick).await;
        assert_eq!(world.refused(spec("next")).await, Reason::VfsExhausted, "{lost}");
    }
}

#[tokio::test]
async fn only_the_former_owner_awaits_a_cooling_address() {
    let settings = Settings { address_cool_down: Duration::from_secs(60), ..settings() };
    let world = World::with(configuration(), settings, 4).await;
    let addresses = vec!["10.1.0.77".parse().unwrap()];
    let asking =
        |container: &str| requesting(spec(container), |it| it.addresses = addresses.clone());
    let mac = world.attach(asking("pod")).await.unwrap().record.mac;
    world.engine.detach(Detach { returned: false, ..detach_of("pod") }).await.unwrap();
    assert_eq!(world.refused(asking("other")).await, Reason::AddressInUse);
    // Its MAC address is still held.
    let former = requesting(asking("other"), |it| it.mac = Some(mac));
    assert_eq!(world.refused(former.clone()).await, Reason::Releasing);
    world.detach("pod").await;
    assert_eq!(world.refused(asking("other")).await, Reason::AddressInUse);
    world.attach(former).await.unwrap();
    world.check();
}

#[tokio::test]
async fn collection_releases_invalid_attachments() {
    let world = World::new().await;
    world.attached("kept").await;
    let stale = world.attached("stale").await;
    let collect = || world.engine.collect(host(), None, vec![key("kept")]);
    for _ in 0..2 {
        let released = collect().await.unwrap();
        assert_eq!(released.len(), 1);
        assert_eq!(released[0].record.id, stale.record.id);
        assert_eq!(released[0].state, AttachmentState::Releasing);
        world.check();
    }
    world.detach("stale").await;
    assert_eq!(collect().await.unwrap(), []);
    assert_eq!(world.state("kept"), Some(AttachmentState::Attached));
}

#[tokio::test]
async fn collection_leaves_calls_under_way_alone() {
    let mut world = World::new().await;
    let view = world.attach(spec("pod")).await.unwrap();
    let collect = async |world: &World| world.engine.collect(host(), None, vec![]).await.unwrap();
    assert_eq!(collect(&world).await, []);
    world.hello(&[live(&view, false)]).await;
    assert_eq!(collect(&world).await.len(), 1, "that call is over");
}

#[tokio::test]
async fn an_operator_takes_an_attachment_away() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    let released =
        world.engine.operators().release(view.record.id, false, "it floods".into()).await.unwrap();
    assert_eq!(released.state, AttachmentState::Releasing);
    world.check();
    let command = world.command();
    assert!(matches!(
        command,
        Some(dpu_service::sessions::HostCommand::Release { id, reason, .. })
            if id == view.record.id && reason == "it floods"
    ));
    world.detach("pod").await;
    world.check();
    let release = world.engine.operators().release(view.record.id, false, String::new());
    assert_eq!(release.await.unwrap_err().reason, Reason::AttachmentUnknown);
}

#[tokio::test]
async fn forgotten_attachment_does_not_wait_for_its_vf() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.detach(Detach { returned: false, ..detach_of("pod") }).await.unwrap();
    let without_vf = without(&world, view.record.vf);
    world.send_inventory(&without_vf).await;
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing), "a pod may have the VF");
    world.engine.operators().release(view.record.id, true, "gone".into()).await.unwrap();
    assert_eq!(world.state("pod"), None);
    assert_eq!(free_vfs(&world).await, usize::from(VFS) - 1, "its host has not offered the VF");
    world.send_inventory(&inventory(&world.kernel, &[])).await;
    assert_eq!(free_vfs(&world).await, usize::from(VFS));
    world.check();
}

#[tokio::test]
async fn forgotten_attachment_frees_its_address() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.operators().release(view.record.id, true, "gone".into()).await.unwrap();
    let free = free_vfs(&world).await;
    assert_eq!(free, usize::from(VFS) - 1, "its host has not reported the VF clean");
    let addresses =
        view.record.leases.iter().map(|lease| lease.address.to_string().parse().unwrap());
    let asking = requesting(spec("other"), |it| it.addresses = addresses.collect());
    assert_eq!(world.attach(asking).await.unwrap().record.leases, view.record.leases);
    world.check();
}

#[tokio::test]
async fn cause_of_a_detach_is_in_its_event() {
    let world = World::new().await;
    let id = world.attached("pod").await.record.id.to_string();
    let cause = "its network namespace ended without a DEL";
    let leaving = Detach { returned: false, cause: cause.into(), ..detach_of("pod") };
    world.engine.detach(leaving).await.unwrap();
    world.detach("pod").await;
    let events = world.engine.events().about(&id);
    let releasing = events.iter().find(|event| event.kind == EventKind::AttachmentReleasing);
    assert_eq!(releasing.map(|event| event.message.as_str()), Some(cause));
    world.check();
}
