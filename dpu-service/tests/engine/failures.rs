//! Failed attaches, and VFs that become unavailable by them.

use std::time::Duration;

use dpu_service::{attachments::Depth, events::EventKind, host::Hello};
use drivers::{driver::Fault, programmer::STEPS};
use model::Bandwidth;
use offload_proto::Reason;
use vf_alloc::FunctionId;

use crate::{
    fake_kernel::DOING,
    world::{World, configuration, hello, key, live, requesting, settings, spec},
};

#[tokio::test]
async fn failed_step_is_undone_for_the_next_attach() {
    assert_eq!(STEPS.len(), DOING.len());
    for (step, method) in STEPS.iter().zip(DOING) {
        let world = World::new().await;
        world.kernel.refuse(method, 1);
        let bandwidth =
            Bandwidth { ingress_rate: 1_000_000, egress_rate: 1_000_000, ..Bandwidth::default() };
        let failure =
            world.attach(requesting(spec("pod"), |it| it.bandwidth = bandwidth)).await.unwrap_err();
        assert_eq!(failure.reason, Reason::ProgrammingFailed);
        assert!(failure.message.contains(step.name()), "{failure}");
        assert!(failure.message.contains("Device or resource busy"), "{failure}");
        world.check();
        assert!(world.list().is_empty());
        let view = world.attach(spec("pod")).await.unwrap();
        assert_eq!(view.record.leases[0].address.ip().to_string(), "10.1.0.3");
        world.check();
    }
}

#[tokio::test]
async fn a_repeated_attach_that_fails_leaves_the_attachment() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.restart().await;
    let pending = vec![key("pod")];
    world.connect(Hello { pending, ..hello(&world.kernel, "boot-1", &[]) }).await;
    world.kernel.change_port(view.record.vf, |port| port.representor.mtu = 1280);
    world.kernel.refuse("set_mtu", 1);
    assert_eq!(world.refused(spec("pod")).await, Reason::ProgrammingFailed);
    assert!(world.kernel.port(view.record.vf).membership.is_some(), "it goes on working");
    assert_eq!(world.attach(spec("pod")).await.unwrap().record, view.record);
    world.check();
}

#[tokio::test]
async fn repeated_attach_needs_no_representor() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.restart().await;
    world.hello(&[live(&view, true)]).await;
    world.kernel.take_away(view.record.vf);
    assert_eq!(world.attach(spec("pod")).await.unwrap().record, view.record);
}

#[tokio::test]
async fn failed_undo_quarantines_the_vf() {
    let world = World::new().await;
    world.kernel.refuse("set_guard", 1);
    world.kernel.refuse("leave", 1);
    world.attach(spec("pod")).await.unwrap_err();
    let vfs = world.engine.operators().vfs().await.unwrap();
    let quarantined: Vec<_> =
        vfs.iter().filter(|vf| vf.state.to_string().contains("leave")).collect();
    let [quarantined] = quarantined[..] else { panic!("{vfs:#?}") };

    // The reconciler removes the leftovers; ending the quarantine is the operator's choice.
    world.engine.reconcile(Depth::Thorough).await;
    world.check();
    let cleared = world.engine.operators().clear_quarantine(quarantined.vf).await.unwrap();
    assert_eq!(cleared.state, vf_alloc::VfState::Free);
    let again = world.engine.operators().clear_quarantine(quarantined.vf).await.unwrap_err();
    assert_eq!(again.reason, Reason::VfNotQuarantined);
}

