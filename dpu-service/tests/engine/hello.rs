//! Hellos and what follows from them.

use std::sync::Arc;

use dpu_service::{
    attachments::Detach,
    events::{Event, EventKind},
    host::{Hello, HostTime, LiveAttachment, VfCondition},
    sessions::HostCommand,
};
use model::{AttachmentId, AttachmentState, HostName};
use offload_proto::Reason;
use vf_alloc::{FunctionId, PfId, VfState};

use crate::world::{
    VFS, World, configuration, detach_of, free_vfs, hello, host, inventory, key, live, settings,
    spec, without,
};

const CLOSED: &str = "the host closed it";

#[tokio::test]
async fn attachments_of_an_earlier_boot_are_released() {
    let mut world = World::new().await;
    world.attached("a").await;
    world.attached("b").await;
    world.boot_id = "boot-2".into();
    world.hello(&[]).await;
    assert!(world.list().is_empty());
    world.check();
    world.attached("a").await;
    world.check();
}

#[tokio::test]
async fn rebooted_host_without_the_vf_ends_its_attachment() {
    for is_listed_at_first in [false, true] {
        let mut world = World::new().await;
        let view = world.attached("a").await;
        world.boot_id = "boot-2".into();
        let without_vf = without(&world, view.record.vf);
        let mut hello = hello(&world.kernel, "boot-2", &[view.record.vf]);
        if !is_listed_at_first {
            hello.inventory = without_vf.clone();
        }
        world.connect(hello).await;
        let state = is_listed_at_first.then_some(AttachmentState::Releasing);
        assert_eq!(world.state("a"), state);
        world.send_inventory(&without_vf).await;
        assert_eq!(world.state("a"), None);
        assert_eq!(free_vfs(&world).await, usize::from(VFS) - 1, "its host has not offered the VF");
        world.send_inventory(&inventory(&world.kernel, &[])).await;
        assert_eq!(free_vfs(&world).await, usize::from(VFS));
        world.check();
    }
}

/// As when a card was plugged in again, and its host resets the VFs before it offers them.
#[tokio::test]
async fn vfs_that_are_being_reset_are_absent() {
    let mut world = World::new().await;
    world.restart().await;
    let mut hello = hello(&world.kernel, &world.boot_id, &[]);
    let vfs = hello.inventory.pfs.iter_mut().flat_map(|pf| &mut pf.vfs);
    vfs.for_each(|vf| vf.condition = VfCondition::Missing);
    world.connect(hello).await;
    let usage = world.engine.operators().pools()[0].usage;
    assert_eq!((usage.free, usage.absent), (0, usize::from(VFS)));
    let refused = world.attach(spec("pod")).await.unwrap_err();
    assert_eq!(refused.reason, Reason::VfsExhausted);
    assert!(refused.message.contains(&format!("{VFS} absent")), "{refused}");
    world.hello(&[]).await;
    world.attached("pod").await;
    world.check();
}

#[tokio::test]
async fn attachments_unknown_to_the_host_are_released() {
    let mut world = World::new().await;
    let known = world.attached("known").await;
    world.attached("unknown").await;
    world.hello(&[live(&known, true)]).await;
    assert_eq!(world.state("unknown"), None);
    assert_eq!(world.state("known"), Some(AttachmentState::Attached));
    world.check();
}

#[tokio::test]
async fn lost_attachment_stays_until_its_vf_returns() {
    for condition in [VfCondition::InUse, VfCondition::Missing] {
        let mut world = World::new().await;
        let lost = world.attached("lost").await;
        let mut events = world.engine.events().watch();
        let without_records = hello_where(&world, lost.record.vf, &condition);
        world.connect(without_records.clone()).await;
        assert_eq!(world.state("lost"), Some(AttachmentState::Attached));
        assert!(world.warnings()[0].contains(&lost.record.id.to_string()));
        world.send_inventory(&without_records.inventory).await;
        world.connect(without_records).await;
        assert_eq!(world.state("lost"), Some(AttachmentState::Attached));
        world.check();
        let shown = std::iter::from_fn(|| events.try_recv().ok());
        let shown = shown.filter(|event| event.kind == EventKind::AttachmentUnclaimed);
        assert_eq!(shown.count(), 1);

        let inventory = inventory(&world.kernel, &[]);
        world.send_inventory(&inventory).await;
        assert_eq!(world.state("lost"), None);
        assert_eq!(world.warnings(), [""; 0]);
        world.check();
    }
}

