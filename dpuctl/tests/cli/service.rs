//! A fake DPU with fixed answers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mtls::{
    Limits, LiveCredentials, Peer, Role, Server, TlsSettings,
    authority::{Authority, Validity},
    incoming,
};
use offload_proto::{
    Failure, Reason,
    v1::{
        Address, ApplyNetworkRequest, ApplyNetworkResponse, Attachment, AttachmentDetail,
        AttachmentKey, AttachmentState, AttachmentTraffic, AuditEntry, ChangeSubnetsRequest,
        ChangeSubnetsResponse, ClearQuarantineRequest, ClearQuarantineResponse, Condition,
        ConditionStatus, ConditionType, DebugInfo, DeleteNetworkRequest, DeleteNetworkResponse,
        DiagnosedHost, DiagnosedVf, Diagnosis, Dpu, DurationBucket, Event, EventCursor,
        EventSeverity, ExamineRequest, ExaminedVf, Finding, FindingState, GetAttachmentRequest,
        GetDebugInfoRequest, GetDpuRequest, HostStatus, ListAttachmentsRequest,
        ListAttachmentsResponse, ListAuditRequest, ListAuditResponse, ListEventsRequest,
        ListEventsResponse, ListNetworksRequest, ListNetworksResponse, ListPhasesRequest,
        ListPhasesResponse, ListPoolsRequest, ListPoolsResponse, ListTrafficRequest,
        ListTrafficResponse, ListVfsRequest, ListVfsResponse, Network, NetworkStatus,
        PhaseDurations, Pod, PoolStatus, PortCounters, ReleaseAttachmentRequest,
        ReleaseAttachmentResponse, RenameNetworkRequest, RenameNetworkResponse, RepairRequest, Vf,
        VfPlace, VfState, VfStatus, WatchRequest,
        operator_server::{Operator, OperatorServer},
    },
};
use parking_lot::Mutex;
use tempfile::TempDir;
use test_clock::within;
use tokio::net::TcpListener;
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

/// The object whose event list reports unwritten events.
pub(crate) const FULL_DISK: &str = "full-disk";
const BOOT: &str = "0190aaaa-cccc-7000-8000-000000000001";
pub(crate) const ID: &str = "0190aaaa-bbbb-7000-8000-000000000001";
const HOUR: Duration = Duration::from_secs(3600);

/// The calls to the service, one per line.
type Asked = Arc<Mutex<Vec<String>>>;

pub(crate) struct Dut {
    pub(crate) folder: TempDir,
    pub(crate) address: String,
    asked: Asked,
}

impl Dut {
    /// Starts a service and writes an operator's configuration for it.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("test.local", Validity::from_now(HOUR)).unwrap();
        authority.save(folder.path()).unwrap();
        let settings = |role: Role, name: &str| {
            let issued = authority.issue(role, name, Validity::from_now(HOUR)).unwrap();
            let (certificate, key) = issued.save(folder.path(), &format!("{role}")).unwrap();
            let ca = folder.path().join("ca.crt");
            TlsSettings { ca, certificate, key, trust_domain: "test.local".into() }
        };
        settings(Role::Operator, "alice");
        settings(Role::Host, "node-1");
        let dut = Self::serve(settings(Role::Dpu, "dpu-1"), folder).await;
        dut.configure("operator");
        dut
    }

    /// Starts a service with these credentials; `folder` has its operators' certificates.
    pub(crate) async fn serve(settings: TlsSettings, folder: TempDir) -> Self {
        let credentials = LiveCredentials::load(&settings, &[Role::Dpu]);
        let server = Server::new(credentials.unwrap(), HOUR);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Asked::default();
        let service =
            OperatorServer::new(Canned { asked: Arc::clone(&asked), looks: AtomicU64::default() });
        let limits = Limits {
            handshakes: 4,
            connections: 16,
            connections_per_identity: 16,
            unread: Duration::from_secs(60),
        };
        let incoming = incoming(listener, server, limits);
        let router = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(router.serve_with_incoming(incoming));
        Self { folder, address, asked }
    }

    /// Writes the configuration of an operator with the certificate `<role>.crt`.
    pub(crate) fn configure(&self, role: &str) {
        let config = format!(
            "endpoint = '{}'\ndpu = 'dpu-1'\n[tls]\nca = 'ca.crt'\ncertificate = '{role}.crt'\n\
             key = '{role}.key'\ntrust_domain = 'test.local'\n",
            self.address
        );
        fs::write(self.config(), config).unwrap();
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("dpuctl.toml")
    }

    /// Runs the program. Returns exit code, output and notes.
    pub(crate) async fn dpuctl(&self, line: &str) -> Outcome {
        let arguments = format!("--config {} {line}", self.config().display());
        run(&arguments, Path::new("."), "").await
    }

    /// The first output before an interrupt.
    pub(crate) async fn first_lines(&self, line: &str, count: usize) -> Vec<String> {
        use tokio::io::{AsyncBufReadExt, BufReader};
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_dpuctl"))
            .arg("--config")
            .arg(self.config())
            .args(line.split_whitespace())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = Vec::new();
        while lines.len() < count {
            let next = within(Duration::from_secs(30), output.next_line());
            lines.push(next.await.expect("dpuctl hangs").unwrap().expect("dpuctl has ended"));
        }
        lines
    }

    pub(crate) async fn dpuctl_with_input(&self, line: &str, input: &str) -> Outcome {
        let arguments = format!("--config {} {line}", self.config().display());
        run(&arguments, Path::new("."), input).await
    }

    pub(crate) async fn dpuctl_in_editor(&self, line: &str, editor: &str) -> Outcome {
        let arguments = format!("--config {} {line}", self.config().display());
        run_in_editor(&arguments, self.folder.path(), "", editor).await
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) notes: String,
}

