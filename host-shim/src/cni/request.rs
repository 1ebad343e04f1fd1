//! Converts a CNI call (environment and standard input) to a request to the agent.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{
    config::{Configuration, ValidAttachment},
    environment::{Environment, Verb},
    error::{CniError, code, invalid},
    networks,
    pod_request::PodRequest,
    result::{CniResult, Dns, Interface},
    version::Version,
};
use crate::protocol::{
    AddRequest, CheckRequest, DEFAULT_SOCKET, DelRequest, ExpectedInterface, GcRequest, Key, Reply,
    Request, StatusRequest,
};
use offload_proto::{Failure, Reason, v1::Attachment};

/// How long a DEL of an ended namespace waits for an absent agent, if the configuration allows longer waits.
const MOMENT: Duration = Duration::from_secs(1);

/// A checked call.
#[derive(Debug)]
pub struct Prepared {
    /// The agent's socket.
    pub socket: PathBuf,
    /// How long the agent may take.
    pub timeout: Duration,
    /// How long to wait for an absent agent. `None`: not configured.
    pub agent_return: Option<Duration>,
    /// What the agent is asked.
    pub request: Request,
    /// What an ADD's result contains in addition to the attachment.
    pub base: ResultBase,
}

/// What an ADD's result contains in addition to the attachment.
#[derive(Clone, Debug, Default)]
pub struct ResultBase {
    /// The result of the previous plugin in the chain.
    pub previous: CniResult,
    /// `CNI_NETNS`
    pub sandbox: String,
    /// Resolver settings that the pod asks for.
    pub dns: Option<Dns>,
    /// Whether the result has only the first interface's addresses.
    pub only_pod_addresses: bool,
}

impl ResultBase {
    /// Converts the agent's reply to the answer for the runtime. `None`: success without output.
    ///
    /// # Errors
    /// The agent's refusal or failure.
    pub fn answer(self, version: Version, reply: Reply) -> Result<Option<Value>, CniError> {
        match reply {
            Reply::Attached { attachment, further } => {
                Ok(Some(self.result(&attachment, &further).render(version)))
            }
            Reply::Done { .. } => Ok(None),
            Reply::Failed { code, message, details } => Err(CniError { code, message, details }),
        }
    }

    fn result(self, attachment: &Attachment, further: &[Attachment]) -> CniResult {
        let Self { previous, sandbox, dns, only_pod_addresses } = self;
        let first = previous.with_attachment(attachment, &sandbox, dns);
        further.iter().fold(first, |result, attachment| match only_pod_addresses {
            true => result.with_interface(attachment, &sandbox),
            false => result.with_attachment(attachment, &sandbox, Some(Dns::default())),
        })
    }
}

/// The configuration on standard input.
#[derive(Debug)]
pub struct Document {
    configuration: Configuration,
    /// Whether the caller keeps the results of its ADDs: its CHECK then needs one.
    pub keeps_results: bool,
    /// The version of the configuration, which the answer follows.
    pub version: Version,
}

impl Document {
    /// Reads the configuration.
    ///
    /// # Errors
    /// As [`Configuration::read`] and [`Configuration::version`].
    pub fn read(input: impl Read) -> Result<Self, CniError> {
        let configuration = Configuration::read(input)?;
        let version = configuration.version()?;
        Ok(Self { configuration, keeps_results: true, version })
    }
}

/// Converts a call to a request to the agent.
///
/// # Errors
/// The call is invalid, or asks for something that the plugin cannot serve.
pub fn prepare(
    verb: Verb,
    environment: &Environment,
    document: Document,
) -> Result<Prepared, CniError> {
    check_verb_allowed(verb, document.version)?;
    let Document { configuration, keeps_results, .. } = document;
    let socket = PathBuf::from(configuration.agent_socket.as_deref().unwrap_or(DEFAULT_SOCKET));
    let agent_return = agent_return(verb, environment, &configuration);
    let mut base = ResultBase::default();
    let request = match verb {
        Verb::Add => {
            let (request, its_base) = add(environment, &configuration)?;
            base = its_base;
            Request::Add(request.into())
        }
        // The configuration is ignored: a DEL must succeed whatever it says.
        Verb::Del => {
            Request::Del(DelRequest { key: key(environment), netns: environment.netns.clone() })
        }
        Verb::Check if !keeps_results && configuration.prev_result.is_none() => {
            let (key, netns) = (key(environment), environment.netns.clone());
            Request::Check(CheckRequest { key, netns, by_record: true, ..CheckRequest::default() })
        }
        Verb::Check => Request::Check(check(environment, &configuration)?),
        Verb::Gc => Request::Gc(gc(configuration)?),
        Verb::Status | Verb::Version => {
            let networks = networks::named_in(&configuration)?;
            Request::Status(StatusRequest { networks, folders: environment.folders() })
        }
    };
    Ok(Prepared { socket, timeout: call_timeout(verb), agent_return, request, base })
}

