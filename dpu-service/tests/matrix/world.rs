//! A service, host node-1 with an attachment, and other callers.

use std::{
    cell::RefCell,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, SystemTime},
};

use mtls::{
    Role,
    authority::{Authority, Validity},
};
use netlink::LinkChange;
use offload_proto::v1::{
    self, dpu_message, host_message, operator_client::OperatorClient,
    workload_network_client::WorkloadNetworkClient,
};
use test_clock::wait_until_async;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};
use vf_alloc::{FunctionId, software_card::CardLink};

use crate::service_support::{ADDRESS, NETWORKS, Setup};

/// The second host of the configuration, after node-1.
const NODE_2: &str = "[[host]]\nname = \"node-2\"\npfs = [\"p1\"]\n";

/// A namespace with a VF's representor and the service's files.
pub(crate) fn setup() -> Setup {
    let setup = Setup::new();
    setup.netns.run("ip link add rep0 type veth peer name wire0");
    let mut rtnl = setup.netns.rtnl();
    let representor = rtnl.link_by_name("rep0").unwrap().unwrap();
    let alias = CardLink::Representor(FunctionId::local(0, 0)).to_string();
    rtnl.change_link(representor.index, &LinkChange::new().alias(&alias)).unwrap();
    setup.configure("", &format!("{NETWORKS}\n{NODE_2}"));
    setup
}

/// node-1 and its attachment.
pub(crate) struct World<'a> {
    setup: &'a Setup,
    operator: OperatorClient<Channel>,
    host: WorkloadNetworkClient<Channel>,
    session: RefCell<Option<Session>>,
    attachment: RefCell<v1::Attachment>,
}

struct Session {
    id: String,
    out: mpsc::Sender<v1::HostMessage>,
    _from_dpu: Streaming<v1::DpuMessage>,
}

impl<'a> World<'a> {
    pub(crate) fn new(setup: &'a Setup) -> Self {
        Self {
            setup,
            operator: setup.operator(),
            host: setup.host(),
            session: RefCell::default(),
            attachment: RefCell::default(),
        }
    }

    pub(crate) fn channel(&self, role: Role, name: &str) -> Channel {
        self.setup.channel(role, name)
    }

    pub(crate) fn key(&self) -> v1::AttachmentKey {
        v1::AttachmentKey { container_id: "c1".into(), interface_name: "eth0".into() }
    }

    pub(crate) fn id(&self) -> String {
        self.attachment.borrow().id.clone()
    }

    pub(crate) fn session_id(&self) -> String {
        self.session.borrow().as_ref().map(|session| session.id.clone()).unwrap_or_default()
    }

    /// node-1's hello: it has the VF, and the attachment if there is one.
    pub(crate) fn hello(&self) -> v1::HostMessage {
        let vf = v1::VirtualFunction {
            device: "0000:03:00.1".into(),
            condition: v1::VfCondition::Clean.into(),
            ..v1::VirtualFunction::default()
        };
        let pf = v1::PhysicalFunction {
            vendor_id: "15b3".into(),
            device_id: "101e".into(),
            vfs: vec![vf],
            ..v1::PhysicalFunction::default()
        };
        let live =
            v1::LiveAttachment { attachment_id: self.id(), key: Some(self.key()), in_pod: true };
        let hello = v1::Hello {
            protocol: Some(v1::ProtocolVersions { lowest: 1, highest: 1 }),
            boot_id: "boot-1".into(),
            inventory: Some(v1::Inventory { pfs: vec![pf], ..v1::Inventory::default() }),
            live: if live.attachment_id.is_empty() { Vec::new() } else { vec![live] },
            ..v1::Hello::default()
        };
        v1::HostMessage { message: Some(host_message::Message::Hello(hello)) }
    }

    /// Attaches node-1's pod unless it is attached.
    pub(crate) async fn attach(&self) {
        wait_until_async("node-1 has its attachment", async || self.try_to_attach().await).await;
    }

    async fn try_to_attach(&self) -> bool {
        let request = v1::AttachRequest {
            session_id: self.session_id(),
            key: Some(self.key()),
            ..v1::AttachRequest::default()
        };
        let mut host = self.host.clone();
        if let Ok(answer) = host.attach(request).await {
            *self.attachment.borrow_mut() = answer.into_inner().attachment.unwrap();
            return self.report_attached().await;
        }
        self.greet().await;
        // It may be releasing.
        let detach = v1::DetachRequest {
            key: Some(self.key()),
            vf_returned: true,
            session_id: self.session_id(),
            ..v1::DetachRequest::default()
        };
        host.detach(detach).await.unwrap();
        self.attachment.take();
        false
    }

    /// Reports that the pod has its VF and returns whether the service knows. Until then the attach is under way, and
    /// only a detach ends it.
    async fn report_attached(&self) -> bool {
        let attached = v1::Attached { attachment_id: self.id() };
        let message = Some(host_message::Message::Attached(attached));
        let out = self.session.borrow().as_ref().map(|session| session.out.clone());
        if let Some(out) = out {
            // If another session is open, the next attach is refused.
            let _ = out.send(v1::HostMessage { message }).await;
        }
        self.list().await.iter().any(|it| it.state() == v1::AttachmentState::Attached)
    }

