//! The protocol between plugin and agent: one call per connection to the agent's Unix socket.
//!
//! The plugin writes one JSON document and shuts down its half of the connection. The agent answers with one JSON
//! document and a line feed. Until then it writes a space every second, which JSON ignores. A suspended agent writes
//! none, so that the plugin stops waiting.

mod calling;
mod report;

use std::{io, net::IpAddr, ops::Not, path::PathBuf, time::Duration};

use model::InterfaceRequest;
use nix::time::ClockId;
use offload_proto::{form::HOST_PORT_CONTAINER, v1};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned},
};
use serde_json::{Map, Value};
use traces::TraceParent;
use vf_alloc::VfOffer;

pub use calling::{AGENT_RETURN_TIMEOUT, Silent, ask_report, call};
pub use report::{
    CallFailure, CertificateReport, PodReport, Report, SessionReport, VfReport, VfState,
};

/// The longest document that either side accepts, in bytes.
pub const DOCUMENT_LIMIT: u64 = 1024 * 1024;
/// The byte that ends the agent's answer.
pub const END_OF_ANSWER: u8 = b'\n';
/// The byte that the agent writes periodically while it works on a call.
pub const HEARTBEAT: &[u8] = b" ";
/// The interval between heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a plugin waits for a heartbeat. A call that is queued in the agent gets none, so this is much longer than
/// the interval.
pub const SILENCE: Duration = Duration::from_secs(10);
/// The agent's socket unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/dpu-offload/agent.sock";

/// A call with its caller's deadline.
#[derive(Debug, Serialize, Deserialize)]
pub struct Call<R = Request> {
    /// Milliseconds until the caller gives up.
    pub deadline_ms: u64,
    /// When the caller gives up, in nanoseconds of `CLOCK_MONOTONIC`: a call may wait for long in the socket of a
    /// suspended agent. Callers may leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_up_at_ns: Option<u64>,
    /// The caller's span.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "traces::lenient"
    )]
    pub traceparent: Option<TraceParent>,
    /// The request.
    #[serde(flatten)]
    pub request: R,
}

/// What the agent is asked on its socket.
#[derive(Debug, Serialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Asked {
    /// A report for a person, answered with a [`Report`].
    Report,
    /// A CNI call as a runtime makes it, answered with a [`CniReply`].
    Cni(Box<CniRequest>),
    /// A request of the plugin, answered with a [`Reply`].
    #[serde(untagged)]
    Plain(Request),
}

impl<'de> Deserialize<'de> for Asked {
    /// Reads the verb first, so that an error names what is wrong with that kind of call.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut call = Map::<String, Value>::deserialize(deserializer)?;
        let asked = match call.get("verb").and_then(Value::as_str) {
            Some("report") => return Ok(Self::Report),
            Some("cni") => {
                call.remove("verb");
                serde_json::from_value(call.into()).map(Self::Cni)
            }
            _ => serde_json::from_value(call.into()).map(Self::Plain),
        };
        asked.map_err(de::Error::custom)
    }
}

/// A CNI call as a runtime makes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CniRequest {
    /// `CNI_COMMAND`
    pub command: String,
    /// `CNI_CONTAINERID`
    #[serde(default)]
    pub container_id: String,
    /// `CNI_NETNS`
    #[serde(default)]
    pub netns: String,
    /// `CNI_IFNAME`
    #[serde(default)]
    pub interface_name: String,
    /// `CNI_ARGS`
    #[serde(default)]
    pub args: String,
    /// The network configuration, which a plugin gets on standard input.
    pub configuration: Value,
}

/// The answer to a [`CniRequest`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CniReply {
    /// Success, with what a plugin prints.
    Result(Option<Value>),
    /// Failure, with the CNI error object.
    Error(Value),
}

/// What the plugin asks of the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Request {
    /// Attach a pod to a network.
    Add(Box<AddRequest>),
    /// Detach a pod from a network.
    Del(DelRequest),
    /// Compare an attachment with the kernel and the DPU.
    Check(CheckRequest),
    /// Detach all attachments that are not listed.
    Gc(GcRequest),
    /// Report whether an ADD can be served.
    Status(StatusRequest),
}

