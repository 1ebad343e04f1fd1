//! A client that uses all connections and slots of its certificate does not starve others.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    CardSettings, Lab, Netns, Settings, Stopwatch, Timeouts,
    scenarios::{End, figure},
    wait_for,
};
use futures::future::join_all;
use mtls::{Connector, Role};
use offload_proto::v1::{
    self, host_message, operator_client::OperatorClient,
    workload_network_client::WorkloadNetworkClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const DPU: &str = "192.168.100.2:7443";

/// Connections of the greedy client: with those of its session, the limit of one identity.
const CONNECTIONS: usize = 15;
/// Calls in progress on each connection: with [`CONNECTIONS`] far more than `limits.in_flight`.
const CALLS: usize = 64;

/// Pods that other clients attach.
const PODS: usize = 10;
/// Limit for one of their calls, on processors shared with the greedy client.
const BOUND: Duration = Duration::from_secs(5);

const LIMIT: Duration = Duration::from_secs(20);

/// The greedy client.
struct Greedy<'a> {
    lab: &'a Lab,
    role: Role,
    name: &'a str,
    calls: AtomicUsize,
    is_over: AtomicBool,
}

impl<'a> Greedy<'a> {
    fn new(lab: &'a Lab, role: Role, name: &'a str) -> Self {
        let (calls, is_over) = Default::default();
        Self { lab, role, name, calls, is_over }
    }

    fn connector(&self) -> Connector {
        let credentials = self.lab.pki.credentials(self.role, self.name);
        Connector::new(credentials, DPU, "dpu-1", LIMIT).unwrap()
    }

    /// Runs its `work` in the host's namespace.
    fn at_work(&self, work: impl AsyncFnOnce() + Send) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        self.lab.card.host.run(|| runtime.block_on(work()));
    }

    /// Repeats a call after each answer, in all slots.
    async fn call(&self, call: impl AsyncFn(Channel, usize)) {
        let connector = self.connector();
        let channels: Vec<_> = (0..CONNECTIONS).map(|_| connector.channel()).collect();
        let place = async |number: usize| {
            let channel = &channels[number % CONNECTIONS];
            while !self.is_over.load(Ordering::Relaxed) {
                call(channel.clone(), number).await;
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
        };
        join_all((0..CONNECTIONS * CALLS).map(place)).await;
    }

    /// Other clients attach and detach during `work`, and each of their calls is served in time.
    fn assert_others_are_served(&self, work: impl AsyncFnOnce() + Send) {
        thread::scope(|scope| {
            let end = End(&self.is_over);
            scope.spawn(|| self.at_work(work));
            let is_at_it = || self.calls.load(Ordering::Relaxed) > CONNECTIONS * CALLS;
            wait_for("the greedy one's calls", LIMIT, || is_at_it().then_some(()));
            let slowest = serve_others(self.lab);
            drop(end);
            assert!(slowest < BOUND, "{slowest:?}");
        });
        figure(self.calls.load(Ordering::Relaxed), "calls of a greedy identity");
    }
}

/// Attaches and detaches pods, each at the first attempt. Returns the duration of the slowest call.
fn serve_others(lab: &Lab) -> Duration {
    let pod = Netns::new("pod");
    let served = |verb| {
        let begun = Stopwatch::start();
        let answer = lab.call(verb, "blue", &pod, "eth0");
        assert!(answer.status.success(), "{answer:?}");
        begun.unstalled()
    };
    (0..PODS).flat_map(|_| ["ADD", "DEL"]).map(served).max().unwrap()
}

#[test]
fn busy_operator_starves_no_client() {
    // Few enough that all are in progress at each moment.
    let service = "[limits]\nin_flight = 16\n".into();
    let lab = Lab::start(&Settings { service, ..Settings::default() });
    let greedy = Greedy::new(&lab, Role::Viewer, "guest");
    greedy.assert_others_are_served(async || {
        let look = async |channel, _| {
            drop(
                OperatorClient::new(channel)
                    .list_attachments(v1::ListAttachmentsRequest::default())
                    .await,
            );
        };
        greedy.call(look).await;
    });
    lab.assert_clean_slate();
}

const SECOND_HOST: &str = r#"
[limits]
heartbeat_ms = 60000
[[host]]
name = "node-2"
pfs = ["p1"]
[[pool]]
name = "other"
select = ["p1#0-3"]
"#;

const NETWORKS: &str = r#"
[[network]]
name = "blue"
default = true
anti_spoofing = "off"
subnets = [{ cidr = "10.1.0.0/16" }]
[[network]]
name = "other"
pool = "other"
anti_spoofing = "off"
subnets = [{ cidr = "10.2.0.0/16" }]
"#;

/// A VF of the host `node-2` that only the service knows.
fn vf(number: u32) -> v1::VirtualFunction {
    v1::VirtualFunction {
        vf: number,
        device: format!("d001:00:00.{}", number + 1),
        condition: v1::VfCondition::Clean.into(),
        netdev: format!("p1v{number}"),
        use_by_host: String::new(),
    }
}

fn hello() -> v1::HostMessage {
    let pf = v1::PhysicalFunction {
        controller: 0,
        pf: 1,
        device: "d001:00:00.0".into(),
        vendor_id: "1af4".into(),
        device_id: "1000".into(),
        vfs: (0..4).map(vf).collect(),
    };
    let hello = v1::Hello {
        protocol: Some(v1::ProtocolVersions { lowest: 1, highest: 1 }),
        boot_id: "boot".into(),
        inventory: Some(v1::Inventory { pfs: vec![pf], as_of_ns: 0 }),
        ..v1::Hello::default()
    };
    v1::HostMessage { message: Some(host_message::Message::Hello(hello)) }
}

#[test]
fn busy_host_starves_no_client() {
    // Without an eswitch, VFs of a host need not exist.
    let lab = Lab::start(&Settings {
        card: CardSettings { has_eswitch: false, ..CardSettings::default() },
        timeouts: Timeouts { carrier_ms: 0, ..Timeouts::default() },
        service: SECOND_HOST.into(),
        networks: NETWORKS.into(),
        ..Settings::default()
    });
    lab.pki.issue("host", "node-2");
    let greedy = Greedy::new(&lab, Role::Host, "node-2");
    greedy.assert_others_are_served(async || {
        let mut client = WorkloadNetworkClient::new(greedy.connector().channel());
        let (out, messages) = mpsc::channel(1);
        out.send(hello()).await.unwrap();
        let mut session = client.session(ReceiverStream::new(messages)).await.unwrap().into_inner();
        let hello_reply = session.message().await.unwrap().unwrap().message;
        let Some(v1::dpu_message::Message::HelloReply(hello_reply)) = hello_reply else {
            panic!("{hello_reply:?}")
        };
        greedy
            .call(async |channel, number| {
                let mut client = WorkloadNetworkClient::new(channel);
                let key = v1::AttachmentKey {
                    container_id: format!("c{number}"),
                    interface_name: "eth0".into(),
                };
                let attach = v1::AttachRequest {
                    session_id: hello_reply.session_id.clone(),
                    network: "other".into(),
                    key: Some(key.clone()),
                    ..Default::default()
                };
                drop(client.attach(attach).await);
                let detach =
                    v1::DetachRequest { key: Some(key), vf_returned: true, ..Default::default() };
                drop(client.detach(detach).await);
            })
            .await;
    });
}