/// A hello without records; all VFs are clean except `vf`.
fn hello_where(world: &World, vf: FunctionId, condition: &VfCondition) -> Hello {
    let mut hello = hello(&world.kernel, &world.boot_id, &[vf]);
    let vfs = hello.inventory.pfs.iter_mut().flat_map(|pf| &mut pf.vfs);
    vfs.filter(|vf| vf.condition == VfCondition::InUse)
        .for_each(|vf| vf.condition = condition.clone());
    hello
}

#[tokio::test]
async fn lost_attachment_can_be_detached_and_released() {
    for ending in 0..4 {
        let mut world = World::new().await;
        let lost = world.attached("lost").await;
        world.connect(hello_where(&world, lost.record.vf, &VfCondition::Missing)).await;
        match ending {
            0 => world.detach("lost").await,
            1 => {
                let operators = world.engine.operators();
                operators.release(lost.record.id, false, "lost".into()).await.unwrap();
            }
            2 => {
                let boot_id = "boot-2".into();
                let lost = hello_where(&world, lost.record.vf, &VfCondition::Missing);
                world.connect(Hello { boot_id, ..lost }).await;
            }
            _ => {
                // The host knows it again: it stays, whether its VF is clean or not.
                assert_eq!(world.attach(spec("lost")).await.unwrap().record, lost.record);
                assert_eq!(world.warnings(), [""; 0]);
                let clean = inventory(&world.kernel, &[]);
                world.send_inventory(&clean).await;
                assert_eq!(world.state("lost"), Some(AttachmentState::Attached));
                world.detach("lost").await;
            }
        }
        assert_ne!(world.state("lost"), Some(AttachmentState::Attached));
        assert_eq!(world.warnings(), [""; 0]);
        world.check();
    }
}

#[tokio::test]
async fn detached_attachment_is_freed_by_the_next_inventory() {
    let world = World::new().await;
    world.attach(spec("pod")).await.unwrap();
    let clean = inventory(&world.kernel, &[]);
    world.send_inventory(&clean).await;
    assert_eq!(world.state("pod"), Some(AttachmentState::Programmed), "its call is under way");
    world.engine.detach(Detach { returned: false, ..detach_of("pod") }).await.unwrap();
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing));
    world.send_inventory(&clean).await;
    assert_eq!(world.state("pod"), None);
    world.check();
}

#[tokio::test]
async fn calls_under_way_are_left_to_be_repeated() {
    let mut world = World::new().await;
    let view = world.attach(spec("pending")).await.unwrap();
    let pending = vec![key("pending")];
    world.connect(Hello { pending, ..hello(&world.kernel, "boot-1", &[]) }).await;
    assert_eq!(world.attach(spec("pending")).await.unwrap().record, view.record);
    world.check();
    // The next session neither has nor expects it.
    world.hello(&[]).await;
    assert_eq!(world.state("pending"), None);
    world.check();
}

#[tokio::test]
async fn hello_sends_reattach_for_a_misplaced_vf() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.hello(&[live(&view, false)]).await;
    let command = world.command();
    assert!(
        matches!(&command, Some(HostCommand::Reattach(again)) if again.record == view.record),
        "{command:?}"
    );
    world.check();
}

#[tokio::test]
async fn host_receives_the_configured_numbers_of_vfs() {
    let wanted = |world: &mut World| match world.command() {
        Some(HostCommand::WantedVfs { pf, count }) => Some((pf, count)),
        _ => None,
    };
    let mut configuration = configuration();
    let (own, others) = (PfId::local(0), PfId::local(1));
    configuration.vfs = [(own, 4), (others, 8)].into();
    let mut world = World::with(configuration.clone(), settings(), VFS).await;
    world.hello(&[]).await;
    assert_eq!(wanted(&mut world), Some((own, 4)));
    assert_eq!(wanted(&mut world), None, "other hosts' PFs are not its business");
    configuration.vfs.insert(own, 6);
    world.engine.load_configuration(configuration).await.unwrap();
    assert_eq!(wanted(&mut world), Some((own, 6)));
    world.check();
}

#[tokio::test]
async fn hello_sends_releases_of_its_absence() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.hosts().goodbye(&host(), world.session_id(), CLOSED, None);
    world.engine.operators().release(view.record.id, false, "it floods".into()).await.unwrap();
    world.hello(&[live(&view, true)]).await;
    let command = world.command();
    assert!(
        matches!(command, Some(HostCommand::Release { id, .. }) if id == view.record.id),
        "{command:?}"
    );
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing));
    world.check();
}

