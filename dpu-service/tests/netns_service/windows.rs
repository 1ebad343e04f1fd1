//! Peers that keep their HTTP/2 windows closed, and open streams.

use std::{fmt::Write as _, future::poll_fn, time::Duration};

use bytes::Bytes;
use futures::{
    future::join_all,
    stream::{self, StreamExt as _},
};
use h2::{
    SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{Request, Uri};
use mtls::Role;
use offload_proto::{
    Reason,
    v1::{self, host_message, operator_client::OperatorClient},
};
use test_clock::{wait_until_async, within};
use tokio::task::JoinHandle;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::Service as _;

use crate::{
    service_support::{ADDRESS, BOUND, NETWORKS, Service, Setup, reason},
    session::{Session, hello},
};

const ATTACHMENTS: u16 = 2048;
const NETWORKS_MADE: u16 = 512;
/// Number of concurrent attaches.
const TOGETHER: usize = 64;

/// Maximum number of connections of one identity.
const CONNECTIONS: usize = 16;
/// Calls on each connection.
const CALLS: usize = 16;
/// Time to wait for more of a request's window.
const STEP: Duration = Duration::from_millis(200);
/// Maximum additional memory of the service, in MiB.
const MOST_MORE: f64 = 64.0;

/// A service without an eswitch, so that no VFs are needed.
fn start<'a>(setup: &'a Setup, limits: &str) -> Service<'a> {
    let mut text = r#"
        [log]
        level = "warn"
        [eswitch]
        driver = "none"
        [fabric]
        driver = "none"
        [[pool]]
        name = "many"
        select = ["p0"]
    "#
    .to_owned();
    for number in 1..NETWORKS_MADE {
        let network = format!("name = 'network-{number}'\npool = 'many'\nanti_spoofing = 'off'");
        writeln!(text, "[[network]]\n{network}").unwrap();
    }
    let of_default = "default = true\npool = \"many\"\nanti_spoofing = \"off\"";
    setup.configure(limits, &format!("{}{text}", NETWORKS.replace("default = true", of_default)));
    setup.start()
}

/// A host with VFs for all attaches.
async fn connected(setup: &Setup) -> (Session, String) {
    let vf = |vf: u16| v1::VirtualFunction {
        vf: vf.into(),
        device: format!("0000:{:02x}:{:02x}.{}", 3 + vf / 256, vf / 8 % 32, vf % 8),
        condition: v1::VfCondition::Clean.into(),
        netdev: format!("p0v{vf}"),
        use_by_host: String::new(),
    };
    let pf = v1::PhysicalFunction {
        device: "0000:02:00.0".into(),
        vendor_id: "1af4".into(),
        device_id: "1000".into(),
        vfs: (0..ATTACHMENTS).map(vf).collect(),
        ..v1::PhysicalFunction::default()
    };
    let host_message::Message::Hello(hello) = hello() else { unreachable!() };
    let inventory = Some(v1::Inventory { pfs: vec![pf], as_of_ns: 0 });
    let mut session = Session::open(setup).await;
    session.send(host_message::Message::Hello(v1::Hello { inventory, ..hello })).await;
    let hello_reply = session.receive().await.unwrap();
    let Some(v1::dpu_message::Message::HelloReply(hello_reply)) = hello_reply else {
        panic!("{hello_reply:?}")
    };
    (session, hello_reply.session_id)
}

async fn attach_all(setup: &Setup, session_id: &str) {
    let host = setup.host();
    let attach = async |number: u16| {
        let key = v1::AttachmentKey {
            // As long as runtimes' ids, so that fewer attachments make a long answer.
            container_id: format!("{number:064x}"),
            interface_name: "eth0".into(),
        };
        let attach = v1::AttachRequest {
            session_id: session_id.to_owned(),
            key: Some(key),
            ..v1::AttachRequest::default()
        };
        host.clone().attach(attach).await.unwrap();
    };
    stream::iter((0..ATTACHMENTS).map(attach)).buffer_unordered(TOGETHER).collect::<()>().await;
}

