//! Restarts, full or hanging disks, and commits that share transactions.

use std::sync::{Arc, mpsc};

use dpu_service::attachments::{Depth, Detach};
use futures::future::join_all;
use journal::faulty_disk::FULL;
use model::{AttachmentId, AttachmentState, Record};
use netlink::MacAddress;
use offload_proto::Reason;
use test_clock::wait_until_async;
use vf_alloc::FunctionId;

use crate::world::{World, configuration, detach_of, key, live, settings, spec};

#[tokio::test]
async fn a_restart_gives_the_same_view() {
    let mut world = World::new().await;
    let held = world.attached("held").await;
    world.attached("releasing").await;
    world.engine.detach(Detach { returned: false, ..detach_of("releasing") }).await.unwrap();
    let before = world.list();

    world.restart().await;
    let after = world.list();
    let records = |views: &[model::AttachmentView]| -> Vec<_> {
        views.iter().map(|view| view.record.clone()).collect()
    };
    assert_eq!(records(&before), records(&after));
    world.engine.reconcile(Depth::Thorough).await;
    world.check();
    assert_eq!(world.state("held"), Some(AttachmentState::Programmed));

    world.hello(&[live(&held, true)]).await;
    assert_eq!(world.state("held"), Some(AttachmentState::Attached));
    assert_eq!(world.state("releasing"), None);
    world.check();
}

#[tokio::test]
async fn a_full_disk_refuses_attaches_and_leaves_nothing() {
    let mut world = World::new().await;
    let running = world.attached("running").await;
    world.set_full(true);
    let failure = world.attach(spec("pod")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::JournalUnavailable);
    assert!(failure.message.contains("No space left"), "{failure}");
    let obstacles = world.engine.obstacles();
    assert!(
        obstacles.len() == 1 && obstacles[0].reason == Reason::JournalUnavailable,
        "{obstacles:?}"
    );
    world.check();
    assert_eq!(world.engine.operators().pools()[0].usage.free, 3);

    world.set_full(false);
    world.engine.probe_journal().await.unwrap();
    assert!(world.engine.status().is_empty());
    world.attached("pod").await;
    world.restart().await;
    assert_eq!(world.list().len(), 2);
    assert_eq!(world.list()[0].record, running.record);
}

#[tokio::test]
async fn hung_disk_is_an_obstacle_until_it_answers() {
    let world = World::new().await;
    let hang = world.disk.as_ref().unwrap().hang();
    let mut waiting = Box::pin(world.attach(spec("waiting")));
    assert!(futures::poll!(&mut waiting).is_pending());
    wait_until_async("the obstacle", async || !world.engine.obstacles().is_empty()).await;
    assert_eq!(world.engine.obstacles()[0].reason, Reason::JournalUnavailable);
    assert_eq!(world.refused(spec("pod")).await, Reason::JournalUnavailable);
    drop(hang);
    waiting.await.unwrap();
    assert!(world.engine.status().is_empty());
    world.check();
}

#[tokio::test]
async fn obstacle_is_known_while_a_probe_waits() {
    let world = World::new().await;
    world.set_full(true);
    assert_eq!(world.refused(spec("pod")).await, Reason::JournalUnavailable);
    let hang = world.disk.as_ref().unwrap().hang();
    let mut probe = Box::pin(world.engine.probe_journal());
    assert!(futures::poll!(&mut probe).is_pending());
    assert_eq!(world.engine.obstacles()[0].reason, Reason::JournalUnavailable);
    world.set_full(false);
    drop(hang);
    probe.await.unwrap();
    assert!(world.engine.status().is_empty());
}

#[tokio::test]
async fn full_disk_leaves_the_kernel_unchanged() {
    let world = World::new().await;
    world.set_full(true);
    assert_eq!(world.refused(spec("pod")).await, Reason::JournalUnavailable);
    let calls = world.kernel.calls();
    assert_eq!(world.refused(spec("pod")).await, Reason::JournalUnavailable);
    assert_eq!(world.kernel.calls(), calls);
    world.check();
    world.set_full(false);
    world.attach(spec("pod")).await.unwrap();
    world.check();
}

#[tokio::test]
async fn detach_on_a_full_disk_is_finished_later() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.set_full(true);
    let failure = world.engine.detach(detach_of("pod")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::JournalUnavailable);
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing));
    assert!(world.kernel.port(view.record.vf).is_idle());

    world.set_full(false);
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.state("pod"), None);
    world.check();
}

