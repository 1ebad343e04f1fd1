//! A runtime's call, from environment and standard input to what the agent is asked.

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
    error::{CniError, code, details},
    networks,
    result::{CniResult, Dns, Interface},
    version::Version,
    wishes::Wishes,
};
use crate::protocol::{
    AddRequest, CheckRequest, DEFAULT_SOCKET, DelRequest, GcRequest, Key, Promise, Reply, Request,
    StatusRequest,
};
use offload_proto::{Reason, v1::Attachment};

/// How long a DEL of a namespace that has ended looks for an agent, where the configuration has others look longer.
const MOMENT: Duration = Duration::from_secs(1);

/// A call that was found to be in order.
#[derive(Debug)]
pub struct Prepared {
    /// The agent's socket.
    pub socket: PathBuf,
    /// How long the agent may take.
    pub patience: Duration,
    /// How long it may be away, if the configuration says so.
    pub comeback: Option<Duration>,
    /// What the agent is asked.
    pub request: Request,
    /// What the answer to an ADD is made of besides the attachment.
    pub base: ResultBase,
}

/// What an ADD's result is made of besides the attachment.
#[derive(Clone, Debug, Default)]
pub struct ResultBase {
    /// The result of the plugin before.
    pub previous: CniResult,
    /// `CNI_NETNS`
    pub sandbox: String,
    /// Resolver settings that the pod asked for.
    pub dns: Option<Dns>,
    /// The result tells the addresses of the first interface only.
    pub only_pod_addresses: bool,
}

impl ResultBase {
    /// What the runtime is told of the agent's reply. `None`: success that needs no words.
    ///
    /// # Errors
    /// Why the agent has not done it.
    pub fn answer(self, version: Version, reply: Reply) -> Result<Option<Value>, CniError> {
        match reply {
            Reply::Attached { attachment, further } => {
                Ok(Some(self.result(&attachment, &further).render(version)))
            }
            Reply::Done { .. } => Ok(None),
            Reply::Failed { code, message, details } => Err(CniError { code, message, details }),
        }
    }

    /// The result of an ADD.
    fn result(self, attachment: &Attachment, further: &[Attachment]) -> CniResult {
        let Self { previous, sandbox, dns, only_pod_addresses } = self;
        let first = previous.with_attachment(attachment, &sandbox, dns);
        further.iter().fold(first, |result, attachment| match only_pod_addresses {
            true => result.with_interface(attachment, &sandbox),
            false => result.with_attachment(attachment, &sandbox, Some(Dns::default())),
        })
    }
}

/// The configuration on standard input and the version that answers follow.
#[derive(Debug)]
pub struct Document {
    configuration: Configuration,
    /// Whether the caller keeps the results of its ADDs.
    keeps_results: bool,
    /// The version that the configuration and the answer follow.
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

    /// Reads that of a caller that may have kept no result, without which a runtime's CHECK is refused.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of_forgetful(input: impl Read) -> Result<Self, CniError> {
        Self::read(input).map(|document| Self { keeps_results: false, ..document })
    }
}

/// Turns a call into what the agent is asked.
///
/// # Errors
/// Why the call is not in order.
pub fn prepare(
    verb: Verb,
    environment: &Environment,
    document: Document,
) -> Result<Prepared, CniError> {
    check_verb_allowed(verb, document.version)?;
    let Document { configuration, keeps_results, .. } = document;
    let socket = PathBuf::from(configuration.agent_socket.as_deref().unwrap_or(DEFAULT_SOCKET));
    let comeback = comeback(verb, environment, &configuration);
    let mut base = ResultBase::default();
    let request = match verb {
        Verb::Add => {
            let (request, its_base) = add(environment, &configuration)?;
            base = its_base;
            Request::Add(request.into())
        }
        // Nothing of the configuration: a DEL must succeed whatever became of it.
        Verb::Del => {
            Request::Del(DelRequest { key: key(environment), netns: environment.netns.clone() })
        }
        Verb::Check if !keeps_results && configuration.prev_result.is_none() => {
            Request::Check(check_by_record(environment))
        }
        Verb::Check => Request::Check(check(environment, &configuration)?),
        Verb::Gc => Request::Gc(gc(configuration)?),
        Verb::Status | Verb::Version => {
            let networks = networks::named_in(&configuration)?;
            Request::Status(StatusRequest { networks, folders: environment.folders() })
        }
    };
    Ok(Prepared { socket, patience: patience(verb), comeback, request, base })
}

