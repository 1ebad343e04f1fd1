//! VFs offered to a host, which takes one before it asks.

use dpu_service::{attachments::OfferedVf, host::VfCondition};
use model::AttachSpec;
use offload_proto::Reason;
use vf_alloc::{FunctionId, VfOffer};

use crate::world::{World, configuration, detach_of, host, inventory, requesting, settings, spec};

/// New offers of the host's session.
fn shown(world: &World) -> Vec<VfOffer> {
    let offered = world.engine.hosts().offer_vfs(&host(), world.session_id());
    offered.into_iter().map(|OfferedVf { offer, .. }| offer).collect()
}

fn naming(container: &str, offer: &VfOffer) -> AttachSpec {
    AttachSpec { offered: Some(offer.clone()), ..spec(container) }
}

fn declined_offers(world: &World, offer: &VfOffer) {
    world.engine.hosts().decline(&host(), std::slice::from_ref(offer));
}

#[tokio::test]
async fn offered_vf_is_given_to_its_offer() {
    let world = World::new().await;
    let offers = shown(&world);
    assert_eq!(offers.len(), 4);
    assert_eq!(world.refused(spec("other")).await, Reason::VfsOffered);
    let chosen = requesting(spec("other"), |it| it.device = Some(offers[0].device.clone()));
    assert_eq!(world.refused(chosen).await, Reason::VfsOffered);
    let made_up = VfOffer { number: 99, ..offers[2].clone() };
    assert_eq!(world.refused(naming("pod", &made_up)).await, Reason::VfNotFree);
    let view = world.attach(naming("pod", &offers[2])).await.unwrap();
    assert_eq!(view.record.device, offers[2].device);
    world.check();
    assert!(shown(&world).is_empty());
    world.detach("pod").await;
    let again = shown(&world);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].device, offers[2].device);
    assert_eq!(world.refused(naming("next", &offers[2])).await, Reason::VfNotFree);
    world.attach(naming("next", &again[0])).await.unwrap();
    world.check();
}

/// The host has lost its record. Had it moved the VF that it names, it would have two.
#[tokio::test]
async fn attached_pod_naming_another_vf_is_refused() {
    let world = World::new().await;
    let first = world.attach(spec("pod")).await.unwrap();
    let offers = shown(&world);
    assert_eq!(world.refused(naming("pod", &offers[0])).await, Reason::VfNotFree);
    assert_eq!(world.attach(spec("pod")).await.unwrap().record.id, first.record.id);
    declined_offers(&world, &offers[0]);
    let again = shown(&world);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].device, offers[0].device);
    world.check();
}

#[tokio::test]
async fn inventory_keeps_the_offer_of_taken_vfs() {
    let world = World::with(configuration(), settings(), 1).await;
    let [offer] = &shown(&world)[..] else { panic!("one VF") };
    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[0].condition = VfCondition::Held;
    world.send_inventory(&seen).await;
    world.attach(naming("pod", offer)).await.unwrap();
    world.check();
}

/// Used by the host itself, for example.
#[tokio::test]
async fn offered_vf_in_use_is_refused_until_clean() {
    let world = World::with(configuration(), settings(), 1).await;
    let [offer] = &shown(&world)[..] else { panic!("one VF") };
    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[0].condition = VfCondition::InUse;
    world.send_inventory(&seen).await;
    assert_eq!(world.refused(naming("pod", offer)).await, Reason::VfNotFree);
    assert_eq!(world.refused(spec("pod")).await, Reason::VfsExhausted);
    declined_offers(&world, offer);
    assert!(shown(&world).is_empty());
    world.send_inventory(&inventory(&world.kernel, &[])).await;
    let again = shown(&world);
    assert_eq!(again.len(), 1);
    world.attach(naming("pod", &again[0])).await.unwrap();
    world.check();
}

/// The VF may be in a pod until the host reports that it is not.
#[tokio::test]
async fn declined_vf_is_offered_again() {
    let world = World::with(configuration(), settings(), 1).await;
    let [offer] = &shown(&world)[..] else { panic!("one VF") };
    world.kernel.refuse("join", 1);
    assert_eq!(world.refused(naming("pod", offer)).await, Reason::ProgrammingFailed);
    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[0].condition = VfCondition::Held;
    world.send_inventory(&seen).await;
    assert!(shown(&world).is_empty());
    assert_eq!(world.refused(spec("next")).await, Reason::VfsOffered);
    declined_offers(&world, offer);
    let again = shown(&world);
    assert_eq!(again.len(), 1);
    world.attach(naming("next", &again[0])).await.unwrap();
    world.check();
}

#[tokio::test]
async fn offers_end_with_their_session() {
    let mut world = World::new().await;
    let (old, offers) = (world.session_id(), shown(&world));
    world.hello(&[]).await;
    assert!(world.engine.hosts().offer_vfs(&host(), old).is_empty());
    assert_eq!(world.refused(naming("pod", &offers[0])).await, Reason::VfNotFree);
    world.attach(spec("pod")).await.unwrap();
    assert_eq!(shown(&world).len(), 3);
    world.check();
}

/// Another pod would be in the previous pod's network.
#[tokio::test]
async fn unclean_vf_is_not_offered() {
    let world = World::with(configuration(), settings(), 1).await;
    let [offer] = &shown(&world)[..] else { panic!("one VF") };
    world.attach(naming("pod", offer)).await.unwrap();
    world.kernel.refuse("leave", 1);
    world.engine.detach(detach_of("pod")).await.unwrap();
    let vf = FunctionId::local(0, 0);
    let is_idle =
        world.kernel.ports().iter().all(|port| port.representor.vf != vf || port.is_idle());
    assert!(!is_idle, "nothing has failed");
    assert!(shown(&world).is_empty());
}
