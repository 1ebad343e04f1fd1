//! History: events, ended attachments, and the audit.

use std::sync::Arc;

use dpu_service::{
    attachments::{Depth, SubnetChange},
    audit::{AuditAction, AuditEntry, AuditFilter},
    author::{Author, Cause},
    events::{Event, EventFilter, EventKind, Severity},
};
use model::{AttachmentState, Network};
use offload_proto::{FindingCode, Reason, v1::PodFindings};
use vf_alloc::FunctionId;

use crate::{
    other_host::{OtherHost, for_both, other},
    world::{VFS, World, host, network, settings, spec},
};

fn alice() -> Cause {
    Cause::new(Author::Operator("alice".into()), "ticket 7")
}

fn audit(world: &World) -> Vec<Arc<AuditEntry>> {
    world.engine.audit(&AuditFilter::default())
}

fn latest(world: &World) -> Arc<AuditEntry> {
    audit(world).pop().unwrap()
}

fn green() -> Network {
    network("name = 'green'\nmtu = 1400\n[[subnets]]\ncidr = '10.7.0.0/24'\n")
}

async fn apply(world: &World, network: Network) -> Result<(), Reason> {
    let cause = alice();
    let applied = world.engine.networks().by(&cause).apply(network, None, false).await;
    applied.map(drop).map_err(|failure| failure.reason)
}

fn events_about(world: &World, subject: &str) -> Vec<Event> {
    world.engine.events().about(subject)
}

#[tokio::test]
async fn failed_attach_is_a_warning_with_its_reason() {
    let world = World::new().await;
    world.kernel.refuse("join", 1);
    assert_eq!(world.refused(spec("pod")).await, Reason::ProgrammingFailed);
    let filter = EventFilter { severity: Some(Severity::Warning), ..EventFilter::default() };
    let (warnings, _) = world.engine.events().list(&filter);
    let refused = warnings.iter().find(|event| event.kind == EventKind::AttachRefused).unwrap();
    let reason = Some("PROGRAMMING_FAILED");
    assert_eq!((refused.reason.as_deref(), &*refused.subject), (reason, "pool/default"));
    let ends = EventFilter { kind: Some(EventKind::AttachmentFailed), ..EventFilter::default() };
    let (ends, _) = world.engine.events().list(&ends);
    assert_eq!(ends[0].reason.as_deref(), reason);
    assert_eq!(&*ends[0].ended.as_ref().unwrap().key.container_id, "pod");
}