/// An HTTP/2 connection under the test's control.
struct Connection {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl Connection {
    /// Opens a connection with windows of that fixed size.
    async fn open(setup: &Setup, window: u32) -> Self {
        Self::open_as(setup, Role::Viewer, "guest", window).await
    }

    async fn open_as(setup: &Setup, role: Role, name: &str, window: u32) -> Self {
        let mut connector = setup.connector(role, name);
        let uri = Uri::builder().scheme("https").authority(ADDRESS).path_and_query("/");
        let stream = connector.call(uri.build().unwrap()).await.unwrap().into_inner();
        let mut client = h2::client::Builder::new();
        let (requests, driver) =
            client.initial_window_size(window).handshake(stream).await.unwrap();
        Self { requests, driver: tokio::spawn(driver) }
    }

    async fn call(&self, method: &str) -> ResponseFuture {
        let (answer, mut body) = self.begin(method).await;
        body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
        answer
    }

    /// Begins a call without sending its message.
    async fn begin(&self, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
        let request = Request::post(format!("https://{ADDRESS}/offload.v1.Operator/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let mut requests = self.requests.clone().ready().await.unwrap();
        requests.send_request(request.body(()).unwrap(), false).unwrap()
    }
}

#[test]
fn closed_windows_take_64_mib_at_most() {
    let setup = Setup::new();
    let service = start(&setup, "keepalive_s = 4\nheartbeat_ms = 60_000");
    let mut session = None;
    setup.client(async || {
        let (open, id) = connected(&setup).await;
        session = Some(open);
        attach_all(&setup, &id).await;
    });
    let before = service.memory();
    setup.client(async || {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Connection::open(&setup, 0).await);
        }
        let calls = connections.iter().map(async |connection| {
            let call = async |number: usize| {
                let method = ["ListAttachments", "ListNetworks"][number % 2];
                connection.call(method).await.await.unwrap().into_body()
            };
            join_all((0..CALLS).map(call)).await
        });
        let answers: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        let growth = service.peak_memory() - before;
        assert!(growth <= MOST_MORE, "{growth:.1} MiB more");

        // Other peers are served.
        setup.operator().list_networks(v1::ListNetworksRequest {}).await.unwrap();
        setup.host().status(v1::StatusRequest::default()).await.unwrap();

        // A call that is not refused at once is reset later.
        let ends = answers.into_iter().map(async |mut answer| match answer.data().await {
            Some(Err(error)) => {
                assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
                true
            }
            refused => {
                assert!(refused.is_none(), "{refused:?}");
                false
            }
        });
        let reset = join_all(ends).await.into_iter().filter(|is_reset| *is_reset).count();
        assert!(reset > 0);
        // Their permits are returned.
        let mut guest = OperatorClient::new(setup.channel(Role::Viewer, "guest"));
        drop(connections);
        wait_until_async("a list is made again", async || {
            guest.list_networks(v1::ListNetworksRequest {}).await.is_ok()
        })
        .await;
    });
    drop(session);
}

#[test]
fn answer_stuck_within_http2_ends_connection() {
    let setup = Setup::new();
    let _service = start(&setup, "keepalive_s = 1");
    setup.client(async || {
        let connection = Connection::open(&setup, 1).await;
        let mut answer = connection.call("GetDpu").await.await.unwrap().into_body();
        assert_eq!(answer.data().await.unwrap().unwrap().len(), 1);
        let ended = within(BOUND, connection.driver).await.expect("the connection stays");
        drop(ended);
    });
}

#[test]
fn slow_reader_gets_whole_answer() {
    let setup = Setup::new();
    let _service = start(&setup, "keepalive_s = 1");
    setup.client(async || {
        let connection = Connection::open(&setup, 16 * 1024).await;
        let mut answer = connection.call("ListNetworks").await.await.unwrap().into_body();
        let mut length = 0;
        while let Some(chunk) = answer.data().await {
            let chunk = chunk.unwrap().len();
            length += chunk;
            answer.flow_control().release_capacity(chunk).unwrap();
        }
        let trailers = answer.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert!(length > 32 * 1024, "{length} bytes");
    });
}

#[test]
fn every_open_stream_counts() {
    let setup = Setup::new();
    setup.configure("connections_per_identity = 2", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let channel = setup.channel(Role::Viewer, "guest");
        let watch = async || {
            let watch = HealthCheckRequest { service: String::new() };
            HealthClient::new(channel.clone()).watch(watch).await.map(tonic::Response::into_inner)
        };
        let open = [watch().await.unwrap(), watch().await.unwrap()];
        assert_eq!(reason(watch().await), Reason::Overloaded);
        let events = OperatorClient::new(channel.clone()).watch(v1::WatchRequest::default()).await;
        assert_eq!(reason(events), Reason::Overloaded);
        // Calls have limits of their own.
        let mut guest = OperatorClient::new(channel.clone());
        guest.list_networks(v1::ListNetworksRequest {}).await.unwrap();
        drop(open);
        wait_until_async("a stream is open again", async || watch().await.is_ok()).await;
    });
}

