//! Hosts removed from the configuration and added again.

use dpu_service::{attachments::Configuration, events::EventKind};
use model::{AttachmentState, HostName};
use offload_proto::Reason;
use tokio::sync::mpsc::error::TryRecvError;
use vf_alloc::PfId;

use crate::world::{VFS, World, configuration, live, spec};

fn without_host() -> Configuration {
    let mut file = configuration();
    file.hosts.remove(0);
    file
}

async fn load(world: &World, file: Configuration) {
    world.engine.load_configuration(file).await.unwrap();
}

/// A removed host with an attachment. Its pool still names its PF.
async fn removed() -> World {
    let mut world = World::new().await;
    world.attached("pod").await;
    load(&world, without_host()).await;
    while world.command().is_some() {}
    world
}

#[tokio::test]
async fn removed_host_loses_its_session_at_once() {
    let mut world = removed().await;
    assert_eq!(world.session.commands.try_recv().unwrap_err(), TryRecvError::Disconnected);
    assert_eq!(world.refused(spec("new")).await, Reason::HostUnknown);
    let events = world.engine.events().about("node-1");
    assert!(events.iter().any(|event| event.kind == EventKind::HostRemoved), "{events:?}");
}

#[tokio::test]
async fn attachments_of_removed_host_stay_programmed() {
    let mut world = removed().await;
    for _ in 0..2 {
        assert_eq!(world.state("pod"), Some(AttachmentState::HostRemoved));
        world.check();
        let warnings = world.warnings();
        assert!(warnings.iter().any(|warning| warning.starts_with("host node-1 ")), "{warnings:?}");
        world.configuration = without_host();
        world.restart().await;
    }
}

#[tokio::test]
async fn operator_ends_attachments_of_removed_host() {
    let mut world = removed().await;
    let id = world.list()[0].record.id;
    world.engine.operators().release(id, false, "decommissioned".into()).await.unwrap();
    assert!(world.list().is_empty());
    world.check();
    load(&world, configuration()).await;
    world.hello(&[]).await;
    for number in 0..VFS {
        world.attach(spec(&format!("pod-{number}"))).await.unwrap();
    }
}

#[tokio::test]
async fn released_vf_waits_for_its_host() {
    let mut world = removed().await;
    let (id, vf) = (world.list()[0].record.id, world.list()[0].record.vf);
    world.engine.operators().release(id, false, "decommissioned".into()).await.unwrap();
    load(&world, configuration()).await;
    // The pod keeps running.
    let hello = crate::world::hello(&world.kernel, &world.boot_id, &[vf]);
    world.connect(hello).await;
    for number in 1..VFS {
        assert_ne!(world.attach(spec(&format!("pod-{number}"))).await.unwrap().record.vf, vf);
    }
    assert_eq!(world.refused(spec("one too many")).await, Reason::VfsExhausted);
}

#[tokio::test]
async fn host_put_back_offers_vfs_at_once() {
    let mut world = removed().await;
    let view = world.list().remove(0);
    load(&world, configuration()).await;
    world.hello(&[live(&view, true)]).await;
    assert_eq!(world.state("pod"), Some(AttachmentState::Attached));
    for number in 1..VFS {
        world.attach(spec(&format!("pod-{number}"))).await.unwrap();
    }
    world.check();
}

#[tokio::test]
async fn pf_in_use_stays_with_its_host() {
    let world = removed().await;
    let mut file = without_host();
    file.hosts.push((HostName("node-3".into()), vec![PfId::local(0)]));
    let refused = world.engine.load_configuration(file).await.unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidRequest);
    let mut file = configuration();
    file.hosts[0].1 = vec![PfId::local(2)];
    load(&world, configuration()).await;
    assert_eq!(
        world.engine.load_configuration(file).await.unwrap_err().reason,
        Reason::InvalidRequest
    );
}
