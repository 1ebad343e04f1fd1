//! NUMA nodes, preferred VFs, and VFs that are handed over to programs.

use netlink::{Link, Rtnl};
use vf_alloc::Device;

use super::{
    pods::{GOLD, Pods, pod, serve},
    *,
};
use crate::agent::vfs::{record, tests::keep};
use crate::vf_source::{PciCards, PciSettings, PfFacts, ResetError, VfIdentity, VfPlacement};

/// A source with one PF per VF. VFs with odd numbers are next to a NUMA node.
#[derive(Debug)]
struct Placed;

impl VfSource for Placed {
    fn vf_of(&self, _link: &Link) -> Option<VfIdentity> {
        None
    }

    fn pf_of(&self, _vf: &VfIdentity) -> PfFacts {
        PfFacts::default()
    }

    fn reset_vf(&self, _: &Device, _: &Link, _: &mut Rtnl) -> Result<(), ResetError> {
        Ok(())
    }

    fn placement(&self, device: &Device) -> VfPlacement {
        let is_odd = device.as_str().ends_with(['1', '3', '5', '7', '9']);
        let numa_node = is_odd.then_some(1);
        VfPlacement { pf: device.clone(), numa_node }
    }
}

#[tokio::test]
async fn kubelet_gets_the_numa_node() {
    let stage = Stage::of(Placed).with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let mut client = stage.dial(&kubelet.registered().await).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let list = within(LIMIT, lists.message()).await.expect("no list").unwrap().unwrap();
    let nodes: Vec<_> = list
        .devices
        .iter()
        .map(|device| device.topology.as_ref().map(|topology| topology.nodes[0].id))
        .collect();
    assert_eq!(nodes, [Some(1), None], "one that is next to none is left out");
}

#[tokio::test]
async fn kubelet_gets_the_preferred_vf() {
    let stage = Stage::of(Placed).with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    assert!(registered.options.unwrap().get_preferred_allocation_available);
    let mut client = stage.dial(&registered).await;
    let vfs = |numbers: &[u8]| numbers.iter().map(|it| format!("d000:00:00.{it}")).collect();
    let asked = |available: &[u8], must_include: &[u8], allocation_size| {
        ContainerPreferredAllocationRequest {
            available_device_i_ds: vfs(available),
            must_include_device_i_ds: vfs(must_include),
            allocation_size,
        }
    };
    let container_requests = vec![
        asked(&[2, 1, 3], &[], 1),
        asked(&[1, 3, 5, 2, 4], &[], 2),
        asked(&[1, 3, 5, 2, 4], &[4], 2),
    ];
    let request = PreferredAllocationRequest { container_requests };
    let answer = client.get_preferred_allocation(request).await.unwrap().into_inner();
    let preferred = answer.container_responses.into_iter().map(|one| one.device_i_ds);
    // VFs of the node with the most VFs, or else of the node of the VF that the container must get.
    let expected: [Vec<String>; 3] = [vfs(&[1]), vfs(&[1, 3]), vfs(&[4, 2])];
    assert_eq!(preferred.collect::<Vec<_>>(), expected);
}

/// A fake /sys with two VFs of one PF that are handed over to programs.
pub(super) fn handed_over() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let device = |address: &str| root.path().join("bus/pci/devices").join(address);
    for address in ["d000:00:00.0", "d000:00:00.1", "d000:00:00.2"] {
        std::fs::create_dir_all(device(address)).unwrap();
        std::fs::write(device(address).join("vendor"), "0x15b3\n").unwrap();
        std::fs::write(device(address).join("device"), "0x101e\n").unwrap();
    }
    for vf in ["d000:00:00.1", "d000:00:00.2"] {
        let driver = "../../../../bus/pci/drivers/vfio-pci";
        std::os::unix::fs::symlink(driver, device(vf).join("driver")).unwrap();
    }
    root
}

pub(super) fn cards(root: &TempDir) -> PciCards {
    let settings = PciSettings { sysfs: root.path().to_owned(), ..PciSettings::default() };
    PciCards::open(settings).unwrap()
}

/// Puts VFs into an IOMMU group.
pub(super) fn group(root: &TempDir, number: u32, vfs: &[&str]) {
    let group = root.path().join(format!("kernel/iommu_groups/{number}"));
    for vf in vfs {
        let device = root.path().join("bus/pci/devices").join(vf);
        std::fs::create_dir_all(group.join("devices").join(vf)).unwrap();
        let link = device.join("iommu_group");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&group, link).unwrap();
    }
}

/// The device nodes that a container gets with these VFs, or why it gets none.
async fn nodes(
    stage: &Stage,
    registered: &RegisterRequest,
    vfs: &[&str],
) -> Result<Vec<String>, String> {
    let devices_i_ds = vfs.iter().map(ToString::to_string).collect();
    let request =
        AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_i_ds }] };
    let answer = stage.dial(registered).await.allocate(request).await;
    let answer = answer.map_err(|refusal| refusal.message().to_owned())?.into_inner();
    let specs = &answer.container_responses[0].devices;
    assert!(specs.iter().all(|spec| spec.container_path == spec.host_path));
    assert!(specs.iter().all(|spec| spec.permissions == "rw"));
    Ok(specs.iter().map(|spec| spec.host_path.clone()).collect())
}

