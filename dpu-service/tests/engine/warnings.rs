//! Faults that are shown although Attach can be served.

use std::time::Duration;

use dpu_service::{
    attachments::{Depth, Settings},
    events::{EventKind, Severity},
    host::Hello,
};
use offload_proto::{ConditionReason, Reason};
use tokio::time::{advance, pause, resume};
use vf_alloc::FunctionId;

use crate::world::{
    VFS, World, configuration, hello, live, network, pool, requesting, settings, spec,
};

/// A world that reports missing representors at once.
async fn reporting_at_once() -> World {
    let settings = Settings { missing_reported_after: Duration::ZERO, ..settings() };
    World::with(configuration(), settings, VFS).await
}

async fn fails(world: &World, container: &str) {
    world.kernel.refuse("join", 1);
    assert_eq!(world.refused(spec(container)).await, Reason::ProgrammingFailed);
}

/// A world in which the first failure quarantines a VF.
async fn strict(vfs: u16) -> World {
    World::with(configuration(), Settings { quarantine_after: 1, ..settings() }, vfs).await
}

#[tokio::test]
async fn missing_representors_are_a_fault_until_back() {
    let world = reporting_at_once().await;
    let mut vfs = Vec::new();
    for container in ["a", "b", "c"] {
        vfs.push(world.attached(container).await.record.vf);
    }
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.attachment_warnings(), [""; 0]);

    vfs.iter().for_each(|vf| world.kernel.take_away(*vf));
    world.engine.reconcile(Depth::Quick).await;
    let warnings = world.attachment_warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let first = &world.list()[0].record.id.to_string();
    for word in ["3 attachments", "pf0vf0", "pf0vf1", "`dpuctl doctor`", first] {
        assert!(warning.contains(word), "{word}: {warning}");
    }
    assert!(!warning.contains("pf0vf2"), "{warning}");
    assert!(world.engine.status().is_empty(), "Attach is served");

    world.kernel.make(vfs[0]);
    world.detach("b").await;
    world.engine.reconcile(Depth::Quick).await;
    assert!(world.attachment_warnings()[0].contains("1 attachment,"));
    world.kernel.make(vfs[2]);
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.attachment_warnings(), [""; 0]);
    world.check();
}

#[tokio::test]
async fn missing_card_is_a_fault_after_restart() {
    let mut world = reporting_at_once().await;
    let view = world.attached("pod").await;
    world.kernel.take_away(view.record.vf);
    world.restart().await;
    world.engine.reconcile(Depth::Thorough).await;
    assert!(world.attachment_warnings()[0].contains(&view.record.id.to_string()));
}

#[tokio::test]
async fn short_card_reset_is_no_fault() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.kernel.take_away(view.record.vf);
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.attachment_warnings(), [""; 0]);
    world.kernel.make(view.record.vf);
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.attachment_warnings(), [""; 0]);
    world.check();
}

#[tokio::test]
async fn vfs_that_never_have_representors_lack_none() {
    let mut world = reporting_at_once().await;
    let view = world.attached("pod").await;
    world.kernel.leave_all_to_the_hosts();
    world.kernel.take_away(view.record.vf);
    world.restart().await;
    world.engine.reconcile(Depth::Thorough).await;
    assert_eq!(world.attachment_warnings(), [""; 0]);
}

#[tokio::test]
async fn quarantined_pool_is_a_fault_until_cleared() {
    let world = strict(2).await;
    fails(&world, "a").await;
    assert_eq!(world.attachment_warnings(), [""; 0], "there is another one");
    fails(&world, "b").await;
    let warnings = world.attachment_warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    for word in ["pool default", "2 in quarantine", "`dpuctl clear-quarantine pf0vf0`"] {
        assert!(warning.contains(word), "{word}: {warning}");
    }
    assert!(world.engine.status().is_empty(), "Attach is served");

    world.engine.operators().clear_quarantine(FunctionId::local(0, 1)).await.unwrap();
    assert_eq!(world.attachment_warnings(), [""; 0]);
    // In use it is no longer free.
    world.attached("c").await;
    assert!(world.attachment_warnings()[0].contains("1 in quarantine"));
}

#[tokio::test]
async fn exhausted_pool_is_no_fault() {
    let world = strict(1).await;
    world.attached("a").await;
    assert_eq!(world.refused(spec("b")).await, Reason::VfsExhausted);
    assert_eq!(world.attachment_warnings(), [""; 0]);
}

#[tokio::test]
async fn each_quarantined_pool_is_named() {
    let world = strict(2).await;
    let mut configuration = configuration();
    configuration.pools = vec![pool("default", "p0#0"), pool("rest", "p0#1")];
    configuration.networks.push(network("name = 'green'\npool = 'rest'"));
    world.engine.load_configuration(configuration).await.unwrap();
    fails(&world, "a").await;
    let warnings = world.attachment_warnings();
    assert!(matches!(&warnings[..], [one] if one.contains("pool default")), "{warnings:?}");
    world.kernel.refuse("join", 1);
    let on_green = requesting(spec("b"), |it| it.network = "green".into());
    assert_eq!(world.refused(on_green).await, Reason::ProgrammingFailed);
    let warnings = world.attachment_warnings().concat();
    assert!(["pool default", "pool rest"].iter().all(|name| warnings.contains(name)), "{warnings}");
}

#[tokio::test]
async fn missing_card_is_not_blamed_on_quarantine() {
    let world = strict(1).await;
    fails(&world, "a").await;
    world.kernel.take_away(FunctionId::local(0, 0));
    world.engine.reconcile(Depth::Quick).await;
    assert_eq!(world.attachment_warnings(), [""; 0]);
}