#[tokio::test]
async fn record_of_a_failed_attach_is_deleted_later() {
    let mut world = World::new().await;
    let attach = world.attach(spec("pod"));
    let (disk_is_full, gate) = mpsc::channel();
    world.kernel.refuse_after(gate, "join");
    // The disk fills up after the record was written.
    let disk = world.disk.clone().unwrap();
    let mut feed = world.engine.events().watch();
    let fill = async {
        feed.recv().await.unwrap();
        disk.fail_writes(Some(FULL));
        disk_is_full.send(()).unwrap();
    };
    let (failure, ()) = tokio::join!(attach, fill);
    assert_eq!(failure.unwrap_err().reason, Reason::ProgrammingFailed);
    assert_eq!(world.state("pod"), Some(AttachmentState::Releasing), "the journal has it still");
    world.set_full(false);
    world.engine.reconcile(Depth::Quick).await;
    assert!(world.list().is_empty());
    world.restart().await;
    assert!(world.list().is_empty());
    world.engine.reconcile(Depth::Thorough).await;
    world.check();
}

/// Whichever of the two the service kept, the other one's pod would lose its network.
#[tokio::test]
async fn contradicting_journal_is_refused_by_name() {
    for number in 0..4 {
        let mut world = World::new().await;
        let first = world.attached("first").await.record;
        let (what, twin) = twins(&first).swap_remove(number);
        let refusal = world.refusal_with(&twin).await;
        assert!(refusal.is_of_the_file(), "{refusal:?}");
        let sentence = refusal.to_string();
        let holders = [&*first, &twin].map(|record| format!("{} ({})", record.id, record.key));
        for named in holders.into_iter().chain([what, "copy".into()]) {
            assert!(sentence.contains(&named), "{named}: {sentence}");
        }
    }
}

#[tokio::test]
async fn start_that_the_journal_prevents_is_not_recorded() {
    let mut world = World::new().await;
    let first = world.attached("first").await.record;
    let (_, twin) = twins(&first).swap_remove(0);
    assert!(world.refusal_with(&twin).await.is_of_the_file());
    assert_eq!(world.recorded_starts(), 1);
}

/// Records that share one thing with `first`, with its name.
fn twins(first: &Record) -> Vec<(String, Record)> {
    let own = || Record {
        id: AttachmentId(uuid::Uuid::nil()),
        key: key("twin"),
        vf: FunctionId { vf: first.vf.vf ^ 1, ..first.vf },
        mac: MacAddress([2, 0, 0, 0, 0, 9]),
        leases: Vec::new(),
        ..first.clone()
    };
    let lease = first.leases[1].clone();
    vec![
        (format!("VF {}", first.vf), Record { vf: first.vf, ..own() }),
        (format!("MAC address {}", first.mac), Record { mac: first.mac, ..own() }),
        (format!("key {}", first.key), Record { key: first.key.clone(), ..own() }),
        (format!("address {}", lease.address.ip()), Record { leases: vec![lease], ..own() }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_attaches_share_transactions() {
    let world = Arc::new(World::with(configuration(), settings(), 64).await);
    let before = world.engine.operators().journal_statistics();
    let attach = |number: u32| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.attach(spec(&number.to_string())).await })
    };
    let attached = join_all((0..64).map(attach)).await;
    assert!(attached.into_iter().all(|attached| attached.unwrap().is_ok()));
    let after = world.engine.operators().journal_statistics();
    assert_eq!(after.commits - before.commits, 64);
    assert!(after.transactions - before.transactions < 64, "{after:?}");
    world.check();
    let detached = join_all((0..64).map(|n| world.engine.detach(detach_of(&n.to_string()))));
    assert!(detached.await.into_iter().all(|detached| detached.is_ok()));
    world.check();
    assert!(world.list().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_attaches_of_one_key_give_one_attachment() {
    let world = Arc::new(World::new().await);
    let attach = |_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.attach(spec("pod")).await.unwrap().record.id })
    };
    let ids = join_all((0..16).map(attach)).await;
    let first = ids[0].as_ref().unwrap();
    assert!(ids.iter().all(|id| id.as_ref().unwrap() == first));
    assert_eq!(world.list().len(), 1);
    world.check();
}

#[tokio::test]
async fn cancelled_caller_leaves_nothing_half_made() {
    let world = World::new().await;
    let mut attach = Box::pin(world.attach(spec("pod")));
    assert!(futures::poll!(&mut attach).is_pending());
    drop(attach);
    // The flow continues in the background; the next one of the key waits for it.
    let view = world.attach(spec("pod")).await.unwrap();
    assert_eq!(world.list(), [view]);
    world.check();
}