pub(crate) async fn run(line: &str, folder: &Path, input: &str) -> Outcome {
    run_in_editor(line, folder, input, "false").await
}

/// Runs the program in `folder`, with an editor and a folder for temporary files.
async fn run_in_editor(line: &str, folder: &Path, input: &str, editor: &str) -> Outcome {
    use tokio::io::AsyncWriteExt;
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_dpuctl"))
        .args(line.split_whitespace())
        .current_dir(folder)
        .env_remove("DPUCTL_CONFIG")
        .env_remove("VISUAL")
        .env("EDITOR", editor)
        .env("TMPDIR", folder)
        .env("HOME", folder)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that reads no input may have ended already.
    stdin.write_all(input.as_bytes()).await.ok();
    drop(stdin);
    let finished = within(Duration::from_secs(30), child.wait_with_output());
    let Output { status, stdout, stderr } = finished.await.expect("dpuctl hangs").unwrap();
    Outcome {
        code: status.code().unwrap(),
        output: String::from_utf8(stdout).unwrap(),
        notes: String::from_utf8(stderr).unwrap(),
    }
}

struct Canned {
    asked: Asked,
    /// Number of ListTraffic calls.
    looks: AtomicU64,
}

impl Canned {
    fn note<T: std::fmt::Debug>(&self, request: &Request<T>) {
        let peer = &request.extensions().get::<Peer>().unwrap().identity;
        let line = format!("{} {:?}", peer.name(), request.get_ref());
        self.asked.lock().push(line);
    }

    /// The number of a sample, and its time: half a second after the one before.
    fn look(&self) -> (u64, String) {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        (look, format!("2026-03-01T12:00:{:02}.{}Z", look / 2, 5 * (look % 2)))
    }
}

/// An answer of a DPU whose clock differs.
fn at_five_past_twelve<T>(message: T) -> Response<T> {
    let mut answer = Response::new(message);
    answer.metadata_mut().insert("date", "Sun, 01 Mar 2026 12:05:00 GMT".parse().unwrap());
    answer
}

fn vf() -> Vf {
    Vf { controller: 0, pf: 0, vf: 3, device: "d000:00:00.4".into() }
}

fn attachment() -> Attachment {
    Attachment {
        id: ID.into(),
        host: "node-1".into(),
        key: Some(AttachmentKey { container_id: "c1".into(), interface_name: "eth0".into() }),
        network: "blue".into(),
        vf: Some(vf()),
        mac: "02:00:00:00:00:01".into(),
        state: AttachmentState::Attached.into(),
        ..Attachment::default()
    }
}

/// Another container of the first one's pod, without a name.
fn second() -> Attachment {
    Attachment {
        id: ID.replace("0190aaaa", "0190cccc"),
        key: Some(AttachmentKey { container_id: "c2".into(), interface_name: "eth0".into() }),
        vf: Some(Vf { vf: 10, ..vf() }),
        pod: Some(Pod { namespace: "web".into(), name: "shop".into(), uid: String::new() }),
        addresses: vec![Address { address: "10.1.0.5/16".into(), gateway: String::new() }],
        ..attachment()
    }
}