#[tokio::test]
async fn network_changes_are_audited_with_author_and_reason() {
    let world = World::new().await;
    apply(&world, green()).await.unwrap();
    let created = latest(&world);
    assert_eq!(
        (created.action, created.object.as_str()),
        (AuditAction::ApplyNetwork, "network/green")
    );
    assert_eq!(created.cause, alice());
    assert!(created.before.is_empty() && created.after.contains("1400"), "{created:?}");

    apply(&world, Network { mtu: 1300, ..green() }).await.unwrap();
    let changed = latest(&world);
    assert!(changed.before.contains("1400") && changed.after.contains("1300"), "{changed:?}");
    apply(&world, Network { mtu: 1300, ..green() }).await.unwrap();
    assert_eq!(latest(&world).id, changed.id, "nothing was changed");

    let cause = alice();
    let networks = world.engine.networks().by(&cause);
    let remove = SubnetChange { add: Vec::new(), remove: vec!["10.7.0.0/24".parse().unwrap()] };
    networks.change_subnets("green".into(), remove).await.unwrap();
    assert_eq!(latest(&world).action, AuditAction::ChangeSubnets);
    networks.rename("green".into(), "mint".into()).await.unwrap();
    assert_eq!(latest(&world).after, r#"{"name":"mint"}"#);
    networks.delete("mint".into(), false).await.unwrap();
    let deleted = latest(&world);
    assert_eq!(
        (deleted.action, deleted.object.as_str()),
        (AuditAction::DeleteNetwork, "network/mint")
    );
    assert!(deleted.before.contains("1300") && deleted.after.is_empty(), "{deleted:?}");
    assert_eq!(audit(&world).len(), 5);
}

#[tokio::test]
async fn deleted_network_that_was_suspended_is_audited_whole() {
    let mut world = World::new().await;
    apply(&world, green()).await.unwrap();
    world.configuration.networks.push(Network { mtu: 1200, ..green() });
    world.restart().await;
    assert!(!world.warnings().is_empty(), "the API's network is suspended");
    let cause = alice();
    world.engine.networks().by(&cause).delete("green".into(), false).await.unwrap();
    let deleted = latest(&world);
    assert_eq!((deleted.action, deleted.cause.clone()), (AuditAction::DeleteNetwork, cause));
    assert!(deleted.before.contains("1400") && deleted.after.is_empty(), "{deleted:?}");
}

#[tokio::test]
async fn events_of_changes_name_the_operator() {
    let world = World::new().await;
    apply(&world, green()).await.unwrap();
    let [event] = &events_about(&world, "green")[..] else { panic!("one event") };
    assert_eq!(event.author, alice().author);
}

#[tokio::test]
async fn large_changes_are_audited_by_digests() {
    let world = World::new().await;
    apply(&world, green()).await.unwrap();
    let exclude: Vec<_> = (1..200).map(|last| format!("'10.7.0.{last}/32'")).collect();
    let subnet = |third: u8| {
        let exclude = exclude.join(", ").replace("10.7.0.", &format!("10.7.{third}."));
        format!("[[subnets]]\ncidr = '10.7.{third}.0/24'\nexclude = [{exclude}]\n")
    };
    let subnets: String = (0..8).map(subnet).collect();
    apply(&world, network(&format!("name = 'green'\nmtu = 1300\n{subnets}"))).await.unwrap();
    let large = latest(&world);
    assert!(large.before.len() + large.after.len() < 16 * 1024, "{}", large.after.len());
    assert!(large.after.contains("1300") && large.after.contains("sha256"), "{}", large.after);
}

async fn note_configuration(world: &World, digest: &str) {
    let (engine, path) = (Arc::clone(&world.engine), "/etc/dpu.toml".into());
    engine.note_configuration(path, digest.into()).await;
}

#[tokio::test]
async fn configuration_of_a_start_is_audited_once() {
    let mut world = World::new().await;
    note_configuration(&world, "one").await;
    world.restart().await;
    note_configuration(&world, "one").await;
    assert_eq!(audit(&world).len(), 1);
    assert!(latest(&world).before.is_empty());
    note_configuration(&world, "two").await;
    let entry = latest(&world);
    assert_eq!(entry.action, AuditAction::LoadConfiguration);
    assert_eq!([&*entry.before, &entry.after], [r#"{"digest":"one"}"#, r#"{"digest":"two"}"#]);
    let events = events_about(&world, "/etc/dpu.toml");
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::ConfigurationLoaded, EventKind::ConfigurationReloaded]);
    assert!(events.iter().all(|event| event.author == entry.cause.author), "{events:?}");
}

#[tokio::test]
async fn audit_survives_a_power_cut_with_its_change() {
    let mut world = World::new().await;
    apply(&world, green()).await.unwrap();
    let before = audit(&world);
    assert_eq!(before.len(), 1);
    world.restart_after_power_cut(|| journal::faulty_disk::Fate::Lost).await;
    assert_eq!(audit(&world), before);
    assert!(world.engine.networks().list().iter().any(|view| view.network.name == "green"));
}

#[tokio::test]
async fn release_and_audit_survive_power_cuts_together() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    let cause = alice();
    let release = world.engine.operators().by(&cause);
    release.release(view.record.id, false, "maintenance".into()).await.unwrap();
    let before = audit(&world);
    assert_eq!(before.len(), 1);
    world.restart_after_power_cut(|| journal::faulty_disk::Fate::Lost).await;
    assert_eq!(audit(&world), before);
}

