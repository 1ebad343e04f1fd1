//! What a host is told of its pools, and the pools that somebody else hands out.

use dpu_service::{
    attachments::{Configuration, Depth, Detach, HostPool},
    host::{HostTime, VfCondition},
    model::{AttachSpec, HostName},
};
use offload_proto::Reason;
use vf_alloc::{FunctionId, PoolSpec};

use crate::world::{World, configuration, detach_of, host, inventory, pool, settings, spec};

/// All four VFs, of which the kubelet hands out the last two.
fn with_kubelets_pool() -> Configuration {
    let kubelets = PoolSpec { pinned_only: true, ..pool("kubelet", "p0#2-3") };
    Configuration { pools: vec![pool("default", "p0"), kubelets], ..configuration() }
}

async fn world() -> World {
    World::with(with_kubelets_pool(), settings(), 4).await
}

fn pools(world: &World) -> Vec<HostPool> {
    world.engine.hosts().pools(&host()).pools
}

/// The problems of a pool's VFs, in their order.
fn problems(world: &World, pool: &str) -> Vec<String> {
    let pools = pools(world);
    let pool = pools.into_iter().find(|found| found.name == pool).unwrap();
    pool.vfs.into_iter().map(|vf| vf.problem.unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_host_is_told_its_own_vfs_of_each_pool() {
    let world = world().await;
    let told = |pool: &HostPool| (pool.name.clone(), pool.pinned_only, pool.vfs.len());
    let pools: Vec<_> = pools(&world).iter().map(told).collect();
    assert_eq!(pools, [("default".to_owned(), false, 4), ("kubelet".to_owned(), true, 2)]);
    for other in ["node-2", "stranger"] {
        assert_eq!(world.engine.hosts().pools(&HostName(other.into())).pools, []);
    }
}

#[tokio::test]
async fn a_host_is_told_which_pool_a_network_draws_from() {
    let world = world().await;
    let told = world.engine.hosts().pools(&host());
    let default = told.default_network.unwrap();
    assert_eq!(told.of_networks[&default], "default");
}

/// Its host may have begun to move it into the attachment's pod.
#[tokio::test]
async fn a_vf_that_is_wished_for_is_given_or_none_is() {
    let world = world().await;
    let at = |pool: usize, vf: usize| pools(&world)[pool].vfs[vf].device.clone();
    let wishing = |device, container| AttachSpec { wished_device: Some(device), ..spec(container) };
    let second = world.attach(wishing(at(0, 1), "a")).await.unwrap();
    assert_eq!(second.record.device, at(0, 1));
    assert_eq!(world.refused(wishing(at(0, 1), "b")).await, Reason::VfNotFree);
    assert_eq!(world.refused(wishing(at(1, 0), "b")).await, Reason::VfNotFree, "the kubelet's");
    let again = world.attach(wishing(at(0, 0), "a")).await.unwrap();
    assert_eq!(again.record.device, at(0, 1), "a repeat means what it has");
    let avoiding = AttachSpec { avoided_devices: vec![at(0, 0)], ..spec("c") };
    assert_eq!(world.refused(avoiding).await, Reason::VfsExhausted);
    assert_eq!(world.attach(spec("d")).await.unwrap().record.device, at(0, 0));
    world.check();
}

/// The host had begun to move it, and the inventory of that moment is overtaken by the call that gives it back.
#[tokio::test]
async fn a_vf_that_was_moved_for_an_attach_that_failed_can_be_had_at_once() {
    let world = World::with(configuration(), settings(), 1).await;
    let device = pools(&world)[0].vfs[0].device.clone();
    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[0].condition = VfCondition::InUse;
    seen.as_of = HostTime(10);
    world.say_inventory(&seen).await;
    assert_eq!(world.refused(spec("other")).await, Reason::VfsExhausted);
    let (session, as_of) = (Some(world.session_id()), HostTime(20));
    let returned_device = Some(device.clone());
    let back = Detach { returned: false, returned_device, as_of, session, ..detach_of("failed") };
    world.engine.detach(back).await.unwrap();
    world.say_inventory(&seen).await;
    assert_eq!(world.attached("other").await.record.device, device);
    world.check();
}

#[tokio::test]
async fn a_vf_in_its_pod_is_well_and_one_that_can_not_be_had_is_not() {
    let world = world().await;
    world.attached("pod").await;
    assert_eq!(problems(&world, "default"), ["", "", "", ""]);

    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[2].condition = VfCondition::Missing;
    seen.pfs[0].vfs[3].condition = VfCondition::InUse;
    world.say_inventory(&seen).await;
    let told = ["the host can't find it", "the host's agent holds it"];
    assert_eq!(problems(&world, "kubelet"), told);
    world.say_inventory(&inventory(&world.kernel, &[])).await;
    assert_eq!(problems(&world, "kubelet"), ["", ""]);

    world.kernel.take_away(FunctionId::local(0, 2));
    world.engine.reconcile(Depth::Thorough).await;
    assert_eq!(problems(&world, "kubelet"), ["it has no representor on the DPU", ""]);
}

#[tokio::test]
async fn a_quarantined_vf_is_told_with_the_reason() {
    let world = World::with(configuration(), settings(), 1).await;
    for _ in 0..3 {
        world.kernel.refuse("join", 1);
        world.refused(spec("pod")).await;
    }
    let [problem] = &problems(&world, "default")[..] else { panic!("one VF") };
    assert!(problem.starts_with("quarantined: 3 attaches in a row failed"), "{problem}");
}

/// The two that are the default pool's alone are given out unasked, and no more.
#[tokio::test]
async fn vfs_that_somebody_else_hands_out_are_given_to_who_names_them() {
    let world = world().await;
    let handed_out = pools(&world)[1].vfs[0].device.clone();
    world.attached("a").await;
    world.attached("b").await;
    assert_eq!(world.refused(spec("c")).await, Reason::VfsExhausted);
    let named = AttachSpec { device: Some(handed_out.clone()), ..spec("c") };
    assert_eq!(world.attach(named).await.unwrap().record.device, handed_out);
    world.check();
}

#[tokio::test]
async fn a_network_of_a_pool_that_somebody_else_hands_out_refuses_who_names_none() {
    let handed_out = PoolSpec { pinned_only: true, ..pool("default", "p0") };
    let configuration = Configuration { pools: vec![handed_out], ..configuration() };
    let world = World::with(configuration, settings(), 1).await;
    assert_eq!(world.refused(spec("pod")).await, Reason::PoolPinnedOnly);
    assert_eq!(problems(&world, "default"), [""], "that is not the VF's fault");
    let device = pools(&world)[0].vfs[0].device.clone();
    world.attach(AttachSpec { device: Some(device), ..spec("pod") }).await.unwrap();
    world.check();
}