/// For how long an agent that is away is looked for, if the configuration says so. A DEL of a namespace that has ended
/// waits for a moment only: the agent takes care of what was there by itself, and whoever removes what is left of many
/// pods calls again. The kubelet does that one after the other, the agent's own pod among them, which has to go before
/// the next agent's pod comes.
fn comeback(
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

/// Whether a pod's namespace is there no more: runtimes then leave its path out, or say where it was.
fn has_ended(netns: &str) -> bool {
    netns.is_empty() || matches!(Path::new(netns).try_exists(), Ok(false))
}

/// How long the agent may take: less than the shortest limit of a runtime that is known.
#[must_use]
pub const fn patience(verb: Verb) -> Duration {
    Duration::from_secs(match verb {
        Verb::Add => 90,
        Verb::Del => 50,
        Verb::Check => 20,
        Verb::Gc => 25,
        // Five of them for an agent that is being replaced.
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
    let wishes = Wishes::gather(environment, configuration)?;
    let further = networks::further(environment, configuration, &wishes)?;
    let previous = configuration.prev_result.as_ref().map(CniResult::read).transpose()?;
    let base = ResultBase {
        previous: previous.unwrap_or_default(),
        sandbox: environment.netns.clone(),
        dns: wishes.dns,
        only_pod_addresses: configuration.only_pod_addresses,
    };
    let request = AddRequest {
        key: key(environment),
        netns: environment.netns.clone(),
        configuration: configuration.name.clone(),
        network: wishes.network.unwrap_or_else(|| configuration.network()),
        pod: wishes.pod,
        device: wishes.device,
        promised: None,
        mac: wishes.mac,
        addresses: wishes.addresses,
        families: wishes.families,
        bandwidth: wishes.bandwidth,
        port_mappings: wishes.port_mappings,
        allowed_sources: wishes.allowed_sources.into_iter().collect(),
        device_info_file: wishes.device_info_file,
        folders: environment.folders(),
        further_leases: Vec::new(),
        further,
    };
    Ok((request, base))
}

fn refuse_own_netns(environment: &Environment) -> Result<(), CniError> {
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
        CniError::new(code::INVALID_CONFIGURATION, message)
    })?;
    let mut promises = promises(&environment.netns, &CniResult::read(previous)?);
    let own = promises.iter().position(|it| it.interface_name == environment.interface_name);
    let own = promises.remove(own.ok_or_else(|| not_promised(environment))?);
    Ok(CheckRequest {
        key: key(environment),
        netns: environment.netns.clone(),
        mac: own.mac,
        addresses: own.addresses,
        others: promises,
        by_record: false,
    })
}

fn check_by_record(environment: &Environment) -> CheckRequest {
    CheckRequest {
        key: key(environment),
        netns: environment.netns.clone(),
        mac: None,
        addresses: Vec::new(),
        others: Vec::new(),
        by_record: true,
    }
}

/// What the previous result says of the interfaces in the pod, whosoever they are.
fn promises(netns: &str, result: &CniResult) -> Vec<Promise> {
    let numbered = result.interfaces.iter().enumerate();
    let in_pod = numbered.filter(|(_, interface)| interface.sandbox == netns);
    let promise = |(number, interface): (usize, &Interface)| {
        let own = result.ips.iter().filter(|address| address.interface == Some(number));
        Promise {
            interface_name: interface.name.clone(),
            mac: Some(interface.mac.clone()).filter(|mac| !mac.is_empty()),
            addresses: own.map(|address| address.address.clone()).collect(),
            device: Some(interface.pci_id.clone()).filter(|device| !device.is_empty()),
        }
    };
    in_pod.map(promise).collect()
}

fn not_promised(environment: &Environment) -> CniError {
    let message = format!(
        "prevResult has no interface {} in {}",
        environment.interface_name, environment.netns
    );
    CniError::new(Reason::CheckFailed.cni_code(), message)
        .with_details(details(Reason::CheckFailed))
}

fn gc(configuration: Configuration) -> Result<GcRequest, CniError> {
    let network = configuration.network();
    let lists = [configuration.valid_attachments, configuration.attachments];
    if lists.iter().all(Option::is_none) {
        let message = "GC needs cni.dev/valid-attachments, and the configuration has none; \
                       nothing was released";
        return Err(CniError::new(code::INVALID_CONFIGURATION, message));
    }
    let listed = lists.into_iter().flatten().flatten();
    let valid = listed.map(|ValidAttachment { container_id, ifname }| Key {
        container_id,
        interface_name: ifname,
    });
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

    /// CRI-O's libcni prints a list without entries so.
    #[test]
    fn a_list_that_is_null_is_empty_and_one_that_is_absent_is_refused() {
        let both = json!({"cni.dev/valid-attachments": null, "cni.dev/attachments": null});
        assert_eq!(gc(&both), Ok(vec![]));
        assert_eq!(gc(&json!({"cni.dev/valid-attachments": null})), Ok(vec![]));
        assert_eq!(gc(&json!({"cni.dev/attachments": []})), Ok(vec![]));
        assert_eq!(gc(&json!({})).unwrap_err().code, code::INVALID_CONFIGURATION);
    }

    #[test]
    fn what_either_list_names_is_valid() {
        let list = |id: &str| json!([{"containerID": id, "ifname": "eth0"}]);
        let key = |id: &str| Key { container_id: id.into(), interface_name: "eth0".into() };
        let lists = |new: Value, old: Value| {
            gc(&json!({"cni.dev/valid-attachments": new, "cni.dev/attachments": old}))
        };
        assert_eq!(lists(list("a"), list("a")), Ok(vec![key("a")]));
        assert_eq!(lists(Value::Null, list("b")), Ok(vec![key("b")]));
        assert_eq!(lists(list("a"), list("b")), Ok(vec![key("a"), key("b")]));
    }

    /// With an address in a subnet of its own.
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
    fn a_result_tells_the_addresses_of_all_interfaces_or_of_the_first_alone() {
        let first = attachment("eth0", "10.1.0.5/16");
        let further = [attachment("net1", "10.2.0.5/24")];
        for (only_pod_addresses, told) in
            [(false, &["10.1.0.5/16", "10.2.0.5/24"][..]), (true, &["10.1.0.5/16"])]
        {
            let base = ResultBase { only_pod_addresses, ..ResultBase::default() };
            let result = base.result(&first, &further).render(Version::V1_1_0);
            let names = result["interfaces"].as_array().unwrap().iter().map(|it| &it["name"]);
            assert!(names.eq(["eth0", "net1"]), "{result}");
            let addresses = result["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]);
            assert!(addresses.eq(told), "{result}");
        }
    }
}
