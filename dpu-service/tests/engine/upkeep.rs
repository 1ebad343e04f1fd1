//! The reconciler makes the kernel agree with the records after any change.

use std::{sync::mpsc, time::Duration};

use dpu_service::{attachments::Depth, events::EventKind, reconcile, sessions::HostCommand};
use drivers::fabric::{EgressLimit, Membership};
use model::{AttachmentState, Bandwidth, PortSettings};
use offload_proto::Reason;
use test_clock::{Stopwatch, within};
use tokio_util::sync::CancellationToken;
use vf_alloc::FunctionId;

use crate::{
    fake_kernel::{DOING, Port},
    world::{World, hello, host, requesting, spec},
};

#[tokio::test]
async fn changed_ports_are_repaired() {
    let meddlings: [fn(&mut Port); 7] = [
        |port| port.mac = None,
        |port| port.rate.egress_rate = 1,
        |port| port.representor.mtu = 1280,
        |port| port.membership = None,
        |port| port.guard = None,
        |port| port.limit = Some(EgressLimit { rate: 1, burst: 1 }),
        |port| port.representor.up = false,
    ];
    let world = World::new().await;
    let view = world.attached("pod").await;
    for change_port in meddlings {
        world.kernel.change_port(view.record.vf, change_port);
        world.engine.reconcile(Depth::Thorough).await;
        world.check();
    }
    let events = world.engine.events().about(&view.record.id.to_string());
    let repairs = events.iter().filter(|event| event.kind == EventKind::Repaired).count();
    assert_eq!(repairs, meddlings.len());
}

#[tokio::test]
async fn representor_without_attachment_is_unprogrammed() {
    let world = World::new().await;
    world.kernel.change_port(FunctionId::local(0, 3), |port| {
        port.membership = Some(Membership { vlan: Some(100), ..Default::default() });
        port.representor.up = true;
    });
    world.engine.reconcile(Depth::Quick).await;
    world.check();
}

/// The service programs while it records, so a crash can leave any step without a record.
#[tokio::test]
async fn unrecorded_ports_after_a_crash_are_cleared() {
    let bandwidth =
        Bandwidth { ingress_rate: 1_000_000, egress_rate: 1_000_000, ..Bandwidth::default() };
    let world = World::new().await;
    let view = world.attach(requesting(spec("pod"), |it| it.bandwidth = bandwidth)).await.unwrap();
    let vf = FunctionId::local(0, 3);
    let settings = PortSettings { vf, ..view.record.port_settings() };
    // A representor with only an MTU is in no fabric; the next attach sets another MTU.
    for next in DOING.iter().skip(2).map(Some).chain([None]) {
        if let Some(next) = next {
            world.kernel.refuse(next, 1);
        }
        let programmed = world.kernel.programmer().repair(&settings);
        assert_eq!(programmed.is_ok(), next.is_none(), "up to {next:?}");
        assert!(!world.kernel.port(vf).is_idle());
        world.engine.reconcile(Depth::Quick).await;
        world.check();
    }
}