impl Request {
    /// The attachment that the request names.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Add(add) => Some(&add.key),
            Self::Del(DelRequest { key, .. }) | Self::Check(CheckRequest { key, .. }) => Some(key),
            Self::Gc(_) | Self::Status(_) => None,
        }
    }
}

/// The key of an attachment on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// `CNI_CONTAINERID`
    pub container_id: String,
    /// `CNI_IFNAME`
    pub interface_name: String,
}

/// An ADD.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRequest {
    /// The attachment's key.
    pub key: Key,
    /// `CNI_NETNS`
    pub netns: String,
    /// The CNI configuration's name: its GC applies to the attachment.
    pub configuration: String,
    /// The pod. Labels, not identities.
    #[serde(default)]
    pub pod: v1::Pod,
    /// What the pod requests.
    pub interface: InterfaceRequest,
    /// The VF offer that the agent uses for this ADD.
    #[serde(skip)]
    pub offered: Option<VfOffer>,
    /// The path of the device-info file to write.
    #[serde(default)]
    pub device_info_file: Option<String>,
    /// Where the caller has other plugins and their networks.
    #[serde(default, skip_serializing_if = "CallerFolders::is_empty")]
    pub folders: CallerFolders,
    /// Addresses to lease for interfaces that other plugins create; the agent fills this in.
    #[serde(skip)]
    pub further_leases: Vec<v1::LeaseRequest>,
    /// Further interfaces of the pod: all or none is created. A DEL of `key` removes them too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<FurtherInterface>,
}

/// Folders from the caller's environment. They precede those of the agent's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallerFolders {
    /// `CNI_PATH`: the plugins' folders, in search order.
    pub plugins: Vec<PathBuf>,
    /// `CNI_CONF_DIR`: the folder of network configurations.
    pub networks: Option<PathBuf>,
}

impl CallerFolders {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An interface that a pod gets in the same ADD, in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FurtherInterface {
    /// The interface's name in the pod.
    pub interface_name: String,
    /// The interface's number in the list, if the pod asks for no name: its network may set another prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// What the pod requests.
    pub interface: InterfaceRequest,
    /// Gateways of the pod's default routes. Their families' default routes use this interface and no other of the ADD.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_gateways: Vec<IpAddr>,
}

impl AddRequest {
    /// An ADD of one interface without further requests. It belongs to no CNI configuration, and so to no GC.
    #[must_use]
    pub fn plain(key: Key, netns: String, network: String) -> Self {
        let interface = InterfaceRequest { network, ..InterfaceRequest::default() };
        Self { key, netns, interface, ..Self::default() }
    }

    /// The names of all interfaces; that of `key` is first.
    #[must_use]
    pub fn interface_names(&self) -> Vec<String> {
        let further = self.further.iter().map(|further| &further.interface_name);
        [&self.key.interface_name].into_iter().chain(further).cloned().collect()
    }

    /// One ADD for each interface; that of `key` is first.
    #[must_use]
    pub fn each(&self) -> Vec<Self> {
        let alone = Self { further: Vec::new(), ..self.clone() };
        let further = self.further.iter().map(|further| Self {
            key: Key { interface_name: further.interface_name.clone(), ..self.key.clone() },
            interface: further.interface.clone(),
            device_info_file: None,
            further_leases: Vec::new(),
            ..alone.clone()
        });
        [alone.clone()].into_iter().chain(further).collect()
    }
}

/// A DEL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelRequest {
    /// The attachment's key.
    pub key: Key,
    /// `CNI_NETNS`. Empty: not given.
    #[serde(default)]
    pub netns: String,
}

/// A CHECK.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckRequest {
    /// The attachment's key.
    pub key: Key,
    /// `CNI_NETNS`
    pub netns: String,
    /// The MAC address in the previous result.
    #[serde(default)]
    pub mac: Option<String>,
    /// The addresses in the previous result, in CIDR notation.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The pod's other interfaces in the previous result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ExpectedInterface>,
    /// Compare with the agent's own record: the caller keeps no previous result.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub by_record: bool,
}

/// An interface of a previous result, to be compared with the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedInterface {
    /// The interface's name.
    pub interface_name: String,
    /// The MAC address, if the result has one.
    #[serde(default)]
    pub mac: Option<String>,
    /// The addresses, in CIDR notation.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The PCI address, if the result has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl ExpectedInterface {
    /// Expects only that the interface exists.
    #[must_use]
    pub fn of_nothing(key: &Key) -> Self {
        Self { interface_name: key.interface_name.clone(), ..Self::default() }
    }
}

