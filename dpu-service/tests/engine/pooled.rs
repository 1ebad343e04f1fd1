//! A host's view of its pools, and pools from which the kubelet allocates.

use dpu_service::{
    attachments::{Configuration, Depth, HostPool},
    host::VfCondition,
};
use model::HostName;
use offload_proto::Reason;
use vf_alloc::{FunctionId, PoolSpec};

use crate::world::{World, configuration, host, inventory, pool, requesting, settings, spec};

/// All four VFs; the kubelet allocates the last two.
fn with_kubelets_pool() -> Configuration {
    let kubelets = PoolSpec { pinned_only: true, ..pool("kubelet", "p0#2-3") };
    Configuration { pools: vec![pool("default", "p0"), kubelets], ..configuration() }
}

async fn world() -> World {
    World::with(with_kubelets_pool(), settings(), 4).await
}

fn problems(world: &World, pool: &str) -> Vec<String> {
    let pools = world.engine.hosts().pools(&host());
    let pool = pools.into_iter().find(|found| found.name == pool).unwrap();
    pool.vfs.into_iter().map(|vf| vf.problem.unwrap_or_default()).collect()
}

#[tokio::test]
async fn host_receives_its_own_pools() {
    let world = world().await;
    let shown = |pool: &HostPool| (pool.name.clone(), pool.pinned_only, pool.vfs.len());
    let pools: Vec<_> = world.engine.hosts().pools(&host()).iter().map(shown).collect();
    assert_eq!(pools, [("default".to_owned(), false, 4), ("kubelet".to_owned(), true, 2)]);
    assert_eq!(world.engine.hosts().pools(&HostName("node-2".into())), []);
    assert_eq!(world.engine.hosts().pools(&HostName("stranger".into())), []);
}

#[tokio::test]
async fn only_unavailable_vfs_have_a_problem() {
    let world = world().await;
    world.attached("pod").await;
    assert_eq!(problems(&world, "default"), ["", "", "", ""]);

    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[2].condition = VfCondition::Missing;
    seen.pfs[0].vfs[3].condition = VfCondition::InUse;
    world.send_inventory(&seen).await;
    let shown = problems(&world, "kubelet");
    let [missing, in_use] = &shown[..] else { panic!("{shown:?}") };
    assert!(missing.contains("find") && in_use.contains("holds"), "{shown:?}");
    world.send_inventory(&inventory(&world.kernel, &[])).await;
    assert_eq!(problems(&world, "kubelet"), ["", ""]);

    world.kernel.take_away(FunctionId::local(0, 2));
    world.engine.reconcile(Depth::Thorough).await;
    let shown = problems(&world, "kubelet");
    assert!(
        shown.len() == 2 && shown[0].contains("representor") && shown[1].is_empty(),
        "{shown:?}"
    );
}

#[tokio::test]
async fn vf_of_another_program_is_reported_as_that() {
    let world = world().await;
    let mut seen = inventory(&world.kernel, &[]);
    seen.pfs[0].vfs[3].condition =
        VfCondition::UsedByHost("it has the address 192.0.2.1/24".into());
    world.send_inventory(&seen).await;
    let shown = problems(&world, "kubelet");
    assert_eq!(shown[1], "another program on the host uses it: it has the address 192.0.2.1/24");
    let device = world.engine.hosts().pools(&host())[1].vfs[1].device.clone();
    let named = requesting(spec("c"), |it| it.device = Some(device));
    let refused = world.attach(named).await.unwrap_err();
    assert_eq!(refused.reason, Reason::VfNotFree);
    assert!(refused.message.contains("another program"), "{refused}");
}

#[tokio::test]
async fn quarantined_vf_is_shown_with_its_reason() {
    let world = World::with(configuration(), settings(), 1).await;
    for _ in 0..3 {
        world.kernel.refuse("join", 1);
        world.refused(spec("pod")).await;
    }
    let [problem] = &problems(&world, "default")[..] else { panic!("one VF") };
    assert!(problem.starts_with("quarantined: 3 attaches"), "{problem}");
}

/// Only the two VFs that are in no pool of the kubelet are given without a name.
#[tokio::test]
async fn pinned_only_vfs_are_given_by_name() {
    let world = world().await;
    let handed_out = world.engine.hosts().pools(&host())[1].vfs[0].device.clone();
    world.attached("a").await;
    world.attached("b").await;
    assert_eq!(world.refused(spec("c")).await, Reason::VfsExhausted);
    let named = requesting(spec("c"), |it| it.device = Some(handed_out.clone()));
    assert_eq!(world.attach(named).await.unwrap().record.device, handed_out);
    world.check();
}

#[tokio::test]
async fn pinned_only_pool_refuses_unnamed_requests() {
    let handed_out = PoolSpec { pinned_only: true, ..pool("default", "p0") };
    let configuration = Configuration { pools: vec![handed_out], ..configuration() };
    let world = World::with(configuration, settings(), 1).await;
    let refused = world.attach(spec("pod")).await.unwrap_err();
    assert_eq!(refused.reason, Reason::PoolPinnedOnly);
    assert!(refused.message.contains("dpu-offload.io/default"), "{refused}");
    assert_eq!(problems(&world, "default"), [""], "that is not the VF's fault");
    let device = world.engine.hosts().pools(&host())[0].vfs[0].device.clone();
    world.attach(requesting(spec("pod"), |it| it.device = Some(device))).await.unwrap();
    world.check();
}