/// It has left the fabric, so a survey of the ports does not find it.
#[tokio::test]
async fn leftover_of_an_undo_is_removed_later() {
    let bandwidth =
        Bandwidth { ingress_rate: 1_000_000, egress_rate: 1_000_000, ..Bandwidth::default() };
    let limited = || requesting(spec("pod"), |it| it.bandwidth = bandwidth);
    let world = World::new().await;
    world.kernel.refuse("clear_rate", 1);
    world.set_full(true);
    assert_eq!(world.refused(limited()).await, Reason::JournalUnavailable);
    world.set_full(false);
    world.engine.reconcile(Depth::Quick).await;
    world.check();

    let view = world.attach(limited()).await.unwrap();
    world.kernel.refuse("clear_rate", 1);
    world.detach("pod").await;
    assert!(!world.kernel.port(view.record.vf).is_idle());
    world.engine.reconcile(Depth::Quick).await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn detach_waits_for_its_ports_repair() {
    let world = World::new().await;
    let vf = world.attached("pod").await.record.vf;
    world.kernel.change_port(vf, |port| {
        port.representor.mtu = 1280;
        port.guard = None;
    });
    waits_for_the_reconciler(&world, "set_mtu", world.detach("pod")).await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_waits_until_its_port_is_cleared() {
    let world = World::new().await;
    world.kernel.change_port(FunctionId::local(0, 3), |port| {
        port.membership = Some(Membership { vlan: Some(100), ..Default::default() });
    });
    let wanted = requesting(spec("pod"), |it| it.device = Some("d000:00:00.4".into()));
    let attached = waits_for_the_reconciler(&world, "leave", world.attach(wanted)).await;
    assert_eq!(attached.unwrap().record.vf, FunctionId::local(0, 3));
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_port_delays_no_other() {
    let world = World::new().await;
    let ((there, called), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    world.kernel.hold_up("join", there, may_go_on);
    let others = async {
        called.recv().unwrap();
        let quick = within(Duration::from_secs(30), world.attach(spec("quick"))).await;
        quick.expect("it waits for the other's join").unwrap();
        go_on.send(()).unwrap();
    };
    let (slow, ()) = tokio::join!(world.attach(spec("slow")), others);
    slow.unwrap();
    world.check();
}

/// Starts `work` during the reconciler's call of `method`, and then lets the call continue.
async fn waits_for_the_reconciler<T>(
    world: &World,
    method: &'static str,
    work: impl Future<Output = T>,
) -> T {
    let ((there, called), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    world.kernel.hold_up(method, there, may_go_on);
    let engine = world.engine.clone();
    let reconciled = tokio::spawn(async move { engine.reconcile(Depth::Thorough).await });
    called.recv().unwrap();
    tokio::pin!(work);
    assert!(within(Duration::from_millis(50), &mut work).await.is_none());
    go_on.send(()).unwrap();
    let done = work.await;
    reconciled.await.unwrap();
    done
}

#[tokio::test]
async fn new_representors_are_programmed_and_reattached() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.take_away(view.record.vf);
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.state("pod"), Some(AttachmentState::Attached));
    world.kernel.make(view.record.vf);
    world.engine.reconcile(Depth::Quick).await;
    world.check();
    let command = world.command();
    assert!(
        matches!(&command, Some(HostCommand::Reattach(again)) if again.record == view.record),
        "{command:?}"
    );
}

#[tokio::test]
async fn failed_repair_is_reported_once() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.change_port(view.record.vf, |port| port.membership = None);
    world.kernel.refuse("join", 2);
    world.engine.reconcile(Depth::Thorough).await;
    world.engine.reconcile(Depth::Quick).await;
    world.engine.reconcile(Depth::Thorough).await;
    let count = |kind| {
        let events = world.engine.events().about(&view.record.id.to_string());
        events.iter().filter(|event| event.kind == kind).count()
    };
    assert_eq!(count(EventKind::RepairFailed), 1);
    let warned = world.attachment_warnings().concat();
    assert!(warned.contains("1 attachment can't"), "{warned}");
    world.engine.reconcile(Depth::Thorough).await;
    assert_eq!(count(EventKind::Repaired), 1);
    assert_eq!(world.attachment_warnings(), [""; 0]);
    world.check();
}

/// The card resets and removes the representor while it is examined.
#[tokio::test]
async fn representor_that_appears_is_programmed_at_once() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.take_away(view.record.vf);
    world.engine.reconcile(Depth::Thorough).await;
    world.kernel.make(view.record.vf);
    world.engine.reconcile(Depth::Quick).await;
    world.check();
    assert!(matches!(world.command(), Some(HostCommand::Reattach(_))));
}

/// The failed step was on a representor that the card has since removed.
#[tokio::test]
async fn new_representor_is_programmed_despite_failed_repair() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.change_port(view.record.vf, |port| port.membership = None);
    world.kernel.refuse("join", 1);
    world.engine.reconcile(Depth::Thorough).await;
    world.kernel.take_away(view.record.vf);
    world.kernel.make(view.record.vf);
    world.engine.reconcile(Depth::Quick).await;
    world.check();
}

#[tokio::test]
async fn failed_repair_keeps_working_steps() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    let limited = |port: &mut Port| port.rate.ingress_rate = 1;
    world.kernel.change_port(view.record.vf, limited);
    world.kernel.refuse("set_rate", 1);
    let before = world.kernel.port(view.record.vf);
    world.engine.reconcile(Depth::Thorough).await;
    assert_eq!(world.kernel.port(view.record.vf), before);
    world.engine.reconcile(Depth::Thorough).await;
    world.check();
}

#[tokio::test]
async fn representor_may_vanish_during_a_detach() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.vanish_at("set_up");
    world.detach("pod").await;
    assert!(world.list().is_empty());
    let usage = world.engine.operators().pools()[0].usage;
    assert_eq!((usage.free, usage.quarantined), (4, 0));
    world.kernel.make(view.record.vf);
    world.check();
}