#[tokio::test]
async fn vf_of_an_unrecorded_attachment_is_quarantined() {
    let mut world = World::new().await;
    let known = world.attached("known").await;
    let strange = world.attached("strange").await;
    world.detach("strange").await;
    let live = vec![live(&known, true), live(&strange, true)];
    let in_use = [known.record.vf, strange.record.vf];
    world.connect(Hello { live, ..hello(&world.kernel, "boot-1", &in_use) }).await;
    let state = |vfs: Vec<dpu_service::attachments::VfView>| {
        vfs.into_iter().find(|vf| vf.vf == strange.record.vf).unwrap().state
    };
    let quarantined = state(world.engine.operators().vfs().await.unwrap());
    assert!(
        matches!(&quarantined, VfState::Quarantined { reason } if reason.contains(&strange.record.id.to_string())),
        "{quarantined}"
    );
    assert_eq!(world.state("known"), Some(AttachmentState::Attached));
    world.check();
    // The host detaches it after all.
    let clean = inventory(&world.kernel, &[known.record.vf]);
    world.send_inventory(&clean).await;
    assert_eq!(state(world.engine.operators().vfs().await.unwrap()), VfState::Free);
}

#[tokio::test]
async fn unrecorded_attachment_without_a_vf_is_harmless() {
    let mut world = World::new().await;
    let known = world.attached("known").await;
    let strange = LiveAttachment { id: AttachmentId(uuid::Uuid::now_v7()), in_pod: true };
    world.hello(&[live(&known, true), strange]).await;
    assert_eq!(world.engine.operators().pools()[0].usage.quarantined, 0);
    assert_eq!(world.list().len(), 1);
}

#[tokio::test]
async fn vfs_no_longer_advertised_are_unavailable() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.connect(Hello { live: vec![live(&view, true)], ..bare_hello() }).await;
    assert_eq!(world.refused(spec("other")).await, Reason::VfsExhausted);
    assert_eq!(world.engine.operators().pools()[0].usage.absent, 3);
    assert_eq!(world.state("pod"), Some(AttachmentState::Attached));
}

fn bare_hello() -> Hello {
    hello(&crate::fake_kernel::FakeKernel::default(), "boot-1", &[])
}

#[tokio::test]
async fn pfs_of_another_host_are_refused_by_name() {
    let world = World::new().await;
    let other = HostName("node-2".into());
    let claim = hello(&world.kernel, "boot-1", &[]);
    let failure = world.engine.hosts().hello(other, claim).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NotAuthorised);
    assert!(failure.message.contains("p0") && !failure.message.contains("node-1"), "{failure}");
    let unknown_host = HostName("node-9".into());
    let failure = world.engine.hosts().hello(unknown_host, bare_hello()).await.unwrap_err();
    assert_eq!(failure.reason, Reason::HostUnknown);
}

#[tokio::test]
async fn words_of_an_old_session_are_ignored() {
    let mut world = World::new().await;
    let old = world.session_id();
    let view = world.attach(spec("pod")).await.unwrap();
    let pending = vec![key("pod")];
    world.connect(Hello { pending, ..hello(&world.kernel, "boot-1", &[]) }).await;
    world.engine.hosts().attached(&host(), old, view.record.id);
    world.engine.hosts().goodbye(&host(), old, CLOSED, None);
    let nothing = dpu_service::host::Inventory::default();
    let failure = world.engine.hosts().inventory(&host(), old, &nothing).unwrap_err();
    assert_eq!(failure.reason, Reason::StaleSession);
    assert_eq!(world.state("pod"), Some(AttachmentState::Programmed));
    assert_eq!(world.engine.operators().pools()[0].usage.absent, 0);
    assert!(world.engine.hosts().list()[0].connected);
}

/// Events of the host since `events` was subscribed.
fn shown(events: &mut tokio::sync::broadcast::Receiver<Arc<Event>>) -> Vec<(EventKind, String)> {
    let all = std::iter::from_fn(|| events.try_recv().ok());
    all.filter(|event| event.subject == "node-1").map(|it| (it.kind, it.message.clone())).collect()
}

