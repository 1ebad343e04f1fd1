//! Several attachments of one pod in one call.

use std::sync::Arc;

use dpu_service::{
    attachments::{Depth, Detach},
    host::{Asked, HostTime},
};
use model::{AttachSpec, AttachmentKey, AttachmentState, AttachmentView, LeaseSpec};
use offload_proto::{Failure, Reason};

use crate::{
    fake_kernel::DOING,
    world::{
        World, configuration, detach_of, host, key, live, network, requesting, settings, spec,
    },
};

/// Interface `eth0` of a container, and further interfaces in the same group.
fn together(container: &str, led: &[&str]) -> Vec<AttachSpec> {
    let led = led.iter().map(|name| AttachSpec {
        key: AttachmentKey { interface_name: (*name).into(), ..key(container) },
        group_interface: Some("eth0".into()),
        ..spec(container)
    });
    [spec(container)].into_iter().chain(led).collect()
}

async fn attach(world: &World, specs: Vec<AttachSpec>) -> Result<Vec<AttachmentView>, Failure> {
    let asked = Asked { session: world.session_id(), as_of: HostTime::default() };
    world.engine.attach_all(specs, asked).await
}

fn names(views: &[AttachmentView]) -> Vec<Arc<str>> {
    views.iter().map(|view| Arc::clone(&view.record.key.interface_name)).collect()
}

#[tokio::test]
async fn group_is_attached_in_order_and_repeatable() {
    let mut world = World::new().await;
    let views = attach(&world, together("pod", &["net1", "data"])).await.unwrap();
    assert_eq!(names(&views), ["eth0".into(), "net1".into(), "data".into()]);
    world.check();
    let again = attach(&world, together("pod", &["net1", "data"])).await.unwrap();
    let records = |views: &[AttachmentView]| {
        views.iter().map(|view| Arc::clone(&view.record)).collect::<Vec<_>>()
    };
    assert_eq!(records(&again), records(&views));
    world.restart().await;
    assert_eq!(world.list().len(), 3);
    assert_eq!(world.list().iter().filter(|view| view.record.group_interface.is_some()).count(), 2);
}

