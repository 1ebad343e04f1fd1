//! What the plugin process and the agent say to each other: one call per connection. The plugin writes
//! one JSON document and then shuts its half of the socket down; the agent answers with one, and a line
//! feed. While it is at work on a call, it writes a space each second ahead of its document, which JSON
//! takes no notice of: an agent that is suspended writes none, and is not waited for.

mod attachment;
mod calling;
mod report;

use std::{io, net::IpAddr, ops::Not, path::PathBuf, time::Duration};

use netlink::MacAddress;
use nix::time::ClockId;
use offload_proto::{form::HOST_PORT_CONTAINER, v1};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned},
};
use serde_json::{Map, Value};
use traces::TraceParent;
use vf_alloc::{Device, VfPromise};

pub use calling::{COMEBACK, Silent, ask_report, call};
pub use report::{
    CallFailure, CertificateReport, PodReport, Report, SessionReport, VfReport, VfState,
};

/// Longest document that either side accepts, in bytes.
pub const DOCUMENT_LIMIT: u64 = 1024 * 1024;
/// What ends the agent's answer. Older agents end it by shutting their half of the socket down.
pub const END_OF_ANSWER: u8 = b'\n';
/// What an agent at work on a call writes, from when it has read the call.
pub const SIGN_OF_LIFE: &[u8] = b" ";
/// How often.
pub const BEAT: Duration = Duration::from_secs(1);
/// How long a plugin waits for the next sign of life. One that the agent has not come to yet waits for
/// the first, so that this is far more than a beat.
pub const SILENCE: Duration = Duration::from_secs(10);
/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/dpu-offload/agent.sock";

/// A call and how long its caller waits.
#[derive(Debug, Serialize, Deserialize)]
pub struct Call<R = Request> {
    /// Milliseconds until the caller gives up.
    pub deadline_ms: u64,
    /// When it gives up, in nanoseconds on `CLOCK_MONOTONIC`: a call may lie in the socket of an agent
    /// that is suspended until long after. Plugins of before do not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_up_at_ns: Option<u64>,
    /// The span that it is part of. Agents of before pass it over.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "traces::lenient"
    )]
    pub traceparent: Option<TraceParent>,
    /// What is asked for.
    #[serde(flatten)]
    pub request: R,
}

/// What the agent is asked, and in whose words.
#[derive(Debug, Serialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Asked {
    /// By a program in a runtime's own words, which is answered in those: with a [`CniReply`].
    Cni(Box<CniRequest>),
    /// By the plugin.
    #[serde(untagged)]
    Plain(Request),
}

impl<'de> Deserialize<'de> for Asked {
    /// By the verb first, so that what is wrong is told of the call that is meant.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut call = Map::<String, Value>::deserialize(deserializer)?;
        let asked = if is_a_runtimes(&call) {
            call.remove("verb");
            serde_json::from_value(call.into()).map(Self::Cni)
        } else {
            serde_json::from_value(call.into()).map(Self::Plain)
        };
        asked.map_err(de::Error::custom)
    }
}

/// What the agent is asked by its socket.
#[derive(Debug, Serialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Question {
    /// By a person: how all is. Answered with a [`Report`].
    Report,
    /// By a runtime, or the plugin for one.
    #[serde(untagged)]
    Call(Asked),
}

impl<'de> Deserialize<'de> for Question {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let call = Map::<String, Value>::deserialize(deserializer)?;
        if call.get("verb").is_some_and(|verb| verb == "report") {
            return Ok(Self::Report);
        }
        serde_json::from_value(call.into()).map(Self::Call).map_err(de::Error::custom)
    }
}

/// Whether a call, be it well-formed or not, is in a runtime's own words.
pub(crate) fn is_a_runtimes(call: &Map<String, Value>) -> bool {
    call.get("verb").is_some_and(|verb| verb == "cni")
}

/// What a runtime says to a plugin.
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
    /// What a plugin has on standard input.
    pub configuration: Value,
}

/// What a plugin says to a runtime.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CniReply {
    /// It is done, and this is what a plugin prints, if anything.
    Result(Option<Value>),
    /// It is refused, or has failed: the error object.
    Error(Value),
}