/// Two peers with unfinished requests use all streams that they may have.
#[test]
fn unfinished_requests_take_no_places() {
    let setup = Setup::new();
    setup.configure("in_flight = 4\nkeepalive_s = 4", NETWORKS);
    let service = setup.start();
    let before = service.memory();
    setup.client(async || {
        let mut begun = Vec::new();
        for (role, name) in [(Role::Viewer, "guest"), (Role::Viewer, "visitor")] {
            let connection = Connection::open_as(&setup, role, name, 65_535).await;
            for method in ["ListNetworks", "GetDpu"].repeat(CALLS) {
                let (answer, mut body) = connection.begin(method).await;
                // The beginning of an incomplete message.
                body.send_data(Bytes::from_static(&[0, 0, 15, 0, 0, 1]), false).unwrap();
                begun.push((answer, body));
            }
            // The service has these calls: it answers the next one.
            connection.call("GetDpu").await.await.unwrap();
        }
        let mut operator = setup.operator();
        operator.list_networks(v1::ListNetworksRequest {}).await.unwrap();
        operator.get_dpu(v1::GetDpuRequest {}).await.unwrap();
        // They time out, too.
        for (answer, _body) in begun {
            let answer = within(BOUND, answer).await.expect("no answer").unwrap();
            assert_eq!(answer.headers()["grpc-status"], "4", "{answer:?}");
        }
    });
    assert!(service.memory() - before < MOST_MORE);
}

/// Each of many requests lacks its last byte.
#[test]
fn large_unfinished_requests_are_bounded() {
    keep_unfinished(1024 * 1024, CALLS);
}

#[test]
fn small_unfinished_requests_are_bounded() {
    keep_unfinished(16 * 1024, 250);
}

fn keep_unfinished(length: usize, calls: usize) {
    let setup = Setup::new();
    setup.configure("keepalive_s = 4", NETWORKS);
    let service = setup.start();
    let before = service.memory();
    setup.client(async || {
        let connections =
            join_all((0..CONNECTIONS).map(|_| Connection::open(&setup, 65_535))).await;
        let calls = connections.iter().map(async |connection| {
            let mut begun = Vec::new();
            for _ in 0..calls {
                let (answer, mut body) = connection.begin("GetDpu").await;
                let mut left = length - 1;
                while left > 0 {
                    body.reserve_capacity(left);
                    let sent = within(STEP, poll_fn(|context| body.poll_capacity(context))).await;
                    // The service accepts no more of it, or has refused the call.
                    let Some(Some(Ok(capacity))) = sent else { break };
                    let piece = Bytes::from(vec![0; capacity.min(left)]);
                    left -= piece.len();
                    if body.send_data(piece, false).is_err() {
                        break;
                    }
                }
                begun.push((answer, body));
            }
            begun
        });
        let _begun = join_all(calls).await;
        let more = service.memory() - before;
        assert!(more < MOST_MORE, "{more} MiB more");
        setup.operator().get_dpu(v1::GetDpuRequest {}).await.unwrap();
    });
}