#[tokio::test]
async fn change_that_cannot_be_audited_does_not_happen() {
    let mut world = World::new().await;
    world.set_full(true);
    assert_eq!(apply(&world, green()).await, Err(Reason::JournalUnavailable));
    assert!(audit(&world).is_empty());
    world.set_full(false);
    world.restart().await;
    assert!(audit(&world).is_empty());
    assert!(world.engine.networks().list().iter().all(|view| view.network.name != "green"));
}

#[tokio::test]
async fn only_operators_releases_are_audited() {
    let world = World::new().await;
    world.attached("left").await;
    world.detach("left").await;
    assert!(audit(&world).is_empty());
    let view = world.attached("pod").await;
    let author = alice().author;
    let cause = alice();
    let release = world.engine.operators().by(&cause);
    release.release(view.record.id, false, "maintenance".into()).await.unwrap();
    let entry = latest(&world);
    assert_eq!(entry.object, format!("attachment/{}", view.record.id));
    assert_eq!(entry.cause, Cause::new(author, "maintenance"));
    assert!(entry.before.contains("\"container_id\":\"pod\""), "{}", entry.before);
    let about = events_about(&world, &view.record.id.to_string());
    let releasing = about.iter().find(|event| event.kind == EventKind::AttachmentReleasing);
    assert_eq!(releasing.unwrap().author, alice().author);
}

#[tokio::test]
async fn refused_release_leaves_the_pod_connected() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    let cause = alice();
    world.set_full(true);
    for forget in [false, true] {
        let release = world.engine.operators().by(&cause);
        let released = release.release(view.record.id, forget, "maintenance".into()).await;
        assert_eq!(released.unwrap_err().reason, Reason::JournalUnavailable);
        assert_eq!(world.state("pod"), Some(AttachmentState::Attached));
        world.check();
    }
    let about = events_about(&world, &view.record.id.to_string());
    assert!(about.iter().all(|event| event.kind != EventKind::AttachmentReleasing));

    world.set_full(false);
    world.restart().await;
    world.engine.reconcile(Depth::Thorough).await;
    assert!(audit(&world).is_empty());
    assert_eq!(world.state("pod"), Some(AttachmentState::Programmed), "the service started");
    let release = world.engine.operators().by(&cause);
    release.release(view.record.id, true, "maintenance".into()).await.unwrap();
    assert_eq!(world.state("pod"), None);
    assert_eq!(latest(&world).object, format!("attachment/{}", view.record.id));
    world.check();
}

#[tokio::test]
async fn quarantine_that_was_not_cleared_is_not_audited() {
    let world = World::new().await;
    let vf = FunctionId::local(0, 0);
    let cause = alice();
    let cleared = world.engine.operators().by(&cause).clear_quarantine(vf).await;
    assert_eq!(cleared.unwrap_err().reason, Reason::VfNotQuarantined);
    assert!(audit(&world).is_empty());
}

#[tokio::test]
async fn ended_attachment_stays_known_after_restart() {
    let mut world = World::new().await;
    let view = world.attached("pod").await;
    world.detach("pod").await;
    world.restart().await;
    let about = events_about(&world, &view.record.id.to_string());
    let ended = about.iter().find_map(|event| event.ended.clone()).unwrap();
    assert_eq!((ended.key, ended.vf), (view.record.key.clone(), view.record.vf));
    assert_eq!(ended.leases, view.record.leases);
    let releasing =
        about.iter().find(|event| event.kind == EventKind::AttachmentReleasing).unwrap();
    assert_eq!(releasing.author.to_string(), "host/node-1");
    assert_eq!(releasing.message, "the host detaches it");
}