/// How long to wait for an absent agent. `None`: not configured. A DEL of an ended namespace waits briefly: the
/// agent releases such attachments by itself. The kubelet removes pods one after the other, and the agent's own old pod
/// may be among them: it must go before the next agent starts.
fn agent_return(
    verb: Verb,
    environment: &Environment,
    configuration: &Configuration,
) -> Option<Duration> {
    let configured = configuration.agent_return_seconds.map(Duration::from_secs);
    match verb {
        Verb::Del if has_ended(&environment.netns) => configured.map(|it| it.min(MOMENT)),
        _ => configured,
    }
}

/// Whether a pod's namespace has ended. Runtimes then pass an empty path or the old one.
fn has_ended(netns: &str) -> bool {
    netns.is_empty() || matches!(Path::new(netns).try_exists(), Ok(false))
}

/// How long the agent may take: less than the shortest known timeout of a runtime.
#[must_use]
pub const fn call_timeout(verb: Verb) -> Duration {
    Duration::from_secs(match verb {
        Verb::Add => 90,
        Verb::Del => 50,
        Verb::Check => 20,
        Verb::Gc => 25,
        // Of these, 5 s are for an agent that restarts.
        Verb::Status | Verb::Version => 7,
    })
}

fn check_verb_allowed(verb: Verb, version: Version) -> Result<(), CniError> {
    let since = match verb {
        Verb::Check => Version::V0_4_0,
        Verb::Gc | Verb::Status => Version::V1_1_0,
        Verb::Add | Verb::Del | Verb::Version => return Ok(()),
    };
    if version >= since {
        return Ok(());
    }
    let message = format!("config version {} does not allow {}", version.as_str(), verb.as_str());
    Err(CniError::new(code::INCOMPATIBLE_VERSION, message).with_details(format!(
        "{} exists since {}",
        verb.as_str(),
        since.as_str()
    )))
}

fn key(environment: &Environment) -> Key {
    Key {
        container_id: environment.container_id.clone(),
        interface_name: environment.interface_name.clone(),
    }
}

fn add(
    environment: &Environment,
    configuration: &Configuration,
) -> Result<(AddRequest, ResultBase), CniError> {
    refuse_own_netns(environment)?;
    let pod_request = PodRequest::gather(environment, configuration)?;
    let further = networks::further(environment, configuration, &pod_request)?;
    let previous = configuration.prev_result.as_ref().map(CniResult::read).transpose()?;
    let base = ResultBase {
        previous: previous.unwrap_or_default(),
        sandbox: environment.netns.clone(),
        dns: pod_request.dns,
        only_pod_addresses: configuration.only_pod_addresses,
    };
    let request = AddRequest {
        key: key(environment),
        netns: environment.netns.clone(),
        configuration: configuration.name.clone(),
        pod: pod_request.pod,
        interface: pod_request.interface,
        device_info_file: pod_request.device_info_file,
        folders: environment.folders(),
        further,
        ..AddRequest::default()
    };
    Ok((request, base))
}

fn refuse_own_netns(environment: &Environment) -> Result<(), CniError> {
    // By device and inode, because one namespace has many paths.
    let identity = |path: &str| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let own = identity("/proc/self/ns/net");
    if environment.allows_own_netns() || own.is_none() || identity(&environment.netns) != own {
        return Ok(());
    }
    let message = "plugin's netns and netns from CNI_NETNS should not be the same";
    Err(CniError::new(code::INVALID_NETNS, message))
}

fn check(
    environment: &Environment,
    configuration: &Configuration,
) -> Result<CheckRequest, CniError> {
    let previous = configuration.prev_result.as_ref().ok_or_else(|| {
        let message = "required prevResult missing: a runtime puts ADD's result into the \
                       configuration that it passes to CHECK";
        invalid(message)
    })?;
    let mut expected_interfaces =
        expected_interfaces(&environment.netns, &CniResult::read(previous)?);
    let name = &environment.interface_name;
    let own = expected_interfaces.iter().position(|it| it.interface_name == *name);
    let own = own.ok_or_else(|| {
        let message = format!("prevResult has no interface {name} in {}", environment.netns);
        Failure::new(Reason::CheckFailed, message)
    })?;
    let own = expected_interfaces.remove(own);
    Ok(CheckRequest {
        key: key(environment),
        netns: environment.netns.clone(),
        mac: own.mac,
        addresses: own.addresses,
        others: expected_interfaces,
        by_record: false,
    })
}