#[tokio::test]
async fn vf_is_free_once_its_undo_succeeds() {
    let world = World::with(configuration(), settings(), 1).await;
    let vf = FunctionId::local(0, 0);
    let usage = || world.engine.operators().pools()[0].usage;
    world.attached("pod").await;
    world.kernel.blame(Fault::Elsewhere);
    for is_attach in [false, true] {
        world.kernel.refuse("leave", 2);
        if is_attach {
            world.kernel.refuse("set_guard", 1);
            assert_eq!(world.refused(spec("pod")).await, Reason::ProgrammingFailed);
        } else {
            world.detach("pod").await;
        }
        assert_eq!(world.refused(spec("next")).await, Reason::VfsExhausted);
        world.engine.reconcile(Depth::Thorough).await;
        let usage_while_kept = usage();
        assert_eq!((usage_while_kept.absent, usage_while_kept.quarantined), (1, 0));
        let vfs = world.engine.operators().vfs().await.unwrap();
        assert!(vfs[0].state.to_string().contains("fabric-join"), "{vfs:?}");

        world.engine.reconcile(Depth::Thorough).await;
        assert_eq!(usage().free, 1);
        world.check();
    }
    let events = world.engine.events().about(&vf.to_string());
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.count)).collect();
    use EventKind::{RepairFailed, Repaired};
    assert_eq!(kinds, [(RepairFailed, 2), (Repaired, 2)]);
}

#[tokio::test]
async fn vf_with_repeated_failures_is_quarantined() {
    let world = World::with(configuration(), settings(), 1).await;
    for _ in 0..3 {
        world.kernel.refuse("join", 1);
        assert_eq!(world.refused(spec("pod")).await, Reason::ProgrammingFailed);
    }
    assert_eq!(world.refused(spec("pod")).await, Reason::VfsExhausted);
    assert_eq!(world.engine.operators().pools()[0].usage.quarantined, 1);
    assert!(world.engine.status().is_empty());
}

#[tokio::test]
async fn faults_shared_by_all_ports_quarantine_none() {
    for (fault, shown) in [
        (Fault::Elsewhere, Reason::ProgrammingFailed),
        (Fault::FabricFull, Reason::FabricFull),
        (Fault::FabricAway, Reason::FabricUnavailable),
    ] {
        let world = World::with(configuration(), settings(), 1).await;
        world.kernel.blame(fault);
        for method in DOING {
            for _ in 0..4 {
                world.kernel.refuse(method, 1);
                let bandwidth = Bandwidth {
                    ingress_rate: 1_000_000,
                    egress_rate: 1_000_000,
                    ..Bandwidth::default()
                };
                let spec = requesting(spec("pod"), |it| it.bandwidth = bandwidth);
                assert_eq!(world.refused(spec).await, shown, "{method}");
            }
        }
        assert_eq!(world.engine.operators().pools()[0].usage.quarantined, 0);
        world.attach(spec("pod")).await.unwrap();
        world.check();
    }
}

#[tokio::test]
async fn a_journal_that_fails_sets_no_vf_aside() {
    let world = World::with(configuration(), settings(), 1).await;
    world.set_full(true);
    for _ in 0..4 {
        assert_eq!(world.refused(spec("pod")).await, Reason::JournalUnavailable);
    }
    world.set_full(false);
    assert_eq!(world.engine.operators().pools()[0].usage.quarantined, 0);
}

#[tokio::test]
async fn a_representor_that_is_late_is_waited_for() {
    let patient = dpu_service::attachments::Settings {
        representor_wait: Duration::from_secs(60),
        ..settings()
    };
    let world = World::with(configuration(), patient, 1).await;
    world.kernel.take_away(FunctionId::local(0, 0));
    let attach = world.attach(spec("pod"));
    let card = async {
        tokio::task::yield_now().await;
        world.kernel.make(FunctionId::local(0, 0));
        world.engine.kernel_changed();
    };
    let (attached, ()) = tokio::join!(attach, card);
    attached.unwrap();
    world.check();
}

#[tokio::test]
async fn without_a_representor_attach_fails_by_name() {
    let world = World::with(configuration(), settings(), 1).await;
    world.kernel.take_away(FunctionId::local(0, 0));
    let failure = world.attach(spec("pod")).await.unwrap_err();
    assert!(
        failure.message.contains("pf0vf0") && failure.message.contains("representor"),
        "{failure}"
    );
    world.check();
}