/// What the plugin asks the agent for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Request {
    /// Attach a pod to a network.
    Add(Box<AddRequest>),
    /// Take an attachment back.
    Del(DelRequest),
    /// Compare an attachment with the kernel and the DPU.
    Check(CheckRequest),
    /// Take back what is not listed.
    Gc(GcRequest),
    /// Tell whether ADD can be served.
    Status(StatusRequest),
}

/// What names an attachment within this host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// `CNI_CONTAINERID`
    pub container_id: String,
    /// `CNI_IFNAME`
    pub interface_name: String,
}

/// An ADD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddRequest {
    /// The attachment's key.
    pub key: Key,
    /// `CNI_NETNS`
    pub netns: String,
    /// The CNI configuration's name, whose GC the attachment belongs to.
    pub configuration: String,
    /// The DPU's network. Empty: its default one.
    pub network: String,
    /// Whom it serves. Labels, not identities.
    #[serde(default)]
    pub pod: v1::Pod,
    /// A VF that somebody else chose.
    #[serde(default, rename = "pci_address")] // as agents of before read it
    pub device: Option<Device>,
    /// The promised VF that the agent has taken for it.
    #[serde(skip)]
    pub promised: Option<VfPromise>,
    /// A MAC address asked for.
    #[serde(default)]
    pub mac: Option<MacAddress>,
    /// Addresses asked for, each with or without prefix length.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The families of which an address is asked for. `None`: each that the network has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub families: Option<IpFamilies>,
    /// Rate limits asked for.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// Ports of the DPU that shall lead to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<v1::PortMapping>,
    /// Whom the pod asks to send for besides itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_sources: Vec<String>,
    /// Where to write the device-info file.
    #[serde(default)]
    pub device_info_file: Option<String>,
    /// Where its caller has other plugins and their networks. Older agents ignore them.
    #[serde(default, skip_serializing_if = "CallerFolders::is_empty")]
    pub folders: CallerFolders,
    /// Addresses for interfaces of the pod that other plugins make. That is found out by the agent.
    #[serde(skip)]
    pub further_leases: Vec<v1::LeaseRequest>,
    /// What else the pod gets with it, all of it or nothing. A DEL of this one's key takes all back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<FurtherInterface>,
}

/// The folders that a caller names by its environment: what they hold comes before what the agent's own have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallerFolders {
    /// `CNI_PATH`: where its plugins are, in the order in which they are looked through.
    pub plugins: Vec<PathBuf>,
    /// `CNI_CONF_DIR`: where networks are defined.
    pub networks: Option<PathBuf>,
}

impl CallerFolders {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An interface that a pod gets together with that of an ADD, in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FurtherInterface {
    /// Its name.
    pub interface_name: String,
    /// Its place in the list of further ones, where nobody has asked for a name: its network may begin it otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// The DPU's network.
    pub network: String,
    /// A VF that somebody else chose.
    pub device: Option<Device>,
    /// A MAC address asked for.
    pub mac: Option<MacAddress>,
    /// Addresses asked for, each with or without prefix length.
    pub addresses: Vec<String>,
    /// The families of which an address is asked for. `None`: each that the network has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub families: Option<IpFamilies>,
    /// Rate limits asked for.
    pub bandwidth: Bandwidth,
    /// Ports of the DPU that shall lead to this interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<v1::PortMapping>,
    /// Whom the pod asks to send for besides itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_sources: Vec<String>,
    /// The pod's default routes of these gateways' families go by this interface, and by no other of the ADD.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_gateways: Vec<IpAddr>,
}

impl AddRequest {
    /// An ADD of one interface that nothing is wished for, of no CNI configuration and so of nobody's GC.
    #[must_use]
    pub fn plain(key: Key, netns: String, network: String) -> Self {
        Self {
            key,
            netns,
            configuration: String::new(),
            network,
            pod: v1::Pod::default(),
            device: None,
            promised: None,
            mac: None,
            addresses: Vec::new(),
            families: None,
            bandwidth: Bandwidth::default(),
            port_mappings: Vec::new(),
            allowed_sources: Vec::new(),
            device_info_file: None,
            folders: CallerFolders::default(),
            further_leases: Vec::new(),
            further: Vec::new(),
        }
    }