fn busy(look: u64) -> AttachmentTraffic {
    let counters = PortCounters {
        sent_bytes: 700 + 617_000 * look,
        sent_packets: 7 + 500 * look,
        received_bytes: 1000 * look,
        received_packets: 10 * look,
        guard_drops: 5,
        ingress_limit_drops: 2,
        rules: 3,
        rules_in_hardware: 3,
        egress_limit_drops: 4,
        allow_drops: 3,
    };
    AttachmentTraffic {
        attachment_id: ID.into(),
        host: "node-1".into(),
        pod: Some(Pod { namespace: "web".into(), name: "shop".into(), uid: String::new() }),
        network: "blue".into(),
        vf: Some(vf()),
        counters: Some(counters),
        ..AttachmentTraffic::default()
    }
}

fn idle() -> AttachmentTraffic {
    let id = ID.replace("0190aaaa-bbbb", "0190aaaa-aaaa");
    AttachmentTraffic {
        attachment_id: id,
        pod: None,
        counters: Some(PortCounters::default()),
        ..busy(0)
    }
}

fn finding() -> Finding {
    Finding {
        code: "VF_DIFFERS".into(),
        subject: "pf0vf3".into(),
        message: "its name is lost0 instead of p0v3".into(),
        state: FindingState::Found.into(),
        advice: "run `dpuctl doctor --fix`".into(),
        host: "node-1".into(),
        ..Finding::default()
    }
}

fn diagnosis(findings: Vec<Finding>) -> Diagnosis {
    let found = ExaminedVf {
        vf: Some(vf()),
        place: VfPlace::Host.into(),
        netdev: "lost0".into(),
        ..ExaminedVf::default()
    };
    let vf = DiagnosedVf {
        found: Some(found),
        host: "node-1".into(),
        representor: "pf0vf3".into(),
        state: VfState::Free.into(),
        ..DiagnosedVf::default()
    };
    let host = DiagnosedHost { name: "node-1".into(), connected: true, ..DiagnosedHost::default() };
    let (dpu, hosts, vfs) = ("dpu-1".into(), vec![host], vec![vf]);
    Diagnosis { dpu, hosts, vfs, findings, ..Diagnosis::default() }
}

#[tonic::async_trait]
impl Operator for Canned {
    async fn examine(
        &self,
        request: Request<ExamineRequest>,
    ) -> Result<Response<Diagnosis>, Status> {
        self.note(&request);
        Ok(Response::new(diagnosis(vec![finding()])))
    }

    async fn repair(&self, request: Request<RepairRequest>) -> Result<Response<Diagnosis>, Status> {
        self.note(&request);
        let repaired = Finding { state: FindingState::Repaired.into(), ..finding() };
        Ok(Response::new(diagnosis(vec![repaired])))
    }

    type WatchStream = Iter<std::vec::IntoIter<Result<Event, Status>>>;

    async fn get_dpu(&self, request: Request<GetDpuRequest>) -> Result<Response<Dpu>, Status> {
        self.note(&request);
        let (name, since) = ("served".into(), "2026-03-01T11:00:00Z".into());
        let served = HostStatus { name, since, connected: true, ..HostStatus::default() };
        let absence = "its certificate expired".into();
        let away = HostStatus { name: "away".into(), absence, ..HostStatus::default() };
        let (name, version) = ("dpu-1".into(), "9.9".into());
        let ready = Condition {
            r#type: ConditionType::Ready.into(),
            status: ConditionStatus::True.into(),
            ..Condition::default()
        };
        let (hosts, conditions) = (vec![served, away], vec![ready]);
        Ok(at_five_past_twelve(Dpu { name, version, hosts, conditions, ..Dpu::default() }))
    }

    async fn list_vfs(
        &self,
        request: Request<ListVfsRequest>,
    ) -> Result<Response<ListVfsResponse>, Status> {
        self.note(&request);
        let status = VfStatus {
            vf: Some(vf()),
            host: "node-1".into(),
            pools: vec!["default".into()],
            state: VfState::Quarantined.into(),
            detail: "reset failed".into(),
            ..VfStatus::default()
        };
        Ok(Response::new(ListVfsResponse { vfs: vec![status] }))
    }