    async fn greet(&self) {
        let (out, messages) = mpsc::channel(8);
        out.send(self.hello()).await.unwrap();
        // Others have sent hellos since; those of older connections are refused.
        let opened = self.setup.host().session(ReceiverStream::new(messages)).await;
        let mut from_dpu = opened.unwrap().into_inner();
        let first = from_dpu.message().await.unwrap().unwrap();
        let Some(dpu_message::Message::HelloReply(hello_reply)) = first.message else {
            panic!("{first:?}")
        };
        let session = Session { id: hello_reply.session_id, out, _from_dpu: from_dpu };
        self.session.replace(Some(session));
    }

    async fn list(&self) -> Vec<v1::Attachment> {
        let request = v1::ListAttachmentsRequest::default();
        let listed = self.operator.clone().list_attachments(request).await.unwrap();
        listed.into_inner().attachments
    }

    /// The attachments that are not releasing.
    pub(crate) async fn attachments(&self) -> Vec<String> {
        let held = self.list().await.into_iter();
        held.filter(|it| it.state() != v1::AttachmentState::Releasing).map(|it| it.id).collect()
    }
}

/// Callers without access, by the names of their certificates' files.
pub(crate) struct UntrustedCallers<'a>(&'a Setup);

impl<'a> UntrustedCallers<'a> {
    /// Makes certificates with one defect each.
    pub(crate) fn new(setup: &'a Setup) -> Self {
        let untrusted = Self(setup);
        untrusted.sign("robot", "URI:spiffe://test.local/robot/r2");
        untrusted.sign("elsewhere", "URI:spiffe://elsewhere.local/operator/alice");
        untrusted.sign("named", "DNS:node-1");
        untrusted
            .sign("two-faced", "URI:spiffe://test.local/host/a,URI:spiffe://test.local/operator/a");
        untrusted.sign("viewer", "URI:spiffe://test.local/viewer/eve");
        let hours = |count: u64| Duration::from_secs(3600 * count);
        let now = SystemTime::now();
        let past = Validity { not_before: now - hours(2), not_after: now - hours(1) };
        let folder = setup.folder.path();
        let expired = setup.authority.issue(Role::Operator, "alice", past).unwrap();
        expired.save(folder, "expired").unwrap();
        let validity = Validity::from_now(hours(1));
        let other = Authority::create("test.local", validity).unwrap();
        let foreign = other.issue(Role::Operator, "alice", validity).unwrap();
        foreign.save(folder, "foreign").unwrap();
        untrusted
    }

    fn sign(&self, name: &str, names: &str) {
        let file = |end: &str| self.0.path(&format!("{name}.{end}"));
        let extensions = format!("subjectAltName={names}\nextendedKeyUsage=clientAuth\n");
        fs::write(file("ext"), extensions).unwrap();
        let request = [
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=x",
        ];
        self.openssl(&request, &[("-keyout", file("key")), ("-out", file("csr"))]);
        let files = [
            ("-in", file("csr")),
            ("-CA", self.0.path("ca.crt")),
            ("-CAkey", self.0.path("ca.key")),
            ("-extfile", file("ext")),
            ("-out", file("crt")),
        ];
        self.openssl(&["x509", "-req", "-CAcreateserial", "-days", "1"], &files);
    }

    fn openssl(&self, arguments: &[&str], files: &[(&str, PathBuf)]) {
        let mut command = Command::new("openssl");
        command.args(arguments);
        for (option, path) in files {
            command.arg(option).arg(path);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Opens a TLS connection with that certificate, sends something other than HTTP/2, and returns the answer.
    pub(crate) fn send_raw(&self, name: Option<&str>) -> String {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", ADDRESS, "-alpn", "h2", "-ign_eof"]);
        command.arg("-CAfile").arg(self.0.path("ca.crt"));
        if let Some(name) = name {
            command.arg("-cert").arg(self.0.path(&format!("{name}.crt")));
            command.arg("-key").arg(self.0.path(&format!("{name}.key")));
        }
        let Output { stdout, stderr, .. } = self.0.netns.netns.run(|| output_of(command)).unwrap();
        String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
    }

    /// The answer to HTTP/2 without TLS.
    pub(crate) fn send_without_tls(&self) -> Vec<u8> {
        let talk = || {
            let mut stream = TcpStream::connect(ADDRESS).unwrap();
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
            let mut received = Vec::new();
            // Both an end and a reset count as an answer.
            let _ = stream.read_to_end(&mut received);
            received
        };
        self.0.netns.netns.run(talk).unwrap()
    }
}

fn output_of(mut command: Command) -> Output {
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The peer may have closed the connection already.
    let _ =
        process.stdin.take().unwrap().write_all(b"this is no HTTP/2, and never will be\r\n\r\n");
    process.wait_with_output().unwrap()
}