#[tokio::test]
async fn former_gateway_is_reported_while_pods_use_it() {
    let mut world = World::new().await;
    let with_gateway = |gateway: &str| {
        let subnet = format!("cidr = '10.2.0.0/24', gateway = '{gateway}'");
        network(&format!("name = 'blue'\nsubnets = [{{ {subnet} }}]"))
    };
    let apply = async |world: &World, gateway| {
        world.engine.networks().apply(with_gateway(gateway), None, false).await.unwrap();
    };
    let on_blue = |container| requesting(spec(container), |it| it.network = "blue".into());
    apply(&world, "10.2.0.1").await;
    let old = world.attach(on_blue("old")).await.unwrap();
    world.restart().await;
    world.hello(&[live(&old, true)]).await;
    assert!(world.warnings().is_empty());
    apply(&world, "10.2.0.254").await;
    world.attach(on_blue("new")).await.unwrap();
    let warnings = world.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for value in ["network blue", " 1 attachment ", &old.record.id.to_string()] {
        assert!(warnings[0].contains(value), "{warnings:?}");
    }
    world.detach("old").await;
    assert!(world.warnings().is_empty());
}

#[tokio::test]
async fn lost_dpu_gateway_is_reported() {
    let changes = [
        ("", "gateway_mode = 'router'\nvlan = 100"),
        ("", "gateway_mode = 'dpu'\nvlan = 200"),
        ("deleted", ""),
    ];
    let lost = |world: &World| {
        let warnings = world.warnings().into_iter();
        warnings.filter(|warning| warning.contains("attachment uses")).collect::<Vec<_>>()
    };
    for (deleted, changed) in changes {
        let world = World::new().await;
        let blue = |text: &str| {
            let subnet = "cidr = '10.2.0.0/24', gateway = '10.2.0.1'";
            network(&format!("name = 'blue'\n{text}\nsubnets = [{{ {subnet} }}]"))
        };
        let networks = world.engine.networks();
        networks.apply(blue("gateway_mode = 'dpu'\nvlan = 100"), None, false).await.unwrap();
        let pod = requesting(spec("pod"), |it| it.network = "blue".into());
        world.attach(pod).await.unwrap();
        assert_eq!(lost(&world), [""; 0]);
        if deleted.is_empty() {
            networks.apply(blue(changed), None, false).await.unwrap();
        } else {
            networks.delete("blue".into(), true).await.unwrap();
        }
        let warnings = lost(&world);
        assert!(warnings.len() == 1 && warnings[0].contains("network blue"), "{warnings:?}");
        world.detach("pod").await;
        assert_eq!(lost(&world), [""; 0]);
    }
}

fn faults(world: &World) -> Vec<(ConditionReason, String)> {
    let faults = world.engine.operators().attachment_faults().into_iter();
    faults.map(|fault| (fault.reason, fault.object)).collect()
}

#[tokio::test]
async fn releases_that_do_not_end_are_a_fault() {
    let world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.operators().release(view.record.id, false, "a test".into()).await.unwrap();
    assert_eq!(faults(&world), [], "it may end soon");
    pause();
    advance(Duration::from_secs(30)).await;
    resume();
    assert_eq!(faults(&world), [(ConditionReason::ReleaseStuck, "host/node-1".into())]);
    world.detach("pod").await;
    assert_eq!(faults(&world), []);
}

#[tokio::test]
async fn release_that_outlasts_a_restart_has_its_time() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.operators().release(view.record.id, false, "a test".into()).await.unwrap();
    world.restart().await;
    assert_eq!(faults(&world), [], "it may end soon");
    pause();
    advance(Duration::from_secs(30)).await;
    resume();
    assert_eq!(faults(&world), [(ConditionReason::ReleaseStuck, "host/node-1".into())]);
}

#[tokio::test]
async fn pods_that_no_record_names_are_a_fault() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.engine.operators().release(view.record.id, true, "lost".into()).await.unwrap();
    let in_use = hello(&world.kernel, &world.boot_id, &[view.record.vf]);
    world.connect(Hello { live: vec![live(&view, true)], ..in_use }).await;
    assert_eq!(faults(&world), [(ConditionReason::AttachmentUnrecorded, "host/node-1".into())]);
    world.hello(&[]).await;
    assert_eq!(faults(&world), []);
}

#[tokio::test]
async fn refused_adds_are_events_of_the_refusing_object() {
    let world = strict(1).await;
    world.attached("a").await;
    assert_eq!(world.refused(spec("b")).await, Reason::VfsExhausted);
    let on_none = requesting(spec("c"), |it| it.network = "none".into());
    assert_eq!(world.refused(on_none).await, Reason::NetworkUnknown);
    let events = world.engine.events().about("pool/default");
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::AttachRefused], "an unknown network is the caller's mistake");
}

#[tokio::test]
async fn failed_adds_are_one_warning_with_their_number() {
    let world = World::new().await;
    let mut feed = world.engine.events().watch();
    fails(&world, "a").await;
    fails(&world, "b").await;
    let message = std::iter::from_fn(|| feed.try_recv().ok());
    let warnings = message.filter(|event| event.kind.severity() == Severity::Warning);
    let warnings: Vec<_> =
        warnings.map(|event| (event.kind, event.reason.clone(), event.count)).collect();
    let warning = |count| {
        let reason = Reason::ProgrammingFailed.as_str().to_owned();
        (EventKind::AttachRefused, Some(reason), count)
    };
    assert_eq!(warnings, [warning(1), warning(2)]);
}