    async fn list_attachments(
        &self,
        request: Request<ListAttachmentsRequest>,
    ) -> Result<Response<ListAttachmentsResponse>, Status> {
        self.note(&request);
        let ListAttachmentsRequest { network, host } = request.get_ref();
        let has_none = ["empty", "red"].contains(&network.as_str()) || host == "lost";
        let attachments = if has_none { Vec::new() } else { vec![attachment(), second()] };
        Ok(Response::new(ListAttachmentsResponse { attachments }))
    }

    async fn get_attachment(
        &self,
        request: Request<GetAttachmentRequest>,
    ) -> Result<Response<AttachmentDetail>, Status> {
        self.note(&request);
        let mut all = [attachment(), second()].into_iter();
        let attachment = all.find(|it| it.id.starts_with(&request.get_ref().id));
        let unknown = || Failure::new(Reason::AttachmentUnknown, "there is no such attachment");
        let attachment = Some(attachment.ok_or_else(unknown)?);
        Ok(Response::new(AttachmentDetail { attachment, ..AttachmentDetail::default() }))
    }

    async fn list_traffic(
        &self,
        request: Request<ListTrafficRequest>,
    ) -> Result<Response<ListTrafficResponse>, Status> {
        self.note(&request);
        let (look, time) = self.look();
        let attachments = match request.get_ref().network.as_str() {
            "empty" | "red" => Vec::new(),
            _ => vec![idle(), busy(look)],
        };
        Ok(Response::new(ListTrafficResponse { time, attachments, ..Default::default() }))
    }

    /// Each sample has two more attachments.
    async fn list_phases(
        &self,
        request: Request<ListPhasesRequest>,
    ) -> Result<Response<ListPhasesResponse>, Status> {
        self.note(&request);
        let (look, time) = self.look();
        let count = 2 * look;
        let bucket = |upper_bound_ns, count| DurationBucket { upper_bound_ns, count };
        let phase = |phase: &str, each: u64| PhaseDurations {
            operation: "attach".into(),
            phase: phase.into(),
            count,
            sum_ns: count * each,
            buckets: vec![bucket(2_000_000, 0), bucket(4_000_000, count)],
        };
        let phases = vec![phase("journal", 3_000_000), phase("total", 4_000_000)];
        Ok(Response::new(ListPhasesResponse { time, phases }))
    }

    async fn get_debug_info(
        &self,
        request: Request<GetDebugInfoRequest>,
    ) -> Result<Response<DebugInfo>, Status> {
        self.note(&request);
        let configuration = "name = \"dpu-1\"\nx = \"Bearer s3cret\"\n".into();
        let key = "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----";
        Ok(Response::new(DebugInfo {
            configuration,
            kernel: key.into(),
            metrics: "# EOF\n".into(),
        }))
    }

    async fn list_networks(
        &self,
        _: Request<ListNetworksRequest>,
    ) -> Result<Response<ListNetworksResponse>, Status> {
        let status = |name: &str, origin: &str| NetworkStatus {
            network: Some(Network { name: name.into(), vlan: 7, ..Network::default() }),
            origin: origin.into(),
            resource_version: "new".into(),
            ..NetworkStatus::default()
        };
        let networks =
            vec![status("green", "api"), status("fixed", "configuration"), status("empty", "api")];
        Ok(Response::new(ListNetworksResponse { networks }))
    }

    /// From the second sample on the default pool has one VF less.
    async fn list_pools(
        &self,
        _: Request<ListPoolsRequest>,
    ) -> Result<Response<ListPoolsResponse>, Status> {
        let (look, _) = self.look();
        let pool = |name: &str| PoolStatus {
            name: name.into(),
            select: vec!["p0#0-63".into()],
            policy: "spread".into(),
            free: if name == "default" { 60 - look.min(1) } else { 60 },
            in_use: 4,
            pinned_only: name == "gold",
            ..PoolStatus::default()
        };
        Ok(Response::new(ListPoolsResponse { pools: vec![pool("default"), pool("gold")] }))
    }