/// The interfaces in the pod that the previous result lists, whichever plugin created them.
fn expected_interfaces(netns: &str, result: &CniResult) -> Vec<ExpectedInterface> {
    let numbered = result.interfaces.iter().enumerate();
    let in_pod = numbered.filter(|(_, interface)| interface.sandbox == netns);
    let expected = |(number, interface): (usize, &Interface)| {
        let own = result.ips.iter().filter(|address| address.interface == Some(number));
        ExpectedInterface {
            interface_name: interface.name.clone(),
            mac: Some(interface.mac.clone()).filter(|mac| !mac.is_empty()),
            addresses: own.map(|address| address.address.clone()).collect(),
            device: Some(interface.pci_id.clone()).filter(|device| !device.is_empty()),
        }
    };
    in_pod.map(expected).collect()
}

fn gc(configuration: Configuration) -> Result<GcRequest, CniError> {
    let network = configuration.network();
    let lists = [configuration.valid_attachments, configuration.attachments];
    if lists.iter().all(Option::is_none) {
        let message = "GC needs cni.dev/valid-attachments, and the configuration has none; \
                       nothing was released";
        return Err(invalid(message));
    }
    let listed = lists.into_iter().flatten().flatten();
    let valid = listed.map(|ValidAttachment { container_id, ifname }| Key {
        container_id,
        interface_name: ifname,
    });
    // Runtimes may pass the same attachment in both lists.
    let valid: BTreeSet<_> = valid.collect();
    Ok(GcRequest { configuration: configuration.name, network, valid: valid.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use offload_proto::v1;
    use serde_json::json;

    use super::*;

    fn gc(lists: &Value) -> Result<Vec<Key>, CniError> {
        let mut document = json!({"cniVersion": "1.1.0", "name": "n", "type": "host-shim"});
        document.as_object_mut().unwrap().extend(lists.as_object().unwrap().clone());
        let document = Document::read(document.to_string().as_bytes())?;
        let Request::Gc(request) = prepare(Verb::Gc, &Environment::default(), document)?.request
        else {
            panic!("no GC")
        };
        Ok(request.valid)
    }

    /// CRI-O's libcni prints an empty list as null.
    #[test]
    fn absent_gc_list_is_refused() {
        let both = json!({"cni.dev/valid-attachments": null, "cni.dev/attachments": null});
        assert_eq!(gc(&both), Ok(vec![]));
        assert_eq!(gc(&json!({"cni.dev/valid-attachments": null})), Ok(vec![]));
        assert_eq!(gc(&json!({"cni.dev/attachments": []})), Ok(vec![]));
        assert_eq!(gc(&json!({})).unwrap_err().code, code::INVALID_CONFIGURATION);
    }

    #[test]
    fn gc_keeps_attachments_of_either_list() {
        let list = |id: &str| json!([{"containerID": id, "ifname": "eth0"}]);
        let key = |id: &str| Key { container_id: id.into(), interface_name: "eth0".into() };
        let lists = |new: Value, old: Value| {
            gc(&json!({"cni.dev/valid-attachments": new, "cni.dev/attachments": old}))
        };
        assert_eq!(lists(list("a"), list("a")), Ok(vec![key("a")]));
        assert_eq!(lists(Value::Null, list("b")), Ok(vec![key("b")]));
        assert_eq!(lists(list("a"), list("b")), Ok(vec![key("a"), key("b")]));
    }

    /// An attachment with an address in a subnet of its own.
    fn attachment(interface: &str, address: &str) -> Attachment {
        let interface_name = interface.to_owned();
        let address = v1::Address { address: address.into(), ..Default::default() };
        Attachment {
            key: Some(v1::AttachmentKey { interface_name, ..Default::default() }),
            addresses: vec![address],
            ..Default::default()
        }
    }

    #[test]
    fn result_can_omit_further_interfaces_addresses() {
        let first = attachment("eth0", "10.1.0.5/16");
        let further = [attachment("net1", "10.2.0.5/24")];
        for (only_pod_addresses, expected) in
            [(false, &["10.1.0.5/16", "10.2.0.5/24"][..]), (true, &["10.1.0.5/16"])]
        {
            let base = ResultBase { only_pod_addresses, ..ResultBase::default() };
            let result = base.result(&first, &further).render(Version::V1_1_0);
            let names = result["interfaces"].as_array().unwrap().iter().map(|it| &it["name"]);
            assert!(names.eq(["eth0", "net1"]), "{result}");
            let addresses = result["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]);
            assert!(addresses.eq(expected), "{result}");
        }
    }
}
