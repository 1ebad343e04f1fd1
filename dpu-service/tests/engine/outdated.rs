//! Messages of a host that arrive after later ones. Found by exploring the protocol (package `protocol-model`).

use dpu_service::{
    attachments::Detach,
    host::{Asked, Hello, HostTime, Inventory},
    sessions::HostCommand,
};
use model::AttachmentState;
use mtls::ConnectionNumber;
use offload_proto::Reason;

use crate::world::{World, detach_of, hello, host, inventory, key, live, spec};

fn inventory_as_of(world: &World, in_use: bool, time: u64) -> Inventory {
    let vfs: Vec<_> = world.list().iter().map(|view| view.record.vf).collect();
    let in_use = if in_use { vfs } else { Vec::new() };
    Inventory { as_of: HostTime(time), ..inventory(&world.kernel, &in_use) }
}

/// The VF was clean before it was attached and lost; its pod's namespace is being cleaned up.
#[tokio::test]
async fn older_inventory_does_not_return_the_vf() {
    let world = World::new().await;
    let before = inventory_as_of(&world, false, 1);
    world.attached("a").await;
    let detach = Detach { returned: false, as_of: HostTime(2), ..detach_of("a") };
    world.engine.detach(detach).await.unwrap();
    world.send_inventory(&before).await;
    assert_eq!(world.state("a"), Some(AttachmentState::Releasing));
}

/// The agent gave up a connection attempt, and its hello still arrives.
#[tokio::test]
async fn outdated_hello_changes_nothing() {
    let mut world = World::new().await;
    let by = |number| {
        let connection = ConnectionNumber(number);
        Hello { connection, ..hello(&world.kernel, &world.boot_id, &[]) }
    };
    let (older, newer) = (by(1), by(2));
    world.connect(newer).await;
    world.attached("a").await;
    let refused = world.engine.hosts().hello(host(), older).await.map(drop);
    assert_eq!(world.state("a"), Some(AttachmentState::Attached));
    assert_eq!(refused.unwrap_err().reason, Reason::StaleSession);
}

/// The host's clock was set back, or a program with its certificate sent a wrong time.
#[tokio::test]
async fn detach_with_a_future_time_outdates_nothing() {
    const HOUR: u64 = 3_600_000_000_000;
    for sent_before_the_hello in [false, true] {
        let mut world = World::new().await;
        let now = |world: &World| Hello {
            inventory: inventory_as_of(world, false, HOUR),
            ..hello(&world.kernel, &world.boot_id, &[])
        };
        if !sent_before_the_hello {
            world.connect(now(&world)).await;
        }
        world.attached("a").await;
        let as_of = HostTime(2 * HOUR);
        let detach = Detach { returned: false, as_of, ..detach_of("a") };
        world.engine.detach(detach).await.unwrap();
        if sent_before_the_hello {
            world.connect(now(&world)).await;
        } else {
            world.send_inventory(&inventory_as_of(&world, false, HOUR + 1)).await;
        }
        assert_eq!(world.state("a"), None, "{sent_before_the_hello}");
    }
}

/// The host got no answer, and both calls arrive at once.
#[tokio::test]
async fn attach_after_its_detach_reserves_nothing() {
    let mut world = World::new().await;
    let session = world.session_id();
    let asked = |session, time| Asked { session, as_of: HostTime(time) };
    let take_back = Detach { returned: false, as_of: HostTime(2), ..detach_of("a") };
    world.engine.detach(take_back).await.unwrap();
    let refused = world.engine.attach(spec("a"), asked(session, 1)).await;
    assert_eq!(refused.unwrap_err().reason, Reason::DeadlineExceeded);
    assert_eq!(world.state("a"), None);
    let view = world.engine.attach(spec("a"), asked(session, 3)).await.unwrap();
    let by_id = Detach { id: Some(view.record.id), as_of: HostTime(4), ..detach_of("a") };
    world.engine.detach(by_id).await.unwrap();
    let late = world.engine.attach(spec("a"), asked(session, 3)).await;
    assert_eq!(late.unwrap_err().reason, Reason::DeadlineExceeded, "a repeat of it was answered");
    // A clock that starts again proves nothing about the previous boot.
    world.boot_id = "boot-2".to_owned();
    world.hello(&[]).await;
    world.engine.attach(spec("a"), asked(world.session_id(), 1)).await.unwrap();
    world.check();
}