#[tokio::test]
async fn hosts_speak_of_their_own_attachments_alone() {
    let world = World::with(for_both(), settings(), VFS).await;
    let second = OtherHost::connect(&world).await;
    let id = world.attached("pod").await.record.id.to_string();
    let hosts = || world.engine.hosts();
    let differs = || PodFindings {
        findings: vec![FindingCode::PodDiffers.of(&id, "lost")],
        ..Default::default()
    };
    hosts().reported(&other(), second.session.id, differs());
    hosts().repaired(&other(), second.session.id, &id, "a lie");
    let of_hosts = || {
        let about = events_about(&world, &id).into_iter();
        about.filter(|event| !event.author.is_service()).map(|event| event.kind).collect::<Vec<_>>()
    };
    assert_eq!(of_hosts(), []);
    assert_eq!(events_about(&world, "node-2").last().unwrap().kind, EventKind::Repaired);
    hosts().reported(&host(), world.session_id(), differs());
    hosts().repaired(&host(), world.session_id(), &id, "its route");
    assert_eq!(of_hosts(), [EventKind::PodDiffers, EventKind::Repaired]);
}

#[tokio::test]
async fn each_finding_of_a_pod_begins_and_ends() {
    let world = World::new().await;
    let id = world.attached("pod").await.record.id.to_string();
    let tell = |findings: Vec<FindingCode>| {
        let findings = findings.into_iter().map(|finding| finding.of(&id, "differs")).collect();
        let shown = PodFindings { findings, ..PodFindings::default() };
        world.engine.hosts().reported(&host(), world.session_id(), shown);
    };
    tell(vec![FindingCode::PodDiffers]);
    tell(vec![FindingCode::PodDiffers, FindingCode::KubeletVfUnused]);
    tell(vec![FindingCode::KubeletVfUnused]);
    tell(Vec::new());
    let about = events_about(&world, &id).into_iter();
    let of_host = about.filter(|it| !it.author.is_service());
    let kinds: Vec<_> = of_host.map(|it| (it.kind, it.reason.unwrap_or_default())).collect();
    let [lost, unused] =
        [FindingCode::PodDiffers, FindingCode::KubeletVfUnused].map(|it| it.as_str().to_owned());
    let expected = [
        (EventKind::PodDiffers, lost.clone()),
        (EventKind::KubeletVfUnused, unused.clone()),
        (EventKind::PodDiffersCleared, lost),
        (EventKind::KubeletVfUnusedCleared, unused),
    ];
    assert_eq!(kinds, expected);
}

#[tokio::test]
async fn hosts_reports_of_one_subject_fold() {
    let world = World::new().await;
    let id = world.attached("pod").await.record.id.to_string();
    for number in 0..100 {
        let what = format!("change {number}");
        world.engine.hosts().repaired(&host(), world.session_id(), &id, &what);
        let unknown_host = format!("stranger-{number}");
        world.engine.hosts().repaired(&host(), world.session_id(), &unknown_host, &what);
    }
    let (all, _) = world.engine.events().list(&EventFilter::default());
    let repaired: Vec<_> = all.iter().filter(|event| event.kind == EventKind::Repaired).collect();
    let counts: Vec<_> = repaired.iter().map(|event| event.count).collect();
    assert_eq!(counts, [100, 100]);
}

#[tokio::test]
async fn inventive_host_has_one_refused_configuration() {
    let world = World::new().await;
    let hosts = world.engine.hosts();
    for number in 0..100 {
        let configuration_problem = format!("line {number} is wrong");
        hosts.reported(&host(), world.session_id(), configuration_report(&configuration_problem));
    }
    let (all, _) = world.engine.events().list(&EventFilter::default());
    let refused = all.iter().filter(|event| event.kind == EventKind::ConfigurationRefused);
    assert_eq!(refused.map(|event| event.count).collect::<Vec<_>>(), [100]);
}

fn configuration_report(problem: &str) -> PodFindings {
    PodFindings { configuration_problem: problem.into(), ..PodFindings::default() }
}