#[tokio::test]
async fn container_gets_only_its_own_groups() {
    let root = handed_over();
    let stage = Stage::of(cards(&root)).with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    let one = &["d000:00:00.1"][..];
    let error = nodes(&stage, &registered, one).await.unwrap_err();
    assert!(error.contains("VF d000:00:00.1 ") && error.contains("IOMMU"), "{error}");
    group(&root, 7, &["d000:00:00.1", "d000:00:00.2"]);
    let error = nodes(&stage, &registered, one).await.unwrap_err();
    assert!(error.contains("IOMMU group 7 with d000:00:00.2,"), "{error}");
    let both = nodes(&stage, &registered, &["d000:00:00.1", "d000:00:00.2"]).await;
    assert_eq!(both.unwrap(), ["/dev/vfio/7", "/dev/vfio/vfio"]);
    group(&root, 8, one);
    let own = nodes(&stage, &registered, one).await;
    assert_eq!(own.unwrap(), ["/dev/vfio/8", "/dev/vfio/vfio"]);
}

#[tokio::test]
async fn vf_with_unreadable_driver_is_refused() {
    let root = handed_over();
    group(&root, 8, &["d000:00:00.1"]);
    let driver = root.path().join("bus/pci/devices/d000:00:00.1/driver");
    std::fs::remove_file(&driver).unwrap();
    std::fs::write(&driver, "no link").unwrap();
    let stage = Stage::of(cards(&root)).with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    let error = nodes(&stage, &registered, &["d000:00:00.1"]).await.unwrap_err();
    assert!(error.contains("VF d000:00:00.1: ") && error.contains("driver"), "{error}");
}

const VFS: [&str; 2] = ["d000:00:00.1", "d000:00:00.2"];

fn health(first: &str, second: &str) -> Option<Vec<(String, String)>> {
    listed(&[(VFS[0], first), (VFS[1], second)])
}

#[tokio::test(start_paused = true)]
async fn iommu_group_belongs_to_one_pod() {
    let root = handed_over();
    group(&root, 7, &VFS);
    let stage = Stage::of(cards(&root)).with_folder();
    stage.device_plugin.learn(VfPools { pools: vec![pool("gold", &VFS.map(|vf| (vf, "")))] });
    let no_pods = serve(&stage, Pods::default());
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    let mut client = stage.dial(&registered).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let mut waits_for = async |expected| while next(&mut lists).await != expected {};
    waits_for(health("Healthy", "Healthy")).await;
    let given = nodes(&stage, &registered, &VFS[..1]).await;
    assert_eq!(given.unwrap(), ["/dev/vfio/7", "/dev/vfio/vfio"]);
    let refused = nodes(&stage, &registered, &VFS[1..]).await.unwrap_err();
    assert!(refused.contains("IOMMU group 7 with VF d000:00:00.1,"), "{refused}");
    waits_for(health("Healthy", "Unhealthy")).await;
    // The pod has ended: the kubelet does not list it.
    waits_for(health("Healthy", "Healthy")).await;
    drop(no_pods);
    // An agent that has just started.
    let server = serve(&stage, Pods::of(pod("cart-0", GOLD, &VFS[1..])));
    waits_for(health("Unhealthy", "Healthy")).await;
    drop(server);
    let _nobody = serve(&stage, Pods::default());
    waits_for(health("Healthy", "Healthy")).await;
    // An attachment with a named VF, of a pod that is not the kubelet's.
    let mut attached = record("a", "c");
    attached.attachment.vf.as_mut().unwrap().device = VFS[0].into();
    keep(stage.device_plugin.vfs.records(), attached);
    waits_for(health("Healthy", "Unhealthy")).await;
    // One pod with both VFs, of which one is attached.
    let both = nodes(&stage, &registered, &VFS).await;
    assert_eq!(both.unwrap(), ["/dev/vfio/7", "/dev/vfio/vfio"]);
    waits_for(health("Healthy", "Healthy")).await;
}

#[tokio::test(start_paused = true)]
async fn vf_that_allocate_refuses_is_unhealthy() {
    let root = handed_over();
    let stage = Stage::of(cards(&root)).with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let mut client = stage.dial(&kubelet.registered().await).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let mut waits_for = async |expected| while next(&mut lists).await != expected {};
    let learn = |second: &str| {
        let gold = pool("gold", &[(VFS[0], ""), (VFS[1], second)]);
        stage.device_plugin.learn(VfPools { pools: vec![gold] });
    };
    // Without an IOMMU group.
    waits_for(health("Unhealthy", "Unhealthy")).await;
    group(&root, 7, &VFS);
    learn("");
    waits_for(health("Healthy", "Healthy")).await;
    // With half of a group.
    learn("quarantined");
    waits_for(health("Unhealthy", "Unhealthy")).await;
    // The DPU does not report this.
    group(&root, 8, &VFS[..1]);
    std::fs::remove_dir(root.path().join("kernel/iommu_groups/7/devices").join(VFS[0])).unwrap();
    waits_for(health("Healthy", "Unhealthy")).await;
}
