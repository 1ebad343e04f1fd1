//! What the kubelet reports about pods.

use nix::{sys::stat::Mode, unistd::mkfifo};
use offload_proto::{
    FindingCode,
    kubelet::podresources::{
        ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse,
        ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    },
};

use super::{
    devices::{cards, group, handed_over},
    *,
};
use crate::agent::vfs::{record, tests::keep};

/// The kubelet's PodResources socket.
#[derive(Default)]
pub(super) struct Pods {
    /// Whether it has `Get`, which older kubelets lack.
    has_get: bool,
    hangs: bool,
    pods: Vec<PodResources>,
}

impl Pods {
    /// A kubelet with only this pod.
    pub(super) fn of(pod: PodResources) -> Self {
        Self { pods: vec![pod], ..Self::default() }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        assert!(!self.has_get, "it would have been asked for the one");
        if self.hangs {
            pending::<()>().await;
        }
        Ok(Response::new(ListPodResourcesResponse { pod_resources: self.pods.clone() }))
    }

    async fn get(
        &self,
        _request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        if !self.has_get {
            return Err(Status::unimplemented("unknown method Get"));
        }
        Ok(Response::new(GetPodResourcesResponse { pod_resources: self.pods.first().cloned() }))
    }
}

pub(super) fn pod(name: &str, resource: &str, devices: &[&str]) -> PodResources {
    let device_ids = devices.iter().map(ToString::to_string).collect();
    let devices = vec![ContainerDevices { resource_name: resource.into(), device_ids }];
    let container = ContainerResources { name: "web".into(), devices };
    PodResources { name: name.into(), namespace: "shop".into(), containers: vec![container] }
}

pub(super) fn serve(stage: &Stage, pods: Pods) -> AbortOnDropHandle<()> {
    let path = stage.folder.path().join("pods.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    let server = Server::builder()
        .add_service(PodResourcesListerServer::new(pods))
        .serve_with_incoming(UnixListenerStream::new(listener));
    AbortOnDropHandle::new(tokio::spawn(async move { server.await.unwrap() }))
}

pub(super) const GOLD: &str = "dpu-offload.io/gold";

#[tokio::test]
async fn pod_gets_the_vf_that_kubelet_chose() {
    let stage = Stage::new();
    let cart = pod("cart-0", GOLD, &["D000:00:00.1"]);
    let chosen = Some("d000:00:00.1".to_owned());
    let one = Pods { has_get: true, pods: vec![cart.clone()], ..Pods::default() };
    let server = serve(&stage, one);
    assert_eq!(stage.chosen().await, Ok(chosen.clone()));
    drop(server);
    let other = pod("cart-1", GOLD, &["d000:00:00.2"]);
    let _server = serve(&stage, Pods { pods: vec![other, cart], ..Pods::default() });
    assert_eq!(stage.chosen().await, Ok(chosen));
}

#[tokio::test]
async fn chosen_vf_is_of_the_refused_pool() {
    let stage = Stage::new();
    let silver = pool("silver", &[("d000:00:00.4", "")]);
    stage
        .device_plugin
        .learn(VfPools { pools: vec![silver, pool("gold", &[("d000:00:00.1", "")])] });
    let mut cart = pod("cart-0", GOLD, &["d000:00:00.1"]);
    cart.containers.extend(pod("", "dpu-offload.io/silver", &["d000:00:00.4"]).containers);
    let _server = serve(&stage, Pods { pods: vec![cart], ..Pods::default() });
    assert_eq!(stage.chosen().await, Ok(Some("d000:00:00.1".to_owned())));
}

#[tokio::test]
async fn pod_without_our_resource_gets_no_vf() {
    let stage = Stage::new();
    let cart = pod("cart-0", "example.com/card", &["card-1"]);
    let server = serve(&stage, Pods { pods: vec![cart], ..Pods::default() });
    assert_eq!(stage.chosen().await, Ok(None));
    drop(server);
    let _server = serve(&stage, Pods::default());
    assert_eq!(stage.chosen().await, Ok(None));
}

/// The kubelet's socket lists no ordinary init containers; its checkpoint does.
#[tokio::test]
async fn refusal_names_the_unreported_container() {
    let stage = Stage::new().with_folder();
    let silver = pool("silver", &[("d000:00:00.4", "")]);
    stage
        .device_plugin
        .learn(VfPools { pools: vec![silver, pool("gold", &[("d000:00:00.1", "")])] });
    let asked = AddRequest { pod: Pod { uid: "u1".into(), ..request().pod }, ..request() };
    let completed = async |pool: &str| {
        let deadline = Instant::now() + LIMIT;
        stage.device_plugin.with_unreported_container(refusal_of(pool), &asked, deadline).await
    };
    assert_eq!(completed("gold").await, refusal_of("gold"), "there is no checkpoint");
    let checkpoint = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"u1","ContainerName":"other","ResourceName":"dpu-offload.io/silver"},
        {"PodUID":"u1","ContainerName":"setup","ResourceName":"dpu-offload.io/gold"}
    ]},"Checksum":1}"#;
    std::fs::write(stage.plugins().join("kubelet_internal_checkpoint"), checkpoint).unwrap();
    let failure = completed("gold").await;
    assert_eq!(failure.reason, Reason::PoolPinnedOnly);
    let named =
        "VF pool \"gold\"; container setup of pod shop/cart-0 requests dpu-offload.io/gold,";
    assert!(failure.message.starts_with(named), "{failure}");
    assert!(completed("bronze").await.message.contains("container other "), "no pool is known");
}