#[tokio::test]
async fn failed_member_undoes_the_group() {
    for method in DOING {
        let world = World::new().await;
        // A step of one of the three ports.
        world.kernel.refuse(method, 1);
        let limited = |spec: AttachSpec| {
            requesting(spec, |it| {
                (it.bandwidth.ingress_rate, it.bandwidth.egress_rate) = (1_000_000, 1_000_000);
            })
        };
        let specs = together("pod", &["net1", "net2"]).into_iter().map(limited).collect();
        let failure = attach(&world, specs).await.unwrap_err();
        assert_eq!(failure.reason, Reason::ProgrammingFailed, "{method}");
        world.check();
        assert!(world.list().is_empty(), "{method}");
    }
    let world = World::new().await;
    let mut specs = together("pod", &["net1"]);
    specs[1].interface.network = "purple".into();
    assert_eq!(attach(&world, specs).await.unwrap_err().reason, Reason::NetworkUnknown);
    world.check();
    let world = World::with(configuration(), settings(), 2).await;
    let failure = attach(&world, together("pod", &["net1", "net2"])).await.unwrap_err();
    assert_eq!(failure.reason, Reason::VfsExhausted);
    world.check();
    assert_eq!(attach(&world, together("pod", &["net1"])).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_journal_that_fails_leaves_nothing_of_any() {
    let world = World::new().await;
    world.set_full(true);
    let failure = attach(&world, together("pod", &["net1"])).await.unwrap_err();
    assert_eq!(failure.reason, Reason::JournalUnavailable);
    world.check();
    world.set_full(false);
    attach(&world, together("pod", &["net1"])).await.unwrap();
    world.check();
}

#[tokio::test]
async fn only_detach_without_an_id_ends_the_group() {
    let world = World::new().await;
    let views = attach(&world, together("pod", &["net1"])).await.unwrap();
    let fenced = Detach { id: Some(views[0].record.id), ..detach_of("pod") };
    world.engine.detach(fenced).await.unwrap();
    assert_eq!(names(&world.list()), ["net1".into()]);
    world.detach("pod").await;
    // The host has not reported where the VF is.
    let states: Vec<_> = world.list().iter().map(|view| view.state).collect();
    assert_eq!(states, [AttachmentState::Releasing]);
    world.check();
}

#[tokio::test]
async fn collection_keeps_groups_with_a_valid_lead() {
    let world = World::new().await;
    attach(&world, together("pod", &["net1"])).await.unwrap();
    attach(&world, together("gone", &["net1"])).await.unwrap();
    for view in world.list() {
        world.engine.hosts().attached(&host(), world.session_id(), view.record.id);
    }
    let released = world.engine.collect(host(), None, vec![key("pod")]).await.unwrap();
    assert_eq!(released.len(), 2);
    assert!(released.iter().all(|view| &*view.record.key.container_id == "gone"));
    world.engine.reconcile(Depth::Thorough).await;
    world.check();
}

#[tokio::test]
async fn single_attachment_cannot_join_a_group() {
    let world = World::new().await;
    let alone = AttachmentKey { interface_name: "net1".into(), ..key("pod") };
    world.attach(AttachSpec { key: alone, ..spec("pod") }).await.unwrap();
    let failure = attach(&world, together("pod", &["net1"])).await.unwrap_err();
    assert_eq!(failure.reason, Reason::AttachmentDiffers);
    assert!(failure.message.contains("no group interface"), "{failure}");
    assert_eq!(names(&world.list()), ["net1".into()]);
    world.check();
}

/// An attach with an address of `green` for an interface of another plugin.
fn with_lease(container: &str, addresses: &[&str]) -> AttachSpec {
    let lease = LeaseSpec {
        interface_name: "net1".into(),
        network: "green".into(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    };
    AttachSpec { further_leases: vec![lease], ..spec(container) }
}

/// `green` has two addresses; one is left while `taken` is attached.
async fn with_two_addresses(more: &str) -> World {
    let mut configuration = configuration();
    let green = format!("name = 'green'\n{more}\n[[subnets]]\ncidr = '10.9.0.0/31'");
    configuration.networks.push(network(&green));
    World::with(configuration, settings(), 4).await
}

#[tokio::test]
async fn further_leases_follow_their_attachment() {
    let mut world = with_two_addresses("").await;
    let held = |view: &AttachmentView| {
        let lease = &view.record.further_leases[0];
        assert_eq!((&*lease.interface_name, lease.network.name.as_str()), ("net1", "green"));
        lease.leases.iter().map(|lease| lease.address.to_string()).collect::<Vec<_>>()
    };
    let first = world.attach(with_lease("first", &["10.9.0.1"])).await.unwrap();
    assert_eq!(held(&first), ["10.9.0.1/31"]);
    let again = world.attach(with_lease("first", &["10.9.0.1"])).await.unwrap();
    assert_eq!(again.record, first.record);
    for other in [spec("first"), with_lease("first", &["10.9.0.0"])] {
        assert_eq!(world.refused(other).await, Reason::AttachmentDiffers);
    }
    world.restart().await;
    world.hello(&[live(&first, true)]).await;
    assert_eq!(world.list()[0].record, first.record);
    assert_eq!(world.refused(with_lease("second", &["10.9.0.1"])).await, Reason::AddressInUse);
    let second = world.attach(with_lease("second", &[])).await.unwrap();
    assert_eq!(held(&second), ["10.9.0.0/31"]);
    let on_red = || world.list().len();
    assert_eq!(world.refused(with_lease("third", &[])).await, Reason::AddressesExhausted);
    assert_eq!(on_red(), 2, "nothing is left of what was refused");
    world.check();
    let used = world.engine.networks().list();
    assert_eq!(used.iter().find(|it| it.network.name == "green").unwrap().attachments, 2);

    world.engine.detach(detach_of("first")).await.unwrap();
    let third = world.attach(with_lease("third", &[])).await.unwrap();
    assert_eq!(held(&third), ["10.9.0.1/31"]);
    world.check();
}

#[tokio::test]
async fn further_leases_are_checked_like_attachments() {
    let world = with_two_addresses("namespaces = ['prod']").await;
    assert_eq!(world.refused(with_lease("pod", &[])).await, Reason::NetworkNotAllowed);
    assert_eq!(world.engine.operators().pools()[0].usage.in_use, 0);
    let mut of_prod = with_lease("pod", &["10.8.0.1"]);
    of_prod.pod.namespace = "prod".into();
    assert_eq!(world.refused(of_prod.clone()).await, Reason::AddressNotAllowed);
    of_prod.further_leases[0].network = "red".into();
    assert_eq!(world.refused(of_prod).await, Reason::InvalidRequest);
    world.check();
    assert!(world.list().is_empty());
}