#[tokio::test]
async fn failed_clearing_is_reported_once() {
    let world = World::new().await;
    let vf = FunctionId::local(0, 3);
    world.kernel.change_port(vf, |port| {
        port.membership = Some(Membership { vlan: Some(100), ..Default::default() });
    });
    world.kernel.refuse("leave", 2);
    for depth in [Depth::Quick, Depth::Quick, Depth::Thorough, Depth::Thorough] {
        world.engine.reconcile(depth).await;
    }
    world.check();
    let events = world.engine.events().about(&vf.to_string());
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::RepairFailed, EventKind::Repaired]);
}

#[tokio::test]
async fn unprepared_fabric_is_an_obstacle() {
    let world = World::new().await;
    world.kernel.refuse("prepare", 1);
    world.engine.reconcile(Depth::Thorough).await;
    let problems = world.engine.status();
    assert!(problems[0].contains("br-offload"), "{problems:?}");
    assert_eq!(world.engine.obstacles()[0].reason, Reason::FabricUnavailable);
    world.engine.reconcile(Depth::Thorough).await;
    assert!(world.engine.status().is_empty());
}

#[tokio::test]
async fn partial_fabric_is_reported_and_serves() {
    let world = World::new().await;
    world.kernel.lack_a_part();
    world.kernel.refuse("prepare", 2);
    world.engine.reconcile(Depth::Thorough).await;
    world.engine.reconcile(Depth::Thorough).await;
    assert!(world.engine.status().is_empty());
    let warnings = world.warnings();
    assert!(warnings[0].contains("br-offload"), "{warnings:?}");
    world.attach(spec("pod")).await.unwrap();
    world.engine.reconcile(Depth::Thorough).await;
    assert!(world.warnings().is_empty());
    let shown = world.engine.events().about("fake");
    assert_eq!(shown.len(), 2, "when it begins and when it ends: {shown:?}");
}

#[tokio::test]
async fn the_watchdog_can_see_that_the_reconciler_works() {
    let world = World::new().await;
    let before = Stopwatch::start();
    let passed = before.elapsed();
    assert!(world.engine.since_reconciled() > passed);
    world.engine.reconcile(Depth::Quick).await;
    assert!(world.engine.since_reconciled() < before.elapsed());
}

#[tokio::test]
async fn reconciler_wakes_for_kernel_and_hosts() {
    let mut world = World::new().await;
    let view = world.attach(spec("pod")).await.unwrap();
    let mut feed = world.engine.events().watch();
    let mut repaired = async || {
        let wait = async { while feed.recv().await.unwrap().kind != EventKind::Repaired {} };
        within(Duration::from_secs(10), wait).await.unwrap();
    };
    world.kernel.change_port(view.record.vf, |port| port.membership = None);
    let stop = CancellationToken::new();
    let running = tokio::spawn(reconcile::run(world.engine.clone(), stop.clone()));
    repaired().await;

    world.kernel.change_port(view.record.vf, |port| port.representor.up = false);
    world.engine.kernel_changed();
    repaired().await;

    world.kernel.change_port(view.record.vf, |port| port.guard = None);
    let mut words = hello(&world.kernel, "boot-1", &[view.record.vf]);
    words.live = vec![crate::world::live(&view, true)];
    world.session = world.engine.hosts().hello(host(), words).await.unwrap();
    repaired().await;
    world.check();
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn vf_without_a_representor_is_unavailable() {
    let mut world = World::new().await;
    let absent = FunctionId::local(0, 0);
    let inventory = hello(&world.kernel, "boot-1", &[]);
    world.kernel.take_away(absent);
    world.engine.reconcile(Depth::Quick).await;
    world.connect(inventory).await;
    let usage = world.engine.operators().pools()[0].usage;
    assert_eq!((usage.free, usage.absent), (3, 1));
    for pod in ["a", "b", "c"] {
        assert_ne!(world.attached(pod).await.record.vf, absent);
    }
    // The representor may return in a moment.
    assert_eq!(world.refused(spec("d")).await, Reason::Releasing);

    world.kernel.make(absent);
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.attached("d").await.record.vf, absent);
    world.check();
}

#[tokio::test]
async fn partial_fabric_does_not_stop_repairs() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.refuse("prepare", 1);
    world.kernel.change_port(view.record.vf, |port| port.representor.up = false);
    world.engine.reconcile(Depth::Thorough).await;
    assert!(world.kernel.port(view.record.vf).representor.up);
    assert_eq!(world.engine.status().len(), 1, "status reports it");
}