/// A GC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GcRequest {
    /// The CNI configuration's name. Attachments of other configurations stay.
    pub configuration: String,
    /// The DPU's network. Empty: the DPU's default network.
    pub network: String,
    /// The attachments that stay.
    pub valid: Vec<Key>,
}

/// A STATUS.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatusRequest {
    /// The further networks of pods that ask for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Where the caller has other plugins and their networks.
    #[serde(default, skip_serializing_if = "CallerFolders::is_empty")]
    pub folders: CallerFolders,
}

/// The agent's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Reply {
    /// The pod has its interface.
    Attached {
        /// The attachment.
        attachment: Box<v1::Attachment>,
        /// The attachments of the further interfaces, in the request's order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        further: Vec<v1::Attachment>,
    },
    /// Success without a result.
    Done {
        /// A warning for the runtime's log.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// The call was refused or failed.
    Failed {
        /// The CNI error code.
        code: u32,
        /// One sentence: what failed, on what, why.
        message: String,
        /// `<CODE>: <advice>`
        details: String,
    },
}

impl<R> Call<R> {
    /// A call whose caller waits for `timeout` from now on.
    #[must_use]
    pub fn new(timeout: Duration, request: R) -> Self {
        let nanoseconds = (monotonic() + timeout).as_nanos();
        Self {
            deadline_ms: timeout.as_millis().try_into().unwrap_or(u64::MAX),
            gives_up_at_ns: Some(nanoseconds.try_into().unwrap_or(u64::MAX)),
            traceparent: None,
            request,
        }
    }

    /// Marks the call as part of a span.
    #[must_use]
    pub fn within(self, traceparent: Option<TraceParent>) -> Self {
        Self { traceparent, ..self }
    }

    /// How long the caller of a call that arrived now still waits.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        let relative = Duration::from_millis(self.deadline_ms);
        // Read late from a suspended agent's socket, the relative deadline would start again.
        let until = self.gives_up_at_ns.map(Duration::from_nanos);
        until.map_or(relative, |until| relative.min(until.saturating_sub(monotonic())))
    }
}

/// The clock that all processes of the host share. It stands still while the host is suspended.
fn monotonic() -> Duration {
    ClockId::CLOCK_MONOTONIC.now().map(Duration::from).unwrap_or_default()
}

/// Decodes one document.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`]: the document is empty, the peer closed without an answer.
/// [`io::ErrorKind::InvalidData`]: it is not of the type.
pub fn decode<T: DeserializeOwned>(document: &[u8]) -> io::Result<T> {
    if document.trim_ascii().is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer"));
    }
    serde_json::from_slice(document)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Key {
    /// The key of the host port with that interface name.
    #[must_use]
    pub fn of_host_port(interface_name: &str) -> Self {
        Self { container_id: HOST_PORT_CONTAINER.into(), interface_name: interface_name.into() }
    }

    /// Whether this is the key of a host port.
    #[must_use]
    pub fn is_of_host_port(&self) -> bool {
        self.container_id == HOST_PORT_CONTAINER
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.container_id, self.interface_name)
    }
}

impl From<Key> for v1::AttachmentKey {
    fn from(key: Key) -> Self {
        Self { container_id: key.container_id, interface_name: key.interface_name }
    }
}