    /// The names of all its interfaces, the leading one first.
    #[must_use]
    pub fn interface_names(&self) -> Vec<String> {
        let further = self.further.iter().map(|further| &further.interface_name);
        [&self.key.interface_name].into_iter().chain(further).cloned().collect()
    }

    /// An ADD for each interface, the leading one first.
    #[must_use]
    pub fn each(&self) -> Vec<Self> {
        let alone = Self { further: Vec::new(), ..self.clone() };
        let further = self.further.iter().map(|further| {
            let FurtherInterface { interface_name, .. } = further.clone();
            Self {
                key: Key { interface_name, ..self.key.clone() },
                network: further.network.clone(),
                device: further.device.clone(),
                mac: further.mac,
                addresses: further.addresses.clone(),
                families: further.families,
                bandwidth: further.bandwidth,
                port_mappings: further.port_mappings.clone(),
                allowed_sources: further.allowed_sources.clone(),
                device_info_file: None,
                further_leases: Vec::new(),
                ..alone.clone()
            }
        });
        let further: Vec<_> = further.collect();
        [alone].into_iter().chain(further).collect()
    }
}

/// The families of which a pod asks for an address on one interface. Neither is no address at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpFamilies {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

/// Whether the attachment has addresses of these families alone, which older programs ignore.
pub(crate) fn has_only(attachment: &v1::Attachment, families: Option<IpFamilies>) -> bool {
    let Some(IpFamilies { ipv4, ipv6 }) = families else { return true };
    let is_asked = |held: &v1::Address| if held.address.contains(':') { ipv6 } else { ipv4 };
    attachment.addresses.iter().all(is_asked)
}

/// Whether the attachment lets its pod send for all of these, which programs of before pass over in silence.
pub(crate) fn lets_send_for(attachment: &v1::Attachment, sources: &[String]) -> bool {
    sources.iter().all(|source| attachment.allowed_sources.contains(source))
}

/// Rate limits as CNI's `bandwidth` capability has them: bits per second and bits. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bandwidth {
    /// Towards the pod.
    pub ingress_rate: u64,
    /// Burst towards the pod.
    pub ingress_burst: u64,
    /// From the pod.
    pub egress_rate: u64,
    /// Burst from the pod.
    pub egress_burst: u64,
}

/// A DEL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelRequest {
    /// The attachment's key.
    pub key: Key,
    /// `CNI_NETNS`; empty: not given.
    #[serde(default)]
    pub netns: String,
}

/// A CHECK.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckRequest {
    /// The attachment's key.
    pub key: Key,
    /// `CNI_NETNS`
    pub netns: String,
    /// The MAC address that the previous result gave the interface.
    #[serde(default)]
    pub mac: Option<String>,
    /// The addresses that the previous result gave the interface, in CIDR notation.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What the previous result says of the pod's other interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Promise>,
    /// There is no previous result: the caller keeps none, and the agent's own record is what was promised.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub by_record: bool,
}

/// What a previous result says of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Its name.
    pub interface_name: String,
    /// Its MAC address, if it is told.
    #[serde(default)]
    pub mac: Option<String>,
    /// Its addresses, in CIDR notation.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The device that it is a function of. `None`: none is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl Promise {
    /// Of an interface of which nothing is told but that it is there.
    #[must_use]
    pub fn of_nothing(key: &Key) -> Self {
        let interface_name = key.interface_name.clone();
        Self { interface_name, mac: None, addresses: Vec::new(), device: None }
    }
}

/// A GC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GcRequest {
    /// The CNI configuration's name: no other's attachments are touched.
    pub configuration: String,
    /// The DPU's network. Empty: its default one.
    pub network: String,
    /// What is still valid.
    pub valid: Vec<Key>,
}