#[tokio::test]
async fn slow_checkpoint_does_not_delay_refusals() {
    let stage = Stage::new().with_folder();
    let path = stage.plugins().join("kubelet_internal_checkpoint");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let refusal = || Failure::new(Reason::PoolPinnedOnly, "the pool is given by name");
    let deadline = Instant::now() + Duration::from_millis(100);
    let asked = request();
    let completed = stage.device_plugin.with_unreported_container(refusal(), &asked, deadline);
    assert_eq!(within(LIMIT, completed).await, Some(refusal()));
    // Unblocks the read.
    drop(std::fs::OpenOptions::new().write(true).open(&path).unwrap());
}

#[tokio::test]
async fn vfs_of_all_pods_are_listed() {
    let stage = Stage::new();
    let cart = pod("cart-0", GOLD, &["d000:00:00.1"]);
    let other = pod("other", "example.com/card", &["card-1"]);
    let _server = serve(&stage, Pods { pods: vec![cart, other], ..Pods::default() });
    let settings = settings(stage.folder.path());
    let listed = pod_resources::all_devices(&settings).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|(pod, vfs)| (pod.name.as_str(), vfs.len())).collect();
    assert_eq!(listed, [("cart-0", 1)]);
}

#[tokio::test]
async fn unused_vf_of_a_removed_pool_stays_reported() {
    let stage = Stage::new();
    let (settings, records) = (settings(stage.folder.path()), stage.device_plugin.vfs.records());
    let mut record = record("a", "c");
    record.attachment.pod = Some(request().pod);
    keep(records, record);
    let cart = pod("cart-0", GOLD, &["d000:00:00.1"]);
    let _server = serve(&stage, Pods { pods: vec![cart], ..Pods::default() });
    let found = stage.device_plugin.unused(&settings, records).await.unwrap();
    assert_eq!(found["a"].code, FindingCode::KubeletVfUnused.as_str());
    stage.device_plugin.learn(VfPools::default());
    assert_eq!(stage.device_plugin.unused(&settings, records).await.unwrap(), found);
}

#[tokio::test(start_paused = true)]
async fn failing_kubelet_is_reported_in_time() {
    let stage = Stage::new();
    let failure = stage.chosen().await.unwrap_err();
    assert_eq!(failure.reason, Reason::KubeletFailed);
    assert!(failure.message.contains("pod shop/cart-0") && failure.message.contains("pods.sock"));
    let tried = [
        (Pods { hangs: true, ..Pods::default() }, "did not answer within 1000 ms"),
        (
            Pods { has_get: true, pods: vec![pod("other", GOLD, &[])], ..Pods::default() },
            "speaks of pod shop/other instead",
        ),
        (
            Pods { pods: vec![pod("cart-0", GOLD, &[&"v".repeat(5 << 20)])], ..Pods::default() },
            "the limit is: 4194304 bytes",
        ),
        (
            Pods { pods: vec![pod("cart-0", GOLD, &["vf3"])], ..Pods::default() },
            "names \"vf3\", which is no VF",
        ),
    ];
    for (pods, words) in tried {
        let _server = serve(&stage, pods);
        let failure = timeout(LIMIT, stage.chosen()).await.unwrap().unwrap_err();
        assert_eq!(failure.reason, Reason::KubeletFailed);
        assert!(failure.message.ends_with(words), "{failure}");
    }
}

#[tokio::test]
async fn pod_with_several_vfs_is_refused() {
    let stage = Stage::new();
    let cart = pod("cart-0", GOLD, &["d000:00:00.1", "d000:00:00.2"]);
    let _server = serve(&stage, Pods { pods: vec![cart], ..Pods::default() });
    let failure = stage.chosen().await.unwrap_err();
    assert_eq!(failure.reason, Reason::InvalidRequest);
    assert!(failure.message.contains("several VFs (d000:00:00.1, d000:00:00.2)"), "{failure}");
}

/// A program that opens one of them has both.
#[tokio::test]
async fn vfs_of_one_group_are_one_choice() {
    let root = handed_over();
    let vfs = ["d000:00:00.1", "d000:00:00.2"];
    let stage = Stage::of(cards(&root));
    let _server = serve(&stage, Pods::of(pod("cart-0", GOLD, &vfs)));
    group(&root, 7, &vfs);
    assert_eq!(stage.chosen().await, Ok(Some("d000:00:00.1".to_owned())));
    group(&root, 8, &vfs[..1]);
    let failure = stage.chosen().await.unwrap_err();
    assert_eq!(failure.reason, Reason::InvalidRequest);
}

/// Nothing listens on the kubelet's socket.
#[tokio::test]
async fn kubelet_is_asked_only_when_needed() {
    let stage = Stage::new();
    let deadline = Instant::now() + LIMIT;
    let mut named = request();
    named.interface.device = Some("d000:00:00.9".into());
    assert_eq!(stage.device_plugin.chosen(&refusal_of("gold"), &named, deadline).await, Ok(None));
    let bare = AddRequest { pod: Pod::default(), ..request() };
    assert_eq!(stage.device_plugin.chosen(&refusal_of("gold"), &bare, deadline).await, Ok(None));
    stage.device_plugin.learn(VfPools::default());
    assert_eq!(stage.chosen().await, Ok(None));
    let without = DevicePlugin::new(None, Arc::clone(&stage.device_plugin.vfs));
    without.learn(VfPools { pools: vec![pool("gold", &[])] });
    assert_eq!(without.chosen(&refusal_of("gold"), &request(), deadline).await, Ok(None));
}