impl From<v1::AttachmentKey> for Key {
    fn from(key: v1::AttachmentKey) -> Self {
        Self { container_id: key.container_id, interface_name: key.interface_name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A STATUS without an absolute deadline.
    pub(super) fn within(deadline_ms: u64) -> Call {
        Call {
            deadline_ms,
            gives_up_at_ns: None,
            traceparent: None,
            request: Request::Status(StatusRequest::default()),
        }
    }

    #[test]
    fn call_is_cni_or_plain() {
        let asked = |text: &str| decode::<Call<Asked>>(text.as_bytes()).unwrap().request;
        let cni = asked(
            r#"{"deadline_ms": 1, "verb": "cni", "command": "DEL", "container_id": "c",
                "configuration": {"name": "blue"}}"#,
        );
        let Asked::Cni(cni) = cni else { panic!("it is in a runtime's") };
        assert_eq!((cni.command.as_str(), cni.container_id.as_str()), ("DEL", "c"));
        assert_eq!(cni.configuration["name"], "blue");
        let plain = asked(r#"{"deadline_ms": 1, "verb": "status"}"#);
        assert!(matches!(plain, Asked::Plain(Request::Status(_))));
    }

    #[test]
    fn malformed_traceparent_is_ignored() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for verb in
            [r#""verb": "status""#, r#""verb": "cni", "command": "STATUS", "configuration": {}"#]
        {
            let read = |rest: &str| {
                let text = format!(r#"{{"deadline_ms": 1, {verb}{rest}}}"#);
                decode::<Call<Asked>>(text.as_bytes()).unwrap().traceparent
            };
            assert_eq!(read(&format!(r#", "traceparent": "{good}""#)), TraceParent::parse(good));
            assert_eq!(read(""), None);
            assert_eq!(read(r#", "traceparent": "00-0af7""#), None);
            assert_eq!(read(r#", "traceparent": {"version": 0}"#), None);
        }
        let written = |call: Call| serde_json::to_value(call).unwrap();
        assert_eq!(written(within(1)).get("traceparent"), None, "an absent span is not written");
        let traced = within(1).within(TraceParent::parse(good));
        assert_eq!(written(traced)["traceparent"], good);
    }

    #[test]
    fn decode_error_names_the_fields_of_its_verb() {
        for (text, why) in [
            (r#"{"deadline_ms": 1, "verb": "cni", "command": "DEL"}"#, "`configuration`"),
            (r#"{"deadline_ms": 1, "verb": "cni", "configuration": {}, "command": 5}"#, "5"),
            (
                r#"{"deadline_ms": 1, "verb": "cni", "command": "DEL", "configuration": {}, "path": ""}"#,
                "unknown field `path`",
            ),
            (r#"{"verb": "cni", "command": "DEL", "configuration": {}}"#, "`deadline_ms`"),
            (r#"{"deadline_ms": 1, "verb": "del"}"#, "`key`"),
            (r#"{"deadline_ms": 1, "verb": "update"}"#, "unknown variant `update`"),
        ] {
            let error = decode::<Call<Asked>>(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn heartbeats_are_no_answer() {
        let error = decode::<Reply>(b"  ").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn queued_call_has_less_time_left() {
        let timeout = Duration::from_secs(90);
        let call = Call::new(timeout, Request::Status(StatusRequest::default()));
        assert!(call.time_left() <= timeout && call.time_left() > timeout / 2);
        let of_the_past = Call { gives_up_at_ns: Some(1), ..within(90) };
        assert_eq!(of_the_past.time_left(), Duration::ZERO);
        assert_eq!(within(90).time_left(), Duration::from_millis(90));
        let of_another_clock = Call { gives_up_at_ns: Some(u64::MAX), ..within(90_000) };
        assert_eq!(of_another_clock.time_left(), timeout);
    }

    #[test]
    fn attachment_survives_plugin_protocol() {
        let attachment = v1::Attachment {
            id: "a".into(),
            mac: "02:00:00:00:00:01".into(),
            bandwidth: Some(v1::Bandwidth { egress_rate: u64::MAX, ..Default::default() }),
            ..Default::default()
        };
        let further = vec![v1::Attachment { group_interface: "eth0".into(), ..attachment.clone() }];
        let reply =
            Reply::Attached { attachment: Box::new(attachment.clone()), further: further.clone() };
        let text = serde_json::to_vec(&reply).unwrap();
        let Reply::Attached { attachment: read, further: others } = decode(&text).unwrap() else {
            panic!("another outcome")
        };
        assert_eq!((*read, others), (attachment, further));
    }

    /// Plugin and agent are upgraded one after the other.
    #[test]
    fn fields_of_later_agents_are_ignored() {
        let text = r#"{"outcome": "attached", "later": {"x": 1}, "attachment":
            {"id": "a", "later": {"x": [1]}, "vf": {"device": "p", "later": 1}}}"#;
        let Reply::Attached { attachment, .. } = decode(text.as_bytes()).unwrap() else {
            panic!("another outcome")
        };
        assert_eq!((attachment.id.as_str(), attachment.vf.unwrap().device.as_str()), ("a", "p"));
    }
}