/// A STATUS.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatusRequest {
    /// The further networks that pods get which ask for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Where its caller has other plugins and their networks.
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
        #[serde(with = "attachment")]
        attachment: Box<v1::Attachment>,
        /// Those of the further interfaces, in their order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        further: Vec<v1::Attachment>,
    },
    /// Done.
    Done {
        /// What the caller should know. Older plugins ignore it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// Refused or failed.
    Failed {
        /// The CNI error code.
        code: u32,
        /// One sentence.
        message: String,
        /// `<CODE>: <advice>`
        details: String,
    },
}

impl<R> Call<R> {
    /// A call whose caller waits so long from now on.
    #[must_use]
    pub fn new(patience: Duration, request: R) -> Self {
        let nanoseconds = (monotonic() + patience).as_nanos();
        Self {
            deadline_ms: patience.as_millis().try_into().unwrap_or(u64::MAX),
            gives_up_at_ns: Some(nanoseconds.try_into().unwrap_or(u64::MAX)),
            traceparent: None,
            request,
        }
    }

    /// The same, as part of that span.
    #[must_use]
    pub fn within(self, traceparent: Option<TraceParent>) -> Self {
        Self { traceparent, ..self }
    }

    /// How long the caller of a call that arrived just now waits still.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        let told = Duration::from_millis(self.deadline_ms);
        let until = self.gives_up_at_ns.map(Duration::from_nanos);
        until.map_or(told, |until| told.min(until.saturating_sub(monotonic())))
    }
}

/// The clock that all programs of a host have in common, and that stands still while the host sleeps.
fn monotonic() -> Duration {
    ClockId::CLOCK_MONOTONIC.now().map(Duration::from).unwrap_or_default()
}