fn kinds_of_configuration(world: &World) -> Vec<EventKind> {
    let (all, _) = world.engine.events().list(&EventFilter::default());
    let kinds = all.iter().map(|event| event.kind);
    let wanted = [EventKind::ConfigurationRefused, EventKind::ConfigurationReloaded];
    kinds.filter(|kind| wanted.contains(kind)).collect()
}

#[tokio::test]
async fn configuration_repaired_while_away_has_its_end() {
    let mut world = World::new().await;
    let report = |world: &World, problem| {
        let report = configuration_report(problem);
        world.engine.hosts().reported(&host(), world.session_id(), report);
    };
    report(&world, "");
    assert_eq!(kinds_of_configuration(&world), []);
    report(&world, "line 7 is wrong");
    world.hello(&[]).await;
    report(&world, "line 7 is wrong");
    assert_eq!(kinds_of_configuration(&world), [EventKind::ConfigurationRefused]);
    // The restarted service does not know the previous session.
    world.restart().await;
    world.hello(&[]).await;
    report(&world, "");
    let both = [EventKind::ConfigurationRefused, EventKind::ConfigurationReloaded];
    assert_eq!(kinds_of_configuration(&world), both);
    world.hello(&[]).await;
    report(&world, "");
    assert_eq!(kinds_of_configuration(&world), both);
}

#[tokio::test]
async fn finding_of_an_ended_pod_is_not_cured() {
    let world = World::new().await;
    let id = world.attached("pod").await.record.id.to_string();
    let report = |findings| PodFindings { findings, ..PodFindings::default() };
    let findings =
        [FindingCode::PodDiffers, FindingCode::KubeletVfUnused].map(|it| it.of(&id, "it differs"));
    world.engine.hosts().reported(&host(), world.session_id(), report(findings.into()));
    world.detach("pod").await;
    world.engine.hosts().reported(&host(), world.session_id(), report(Vec::new()));
    let about = events_about(&world, &id);
    let of_host = about.iter().filter(|event| event.reason.is_some()).map(|event| event.kind);
    let kinds: Vec<_> = of_host.collect();
    assert_eq!(kinds, [EventKind::PodDiffers, EventKind::KubeletVfUnused]);
}

#[tokio::test]
async fn refused_peers_of_one_host_are_one_event() {
    let mut world = World::new().await;
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    for number in 0..100 {
        let reason = format!("it expired {number} s ago");
        world.engine.hosts().refused(&host(), address, &reason);
    }
    world.hello(&[]).await;
    world.engine.hosts().refused(&host(), address, "the role is wrong");
    let about = events_about(&world, "node-1");
    let refused: Vec<_> = about.iter().filter(|it| it.kind == EventKind::HostRefused).collect();
    assert_eq!(refused.iter().map(|event| event.count).collect::<Vec<_>>(), [101]);
    assert!(refused[0].message.ends_with("the role is wrong"), "{}", refused[0].message);
}

#[tokio::test]
async fn invented_vfs_have_no_events_of_their_own() {
    let world = World::new().await;
    let repaired = |number| {
        let vf = FunctionId::local(0, number).to_string();
        world.engine.hosts().repaired(&host(), world.session_id(), &vf, "its MTU");
    };
    (VFS..VFS + 100).for_each(repaired);
    repaired(1);
    let filter = EventFilter { kind: Some(EventKind::Repaired), ..EventFilter::default() };
    let (all, _) = world.engine.events().list(&filter);
    let counts: Vec<_> = all.iter().map(|event| (event.subject.as_str(), event.count)).collect();
    assert_eq!(counts, [("node-1", 100), ("pf0vf1", 1)]);
}

#[tokio::test]
async fn replacing_an_open_session_is_reported() {
    let mut world = World::new().await;
    world.hello(&[]).await;
    let filter = EventFilter { kind: Some(EventKind::HostConnected), ..EventFilter::default() };
    let (all, _) = world.engine.events().list(&filter);
    let replaces = all.iter().map(|event| event.message.contains("in place of an open session"));
    assert_eq!(replaces.collect::<Vec<_>>(), [false, true]);
}
