//! Authorisation: certificates that are missing, expired, or of another CA, role or host.

use std::{fs, net::TcpStream, path::Path, time::Duration};

use e2e::{Lab, Netns, Pki, Settings, run, wait_for};
use futures::stream::{self, StreamExt};
use mtls::{Connector, Role};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use offload_proto::{
    Failure, MESSAGE_LIMIT, Reason,
    v1::{self, workload_network_client::WorkloadNetworkClient},
};
use serde_json::Value;
use tonic::{Status, transport::Channel};

const DPU: &str = "192.168.100.2:7443";
const LIMIT: Duration = Duration::from_secs(30);

/// A second host with its own PF.
fn with_two_hosts() -> Settings {
    let service = "[[host]]\nname = \"node-2\"\npfs = [\"p1\"]\n".into();
    Settings { service, ..Settings::default() }
}

/// Calls the DPU as host `name`, from the host's namespace.
fn as_host<T: Send>(
    lab: &Lab,
    name: &str,
    calls: impl AsyncFnOnce(WorkloadNetworkClient<Channel>) -> T + Send,
) -> T {
    let credentials = lab.pki.credentials(Role::Host, name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    lab.card.host.run(|| {
        runtime.block_on(async {
            let limit = Duration::from_secs(10);
            let connector = Connector::new(credentials, DPU, "dpu-1", limit).unwrap();
            let client = WorkloadNetworkClient::new(connector.channel());
            calls(client.max_encoding_message_size(64 * MESSAGE_LIMIT)).await
        })
    })
}

fn reason(status: &Status) -> Reason {
    Failure::from_status(status).unwrap_or_else(|| panic!("not ours: {status:?}")).reason
}

fn key(pod: &Netns) -> v1::AttachmentKey {
    v1::AttachmentKey { container_id: pod.name().into(), interface_name: "eth0".into() }
}

/// The output of `openssl s_client` at the DPU.
fn openssl(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = lab.card.host.command("openssl");
    command.args(["s_client", "-connect", DPU, "-alpn", "h2", "-CAfile"]).arg(lab.pki.ca());
    let output = run(command.args(arguments));
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn certificate_and_tls_1_3_are_required() {
    let lab = Lab::start(&Settings::default());
    let none = openssl(&lab, &["-tls1_3", "-ign_eof"]);
    assert!(none.contains("certificate required"), "{none}");
    let old = openssl(&lab, &["-tls1_2"]);
    assert!(old.contains("alert protocol version"), "{old}");
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
}

#[test]
fn expired_certificate_is_refused_on_both_sides() {
    let lab = Lab::start(&Settings::default());
    lab.pki.expire(Role::Operator, "admin");
    let (certificate, key) =
        (lab.pki.certificate("operator", "admin"), lab.pki.key("operator", "admin"));
    let arguments = ["-ign_eof", "-cert", text(&certificate), "-key", text(&key)];
    let server = openssl(&lab, &arguments);
    assert!(server.contains("certificate expired"), "{server}");
    let client = lab.operator().is_refused(&["get", "vfs"]);
    assert!(client.contains("expired") && client.contains("operator-admin.crt"), "{client}");
}

#[test]
fn foreign_ca_is_refused_on_both_sides() {
    let lab = Lab::start(&Settings::default());
    let other = Pki::make(lab.path().join("other-pki"));
    let (certificate, key) =
        (other.certificate("operator", "admin"), other.key("operator", "admin"));
    let arguments = ["-ign_eof", "-cert", text(&certificate), "-key", text(&key)];
    let server = openssl(&lab, &arguments);
    assert!(server.contains("SSL alert number"), "{server}");

    let configuration = lab.path().join("other.toml");
    let tls = other.section("operator", "admin");
    fs::write(&configuration, format!("endpoint = \"{DPU}\"\ndpu = \"dpu-1\"\n{tls}")).unwrap();
    let mut dpuctl = lab.operator().command();
    let output = run(dpuctl.env("DPUCTL_CONFIG", &configuration).args(["get", "vfs"]));
    let client = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && client.contains("certificate"), "{client}");
}

#[test]
fn missing_certificate_is_named() {
    let lab = Lab::start(&Settings::default());
    let guest = lab.dpuctl_as("viewer", "nobody");
    let complaint = guest.is_refused(&["get", "vfs"]);
    assert!(complaint.contains("viewer-nobody.crt"), "{complaint}");
}

#[test]
fn host_certificate_cannot_make_operator_calls() {
    let lab = Lab::start(&Settings::default());
    let complaint = lab.dpuctl_as("host", "node-1").is_refused(&["get", "vfs"]);
    assert!(complaint.contains("host/node-1"), "{complaint}");
}

#[test]
fn viewer_cannot_change_anything() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let guest = lab.dpuctl_as("viewer", "guest");
    let attachments = guest.get("attachments");
    assert_eq!(attachments.len(), 1);
    let id = attachments[0]["id"].as_str().unwrap();
    let complaint = guest.is_refused(&["release", id, "--reason", "mine", "--yes"]);
    assert!(complaint.contains("NOT_AUTHORISED"), "{complaint}");
    let refused = lab.operator().output(&["events", "--type", "PeerRefused"]);
    assert!(refused.contains("viewer/guest"), "{refused}");
    assert_eq!(lab.operator().get("attachments").len(), 1);
}