/// Decodes one document.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] for an empty one: the peer closed without an answer;
/// [`io::ErrorKind::InvalidData`] for any other that is not of the type.
pub fn decode<T: DeserializeOwned>(document: &[u8]) -> io::Result<T> {
    if document.trim_ascii().is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer"));
    }
    serde_json::from_slice(document)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Key {
    /// The key of the host port of that interface name.
    #[must_use]
    pub fn of_host_port(interface_name: &str) -> Self {
        Self { container_id: HOST_PORT_CONTAINER.into(), interface_name: interface_name.into() }
    }

    /// Whether it is a host port's.
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

    fn within(deadline_ms: u64) -> Call {
        Call {
            deadline_ms,
            gives_up_at_ns: None,
            traceparent: None,
            request: Request::Status(StatusRequest::default()),
        }
    }

    #[test]
    fn an_add_is_written_as_agents_of_before_read_it() {
        let pod = r#"{"namespace":"shop","name":"cart-0","uid":"u"}"#;
        let add = format!(
            r#"{{"key":{{"container_id":"c1","interface_name":"eth0"}},"netns":"/run/netns/a",
                "configuration":"blue","network":"","pod":{pod},"pci_address":"0000:03:00.2"}}"#
        );
        let read: AddRequest = decode(add.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&read.pod).unwrap(), pod);
        assert_eq!(read.device, Some("0000:03:00.2".into()));
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["pci_address"], "0000:03:00.2");
    }

    #[test]
    fn a_pod_may_send_for_all_that_it_asks_for_or_else_for_too_little() {
        let list = |texts: &[&str]| Vec::from_iter(texts.iter().map(|text| (*text).to_owned()));
        let allowed_sources = list(&["00:00:5e:00:01:07", "10.0.0.7/32", "fd07::/64"]);
        let attachment = v1::Attachment { allowed_sources, ..Default::default() };
        assert!(lets_send_for(&attachment, &[]));
        assert!(lets_send_for(&attachment, &list(&["fd07::/64", "00:00:5e:00:01:07"])));
        assert!(!lets_send_for(&attachment, &list(&["10.0.0.8/32"])), "as many, and others");
        assert!(!lets_send_for(&v1::Attachment::default(), &list(&["10.0.0.7/32"])));
    }

    #[test]
    fn plugin_and_agent_of_the_release_before_call_a_vfs_device_otherwise() {
        let device = "0000:03:00.2";
        let vf = Some(v1::Vf { device: device.into(), ..Default::default() });
        let attachment = Box::new(v1::Attachment { vf, ..Default::default() });
        let written =
            serde_json::to_value(Reply::Attached { attachment, further: Vec::new() }).unwrap();
        assert_eq!(written["attachment"]["vf"]["pciAddress"], device);
        assert_eq!(written["attachment"]["vf"]["device"], device);
        let before = br#"{"outcome":"attached","attachment":{"vf":{"pciAddress":"0000:03:00.2"}}}"#;
        let Reply::Attached { attachment, .. } = decode(before).unwrap() else {
            panic!("it is one")
        };
        assert_eq!(attachment.vf.unwrap().device, device);
    }

    #[test]
    fn a_call_is_in_a_runtimes_words_or_in_the_plugins() {
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
    fn a_call_is_part_of_a_trace_or_of_none_but_no_malformed_one() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for verb in
            [r#""verb": "status""#, r#""verb": "cni", "command": "STATUS", "configuration": {}"#]
        {
            let read = |told: &str| {
                let text = format!(r#"{{"deadline_ms": 1, {verb}{told}}}"#);
                decode::<Call<Asked>>(text.as_bytes()).unwrap().traceparent
            };
            assert_eq!(read(&format!(r#", "traceparent": "{good}""#)), TraceParent::parse(good));
            assert_eq!(read(""), None);
            assert_eq!(read(r#", "traceparent": "00-0af7""#), None);
            assert_eq!(read(r#", "traceparent": {"version": 0}"#), None);
        }
        let written = |call: Call| serde_json::to_value(call).unwrap();
        assert_eq!(written(within(1)).get("traceparent"), None, "as agents of before have it");
        let traced = within(1).within(TraceParent::parse(good));
        assert_eq!(written(traced)["traceparent"], good);
    }

    #[test]
    fn what_is_wrong_with_a_call_is_told_of_the_call_that_is_meant() {
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
    fn signs_of_life_are_no_answer() {
        let error = decode::<Reply>(b"  ").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_call_that_lay_somewhere_has_less_time_left() {
        let patience = Duration::from_secs(90);
        let call = Call::new(patience, Request::Status(StatusRequest::default()));
        assert!(call.time_left() <= patience && call.time_left() > patience / 2);
        let of_the_past = Call {
            gives_up_at_ns: Some(1),
            ..Call::new(patience, Request::Status(StatusRequest::default()))
        };
        assert_eq!(of_the_past.time_left(), Duration::ZERO);
        assert_eq!(within(90).time_left(), Duration::from_millis(90));
        let of_another_clock = Call {
            gives_up_at_ns: Some(u64::MAX),
            ..Call::new(patience, Request::Status(StatusRequest::default()))
        };
        assert_eq!(of_another_clock.time_left(), patience);
    }

    #[test]
    fn an_attachment_survives_the_wire() {
        let attachment = v1::Attachment {
            id: "a".into(),
            mac: "02:00:00:00:00:01".into(),
            bandwidth: Some(v1::Bandwidth { egress_rate: u64::MAX, ..Default::default() }),
            ..Default::default()
        };
        let further = vec![v1::Attachment { lead: "eth0".into(), ..attachment.clone() }];
        let reply =
            Reply::Attached { attachment: Box::new(attachment.clone()), further: further.clone() };
        let text = serde_json::to_vec(&reply).unwrap();
        let Reply::Attached { attachment: read, further: others } = decode(&text).unwrap() else {
            panic!("another outcome")
        };
        assert_eq!((*read, others), (attachment, further));
    }

    /// An upgrade replaces plugin and agent one after the other.
    #[test]
    fn what_a_later_agent_adds_is_passed_over() {
        let text = r#"{"outcome": "attached", "later": {"x": 1}, "attachment":
            {"id": "a", "later": {"x": [1]}, "vf": {"device": "p", "later": 1}}}"#;
        let Reply::Attached { attachment, .. } = decode(text.as_bytes()).unwrap() else {
            panic!("another outcome")
        };
        assert_eq!((attachment.id.as_str(), attachment.vf.unwrap().device.as_str()), ("a", "p"));
    }
}