#[tokio::test]
async fn renewed_connection_continues_the_session() {
    let mut world = World::new().await;
    let (old, mut events) = (world.session_id(), world.engine.events().watch());
    world.connect(Hello { renewed: Some(old), ..hello(&world.kernel, "boot-1", &[]) }).await;
    world.engine.hosts().goodbye(&host(), old, CLOSED, None);
    let kinds: Vec<_> = shown(&mut events).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [EventKind::HostRenewed]);
}

#[tokio::test]
async fn clean_stop_records_no_session_ends() {
    let world = World::new().await;
    let mut events = world.engine.events().watch();
    world.engine.operators().set_draining(Some("the service is stopping".into()));
    world.engine.hosts().goodbye(&host(), world.session_id(), CLOSED, None);
    assert_eq!(shown(&mut events), []);
    assert!(!world.engine.hosts().list()[0].connected);
}

#[tokio::test]
async fn host_that_takes_no_commands_is_disconnected() {
    let world = World::new().await;
    let is_connected = || world.engine.hosts().list()[0].connected;
    for _ in (0..10_000).take_while(|_| is_connected()) {
        world.engine.operators().set_draining(Some("maintenance".into()));
    }
    let about = world.engine.events().about("node-1");
    let ended = about.iter().filter(|event| event.kind == EventKind::HostDisconnected);
    assert_eq!(ended.map(|event| event.count).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn absent_host_has_a_reason() {
    let mut world = World::new().await;
    let mut events = world.engine.events().watch();
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let refuse = |world: &World| world.engine.hosts().refused(&host(), address, "it expired");
    let absence =
        |world: &World| world.engine.hosts().list()[0].absence.clone().unwrap_or_default();
    refuse(&world);
    assert_eq!(shown(&mut events).len(), 1);
    assert_eq!(absence(&world), "", "it is connected");

    let why = "expired";
    world.engine.hosts().goodbye(&host(), world.session_id(), CLOSED, Some(why.into()));
    assert_eq!(shown(&mut events), [(EventKind::HostDisconnected, why.to_owned())]);
    assert_eq!(absence(&world), why);

    refuse(&world);
    let shown = shown(&mut events);
    let [(EventKind::HostRefused, message)] = &shown[..] else { panic!("{shown:?}") };
    assert!(message.contains("127.0.0.1") && message.ends_with(": it expired"), "{message}");
    assert!(absence(&world).ends_with(": it expired"), "{}", absence(&world));

    world.engine.hosts().refused(&HostName("node-9".into()), address, "it expired");
    assert!(world.engine.hosts().list().iter().all(|it| &*it.name.0 != "node-9"));
    world.hello(&[]).await;
    assert_eq!(absence(&world), "");
    world.engine.hosts().goodbye(&host(), world.session_id(), CLOSED, None);
    assert_eq!(absence(&world), "", "it says nothing of why");
}

#[tokio::test]
async fn inventory_older_than_a_detach_is_outdated() {
    let world = World::new().await;
    for said in [VfCondition::InUse, VfCondition::Missing] {
        let view = world.attached("pod").await;
        let mut seen = inventory(&world.kernel, &[view.record.vf]);
        seen.as_of = HostTime(10);
        let vfs = &mut seen.pfs[0].vfs;
        vfs.iter_mut()
            .filter(|vf| vf.number == view.record.vf.vf)
            .for_each(|vf| vf.condition = said.clone());
        let mut unlisted = seen.clone();
        unlisted.pfs[0].vfs.retain(|vf| vf.number != view.record.vf.vf);

        world.engine.detach(Detach { as_of: HostTime(11), ..detach_of("pod") }).await.unwrap();
        world.send_inventory(&seen).await;
        world.send_inventory(&unlisted).await;
        assert_eq!(free_vfs(&world).await, usize::from(VFS));

        seen.as_of = HostTime(12);
        world.send_inventory(&seen).await;
        assert_eq!(free_vfs(&world).await, usize::from(VFS) - 1);
        world.send_inventory(&inventory(&world.kernel, &[])).await;
        world.check();
    }
}

#[tokio::test]
async fn the_clock_of_an_earlier_boot_outdates_nothing() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.detach(Detach { as_of: HostTime(1_000), ..detach_of("pod") }).await.unwrap();
    world.boot_id = "boot-2".into();
    world.hello(&[]).await;
    let mut seen = inventory(&world.kernel, &[view.record.vf]);
    seen.as_of = HostTime(10);
    world.send_inventory(&seen).await;
    assert_eq!(free_vfs(&world).await, usize::from(VFS) - 1);
}