/// The host gave up a DEL's call, and it is served after the next ADD.
#[tokio::test]
async fn detach_before_a_served_attach_ends_nothing() {
    let world = World::new().await;
    let asked = |time| Asked { session: world.session_id(), as_of: HostTime(time) };
    let detach = |time| Detach { as_of: HostTime(time), ..detach_of("a") };
    world.engine.attach(spec("a"), asked(2)).await.unwrap();
    world.engine.detach(detach(1)).await.unwrap();
    assert_eq!(world.state("a"), Some(AttachmentState::Programmed));
    world.engine.attach(spec("a"), asked(4)).await.unwrap();
    world.engine.detach(detach(3)).await.unwrap();
    assert_eq!(world.state("a"), Some(AttachmentState::Programmed), "it was asked for again");
    world.engine.detach(detach(5)).await.unwrap();
    assert_eq!(world.state("a"), None);
    world.check();
}

/// The host is about to move the VF when an operator releases the attachment.
#[tokio::test]
async fn released_attach_under_way_keeps_its_vf() {
    let mut world = World::new().await;
    let view = world.attach(spec("a")).await.unwrap();
    world.engine.operators().release(view.record.id, false, "operator".into()).await.unwrap();
    let mut hello = hello(&world.kernel, &world.boot_id, &[]);
    hello.pending = vec![key("a")];
    world.connect(hello).await;
    assert_eq!(world.state("a"), Some(AttachmentState::Releasing));
    assert!(matches!(world.command(), Some(HostCommand::Release { .. })));
}

/// The host gave up a DEL, and its call arrives after the pod was attached again.
#[tokio::test]
async fn detach_of_an_earlier_session_is_stale() {
    let mut world = World::new().await;
    let detach = |world: &World| Detach { session: Some(world.session_id()), ..detach_of("a") };
    let late = detach(&world);
    world.hello(&[]).await;
    world.attached("a").await;
    let refused = world.engine.detach(late).await;
    assert_eq!(refused.unwrap_err().reason, Reason::StaleSession);
    assert_eq!(world.state("a"), Some(AttachmentState::Attached));
    world.engine.detach(detach(&world)).await.unwrap();
    assert_eq!(world.state("a"), None);
}

/// Since its start the service only knows that the VF is in use.
#[tokio::test]
async fn vf_returned_after_a_restart_is_free() {
    let mut world = World::new().await;
    let view = world.attached("a").await;
    world.restart().await;
    world.hello(&[live(&view, true)]).await;
    world.detach("a").await;
    let mut again = spec("b");
    again.interface.device = Some(view.record.device.clone());
    assert_eq!(world.attach(again).await.unwrap().record.vf, view.record.vf);
    world.check();
}

/// The inventory with the VF in use was processed. The one with the VF clean arrives after a Detach that says the same,
/// and the host sends nothing more.
#[tokio::test]
async fn vf_returned_by_a_detach_is_free() {
    let world = World::new().await;
    let view = world.attached("a").await;
    world.send_inventory(&inventory_as_of(&world, true, 1)).await;
    let clean = inventory_as_of(&world, false, 2);
    world.engine.detach(Detach { as_of: HostTime(3), ..detach_of("a") }).await.unwrap();
    world.send_inventory(&clean).await;
    let mut again = spec("b");
    again.interface.device = Some(view.record.device.clone());
    world.attach(again).await.unwrap();
}