#[test]
fn host_cannot_touch_another_hosts_attachment() {
    let lab = Lab::start(&with_two_hosts());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let before: Vec<Value> = lab.operator().get("attachments");
    let id = before[0]["id"].as_str().unwrap().to_owned();
    for name in ["node-2", "node-3"] {
        lab.pki.issue("host", name);
    }
    as_host(&lab, "node-2", async |mut node_2| {
        let check = v1::CheckRequest { key: Some(key(&pod)), attachment_id: id.clone() };
        let status = node_2.check(check).await.unwrap_err();
        assert_eq!(reason(&status), Reason::AttachmentUnknown);
        let detach = v1::DetachRequest {
            key: Some(key(&pod)),
            attachment_id: id.clone(),
            vf_returned: true,
            ..Default::default()
        };
        let _ = node_2.detach(detach).await;
        let collect = v1::CollectRequest { network: "blue".into(), valid: Vec::new() };
        let _ = node_2.collect(collect).await;
    });
    as_host(&lab, "node-3", async |mut node_3| {
        let status = node_3.status(v1::StatusRequest::default()).await.unwrap_err();
        assert_eq!(reason(&status), Reason::HostUnknown);
    });
    let refused = lab.operator().output(&["events", "--type", "PeerRefused"]);
    assert!(refused.contains("host node-3"), "{refused}");
    assert_eq!(lab.operator().get("attachments"), before);
    lab.assert_invariants();
}

#[test]
fn call_outside_session_is_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    as_host(&lab, "node-1", async |mut node_1| {
        let attach = v1::AttachRequest { key: Some(key(&pod)), ..v1::AttachRequest::default() };
        let status = node_1.attach(attach).await.unwrap_err();
        assert_eq!(reason(&status), Reason::StaleSession);
    });
    lab.assert_clean_slate();
}

/// The agent's clock was set wrong, or another client with its certificate lies.
#[test]
fn future_hello_does_not_lock_agent_out() {
    let lab = Lab::start(&Settings::default());
    let boot_id = fs::read_to_string(lab.path().join("boot-id")).unwrap();
    as_host(&lab, "node-1", async |mut node_1| {
        let hello = v1::Hello {
            protocol: Some(v1::ProtocolVersions { lowest: 1, highest: 1 }),
            boot_id: boot_id.trim().into(),
            inventory: Some(v1::Inventory { as_of_ns: u64::MAX, ..v1::Inventory::default() }),
            ..v1::Hello::default()
        };
        let hello = v1::HostMessage { message: Some(v1::host_message::Message::Hello(hello)) };
        let messages = stream::iter([hello]).chain(stream::pending());
        let mut session = node_1.session(messages).await.unwrap().into_inner();
        let hello_reply = session.message().await.unwrap().unwrap();
        assert!(matches!(hello_reply.message, Some(v1::dpu_message::Message::HelloReply(_))));
    });
    wait_for("an ADD", LIMIT, || {
        let added = lab.add("blue", &Netns::new("pod"), "eth0");
        added.status.success().then_some(())
    });
    lab.assert_invariants();
}

/// The network may deliver a call late, and more than once.
#[test]
fn replayed_calls_change_nothing() {
    let lab = Lab::start(&Settings::with_vfs(1));
    let pod = Netns::new("pod");
    let id = || lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let _ = lab.add("blue", &pod, "eth0").result();
    let old = id();
    lab.del("blue", &pod, "eth0").nothing();
    let _ = lab.add("blue", &pod, "eth0").result();
    let new = id();
    assert_ne!(old, new);
    as_host(&lab, "node-1", async |mut node_1| {
        let detach = |attachment_id: &str, session_id: &str| v1::DetachRequest {
            key: Some(key(&pod)),
            attachment_id: attachment_id.into(),
            vf_returned: true,
            session_id: session_id.into(),
            ..Default::default()
        };
        for _ in 0..2 {
            node_1.detach(detach(&old, "")).await.unwrap();
        }
        for attachment_id in [&old, &new, ""] {
            let status = node_1.detach(detach(attachment_id, "4711")).await.unwrap_err();
            assert_eq!(reason(&status), Reason::StaleSession, "{attachment_id:?}");
        }
        let attach = v1::AttachRequest {
            key: Some(key(&pod)),
            session_id: "4711".into(),
            ..v1::AttachRequest::default()
        };
        assert_eq!(reason(&node_1.attach(attach).await.unwrap_err()), Reason::StaleSession);
    });
    assert_eq!(id(), new);
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn oversized_message_is_refused_alone() {
    let lab = Lab::start(&Settings::default());
    as_host(&lab, "node-1", async |mut node_1| {
        let network = "x".repeat(4 * MESSAGE_LIMIT);
        let collect = v1::CollectRequest { network, valid: Vec::new() };
        let status = node_1.collect(collect).await.unwrap_err();
        assert_eq!(reason(&status), Reason::InvalidRequest);
    });
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    lab.assert_invariants();
}

#[test]
fn idle_connections_do_not_block_clients() {
    const CONNECTIONS: usize = 10_000;
    let lab = Lab::start(&Settings::default());
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let address = DPU.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
    let idle: Vec<TcpStream> = lab.card.host.run(|| (0..CONNECTIONS).map(|_| connect()).collect());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_eq!(lab.operator().get("attachments").len(), 1);
    drop(idle);
    lab.assert_invariants();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn agent_waits_for_its_certificate() {
    let mut lab = Lab::start(&Settings::default());
    lab.agent.stop();
    fs::remove_file(lab.pki.certificate("host", "node-1")).unwrap();
    lab.start_agent();
    wait_for("a STATUS that says so", LIMIT, || {
        let answer = lab.status();
        answer.stdout.contains("host-node-1.crt").then(|| answer.fails(50, &[]))
    });
    lab.add("blue", &Netns::new("pod"), "eth0").fails(126, &["host-node-1.crt"]);
    lab.pki.issue("host", "node-1");
    lab.wait_until_good();
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    lab.assert_invariants();
}