    async fn apply_network(
        &self,
        request: Request<ApplyNetworkRequest>,
    ) -> Result<Response<ApplyNetworkResponse>, Status> {
        self.note(&request);
        let is_late = request.get_ref().resource_version == "old";
        if is_late && !request.get_ref().dry_run {
            let message = "network blue has changed since version old: its version is new";
            return Err(Failure::new(Reason::NetworkConflict, message).into());
        }
        let outcome = "created".into();
        let network = request.into_inner().network;
        let network = Some(NetworkStatus { network, ..NetworkStatus::default() });
        Ok(Response::new(ApplyNetworkResponse { network, outcome }))
    }

    async fn change_subnets(
        &self,
        request: Request<ChangeSubnetsRequest>,
    ) -> Result<Response<ChangeSubnetsResponse>, Status> {
        self.note(&request);
        let outcome = match request.into_inner().network.as_str() {
            "ancient" => return Err(Status::unimplemented("there is no such call")),
            "settled" => "unchanged".into(),
            _ => "changed".into(),
        };
        Ok(Response::new(ChangeSubnetsResponse { network: None, outcome }))
    }

    async fn rename_network(
        &self,
        request: Request<RenameNetworkRequest>,
    ) -> Result<Response<RenameNetworkResponse>, Status> {
        self.note(&request);
        Ok(Response::new(RenameNetworkResponse::default()))
    }

    async fn delete_network(
        &self,
        request: Request<DeleteNetworkRequest>,
    ) -> Result<Response<DeleteNetworkResponse>, Status> {
        if request.get_ref().force {
            return Ok(Response::new(DeleteNetworkResponse {}));
        }
        let message = format!("3 attachments use network {}", request.get_ref().name);
        Err(Failure::new(Reason::NetworkInUse, message).into())
    }

    async fn release_attachment(
        &self,
        request: Request<ReleaseAttachmentRequest>,
    ) -> Result<Response<ReleaseAttachmentResponse>, Status> {
        self.note(&request);
        Ok(Response::new(ReleaseAttachmentResponse { attachment: Some(attachment()) }))
    }

    async fn clear_quarantine(
        &self,
        request: Request<ClearQuarantineRequest>,
    ) -> Result<Response<ClearQuarantineResponse>, Status> {
        self.note(&request);
        if request.get_ref().vf.as_ref().is_some_and(|vf| vf.pf == 9) {
            return Err(Failure::new(Reason::VfUnknown, "there is no VF pf9vf3").into());
        }
        Ok(Response::new(ClearQuarantineResponse { vf: None }))
    }

    async fn list_audit(
        &self,
        request: Request<ListAuditRequest>,
    ) -> Result<Response<ListAuditResponse>, Status> {
        self.note(&request);
        let entry = AuditEntry {
            time: "2026-03-01T12:00:00Z".into(),
            author: "operator/alice".into(),
            action: "ApplyNetwork".into(),
            object: "network/blue".into(),
            before: r#"{"mtu":1500}"#.into(),
            after: r#"{"mtu":1400}"#.into(),
            reason: "ticket 7".into(),
            ..AuditEntry::default()
        };
        Ok(at_five_past_twelve(ListAuditResponse { entries: vec![entry] }))
    }

    async fn list_events(
        &self,
        request: Request<ListEventsRequest>,
    ) -> Result<Response<ListEventsResponse>, Status> {
        self.note(&request);
        let end = Some(EventCursor { boot: BOOT.into(), revision: 1 });
        let mut listed = ListEventsResponse { events: vec![event(1)], end, ..Default::default() };
        if request.into_inner().filter.is_some_and(|filter| filter.object == FULL_DISK) {
            (listed.dropped, listed.dropped_since) = (3, "2026-03-01T12:00:00Z".into());
        }
        Ok(at_five_past_twelve(listed))
    }

    /// One event per stream, up to the third.
    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let after = request.into_inner().after.unwrap_or_default();
        if after.revision > 2 || after.boot != BOOT {
            return Err(Failure::new(Reason::NotAuthorised, "no more").into());
        }
        Ok(Response::new(tokio_stream::iter(vec![Ok(event(after.revision + 1))])))
    }
}

fn event(sequence: u64) -> Event {
    Event {
        sequence,
        revision: sequence,
        boot: BOOT.into(),
        count: 1,
        time: "2026-03-01T12:00:00Z".into(),
        kind: "AttachmentReserved".into(),
        severity: EventSeverity::Normal.into(),
        subject: ID.into(),
        message: "for web/shop".into(),
        ..Event::default()
    }
}
