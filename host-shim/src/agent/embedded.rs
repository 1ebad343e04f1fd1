//! The agent within another program, such as an init system that attaches its workloads itself: no socket, no plugin,
//! no further process.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use host_shim::embedded::{Agent, Attach, Config};
//!
//! let agent = Agent::start(Config::load("/etc/dpu-offload/host-shim.toml".as_ref())?).await?;
//! let attached = agent.attach(Attach::new("web", "/run/netns/web", "eth0")).await?;
//! println!("{} has {:?}", attached[0].interface, attached[0].addresses);
//! agent.detach("web").await?;
//! agent.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The embedded agent has the records, locks and recovery of `host-shim-agent`: it knows its attachments after a
//! restart and undoes unfinished ones. It runs on a thread of its own, with further threads that wait for the kernel.
//! Its calls can be awaited on any executor, and a busy program does not delay it. Of the process it uses file
//! descriptors, some for each attachment in progress. Signals, the `tracing` subscriber and systemd's notifications
//! belong to the program.
//!
//! Dropping a call's future cancels the call: an attach is undone.

use std::{collections::HashSet, io, net::IpAddr, sync::Arc, thread};

use ipnetwork::IpNetwork;
use model::{InterfaceRequest, WantedAddress};
use offload_proto::v1;
use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use super::{
    caller::{Answer, Caller},
    dispatcher::refused,
    error::cannot,
    rooms::{self, boot_id, runtime},
    standby::open_records,
    workloads::{Workloads, check_first_interface, check_interface, check_netns, workload_id},
};
use crate::{
    cni::environment::Verb,
    protocol::{AddRequest, FurtherInterface, Key},
};

pub use mtls::TlsSettings;
pub use netlink::MacAddress;
pub use offload_proto::{Failure, Reason};

pub use super::{
    config::{Config, DpuSettings},
    error::AgentError,
};

/// An agent within this program. Dropping it stops it; its work is finished in the background.
#[derive(Debug)]
pub struct Agent {
    workloads: Workloads,
    executor: Handle,
    /// Cancelled to stop the agent.
    stopping: DropGuard,
    /// Cancelled when the agent has ended.
    over: CancellationToken,
    outcome: oneshot::Receiver<Result<(), AgentError>>,
}

/// The interfaces of a workload: all or none is attached.
#[derive(Clone, Debug)]
pub struct Attach {
    /// The workload's id: 1 to 253 letters, digits, `_`, `.` and `-`; the first is a letter or digit.
    pub workload: String,
    /// The absolute path of the network namespace.
    pub netns: String,
    /// The workload's owner, for networks that only some may use.
    pub labels: Labels,
    /// The first interface.
    pub interface: Interface,
    /// Further interfaces.
    pub further: Vec<Interface>,
}

/// A workload's owner in Kubernetes' terms. The DPU shows the labels with the attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// The namespace, which a network's `namespaces` must include.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
}

/// A requested interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The name in the workload's namespace. Empty, for the first interface only: the network's `interface_prefix` with
    /// 0 appended, or `eth0`.
    pub name: String,
    /// The DPU's network. Empty: the DPU's default network.
    pub network: String,
    /// The requested MAC address. `None`: any.
    pub mac: Option<MacAddress>,
    /// The requested addresses, at most one of each family. A family without one gets any.
    pub addresses: Vec<IpAddr>,
}

/// An interface of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attached {
    /// The name in the workload's namespace.
    pub interface: String,
    /// The DPU's network.
    pub network: String,
    /// The MAC address: six bytes in hexadecimal with colons.
    pub mac: String,
    /// The addresses. Empty on a layer-2 network.
    pub addresses: Vec<IpNetwork>,
    /// The addresses of DNS servers.
    pub nameservers: Vec<String>,
    /// The DNS search domains.
    pub search: Vec<String>,
}

impl Attach {
    /// Requests one interface of that name on the DPU's default network.
    #[must_use]
    pub fn new(
        workload: impl Into<String>,
        netns: impl Into<String>,
        interface: impl Into<String>,
    ) -> Self {
        Self {
            workload: workload.into(),
            netns: netns.into(),
            labels: Labels::default(),
            interface: Interface { name: interface.into(), ..Interface::default() },
            further: Vec::new(),
        }
    }
}

impl Agent {
    /// Starts an agent in the network namespace of the calling thread, which must be the host's. Returns when
    /// unfinished work of a previous agent is done. The DPU may be unreachable; [`status`](Self::status) reports that.
    /// `socket` and `[log]` of the configuration are ignored.
    ///
    /// # Errors
    /// See [`AgentError`]. One with [`is_of_configuration`](AgentError::is_of_configuration) is permanent: correct the
    /// configuration. [`AgentError::Records`]: another agent with the same `state_dir` runs, in any process.
    pub async fn start(config: Config) -> Result<Self, AgentError> {
        config.check().map_err(|problems| AgentError::InvalidValues(problems.join("\n")))?;
        let (begun, beginning) = oneshot::channel();
        let (outcome_sender, outcome) = oneshot::channel();
        let (stopping, over) = (CancellationToken::new(), CancellationToken::new());
        let (stop, end) = (stopping.clone(), over.clone().drop_guard());
        // A dropped `start` future drops this guard, which stops the agent.
        let stopping = stopping.drop_guard();
        let thread = thread::Builder::new().name("dpu-offload".into());
        let thread = thread.spawn(move || {
            let outcome = runtime().and_then(|it| it.block_on(live(config, begun, stop)));
            // A dropped agent has no receiver.
            let _ = outcome_sender.send(outcome);
            drop(end);
        });
        thread.map_err(cannot("start the agent's thread"))?;
        match beginning.await {
            Ok((workloads, executor)) => Ok(Self { workloads, executor, stopping, over, outcome }),
            Err(_) => Err(outcome.await.ok().and_then(Result::err).unwrap_or_else(lost)),
        }
    }

    /// Attaches a workload and returns its interfaces in the requested order. Repeating the call returns the same
    /// interfaces.
    ///
    /// # Errors
    /// Why no interface was attached. [`Failure::reason`] is a stable code.
    pub async fn attach(&self, asked: Attach) -> Result<Vec<Attached>, Failure> {
        let request = add(asked)?;
        let attach = async move |workloads: Workloads, caller| {
            workloads.attach(request, &caller).await.err().map(refused)
        };
        Ok(self.ask(Verb::Add, attach).await?.iter().map(attached).collect())
    }

    /// Detaches all interfaces of a workload, whatever the state of its namespace. While the DPU is unreachable, the
    /// release is delivered later. Without attachments the call succeeds.
    ///
    /// # Errors
    /// [`Reason::InvalidRequest`]: the id is malformed. [`Reason::DeadlineExceeded`]: the detach takes longer and
    /// continues.
    pub async fn detach(&self, workload: &str) -> Result<(), Failure> {
        let workload = workload_id(workload)?.to_owned();
        let detach = async move |workloads: Workloads, _caller| {
            workloads.detach(&workload, None, "").await;
            Some(Answer::Done)
        };
        self.ask(Verb::Del, detach).await.map(drop)
    }

    /// Checks whether workloads can be attached to a network of the DPU. Empty: the DPU's default network.
    ///
    /// # Errors
    /// Why workloads cannot be attached.
    pub async fn status(&self, network: &str) -> Result<(), Failure> {
        let network = network.to_owned();
        let status =
            async move |workloads: Workloads, _caller| Some(workloads.status(&network).await);
        self.ask(Verb::Status, status).await.map(drop)
    }

    /// Waits until the agent has ended by itself, which it only does after a fatal error; [`stop`](Self::stop) returns
    /// the error. A new agent knows all attachments.
    pub async fn ended(&self) {
        self.over.cancelled().await;
    }

    /// Stops the agent once calls in progress are answered. Workloads keep their interfaces.
    ///
    /// # Errors
    /// The error that ended the agent before.
    pub async fn stop(self) -> Result<(), AgentError> {
        drop(self.stopping);
        self.outcome.await.unwrap_or_else(|_| Err(lost()))
    }

    async fn ask<Work>(
        &self,
        verb: Verb,
        work: impl FnOnce(Workloads, Arc<Caller>) -> Work + Send + 'static,
    ) -> Result<Vec<v1::Attachment>, Failure>
    where
        Work: Future<Output = Option<Answer>> + Send + 'static,
    {
        let workloads = self.workloads.clone();
        // The call runs on the agent's executor and is aborted when its caller stops waiting.
        let call = self.executor.spawn(async move { workloads.dispatch(verb, work).await });
        let ended = Failure::new(Reason::Internal, "the agent has ended: start another");
        AbortOnDropHandle::new(call).await.unwrap_or(Err(ended))
    }
}

/// Runs the agent from start to end.
async fn live(
    config: Config,
    begun: oneshot::Sender<(Workloads, Handle)>,
    stopping: CancellationToken,
) -> Result<(), AgentError> {
    let boot_id = boot_id(&config.boot_id_file)?;
    let records = open_records(&config, &boot_id)?;
    let agent = rooms::Agent::open(config, boot_id, records)?;
    let monitor = agent.look_around().await?;
    // If the starter is gone, it has also cancelled `stopping`.
    let _ = begun.send((agent.workloads(), Handle::current()));
    let stopped = async {
        stopping.cancelled().await;
        // Work in progress still needs the session and kernel events.
        agent.finish().await;
    };
    tokio::select! {
        error = agent.keep(monitor) => Err(error),
        () = stopped => Ok(()),
    }
}

fn lost() -> AgentError {
    cannot("get the agent's outcome")(io::ErrorKind::BrokenPipe.into())
}

fn add(asked: Attach) -> Result<AddRequest, Failure> {
    let Attach { workload, netns, labels, interface, further } = asked;
    let workload = workload_id(&workload)?.to_owned();
    check_netns("netns", &netns)?;
    check_first_interface("interface", &interface.name)?;
    let mut names = HashSet::from([&interface.name]);
    for Interface { name, .. } in &further {
        check_interface("interface", name)?;
        if !names.insert(name) {
            let message = format!("interface {name:?} is asked for twice: name each differently");
            return Err(Failure::new(Reason::InvalidRequest, message));
        }
    }
    let further = further.into_iter().map(further_interface).collect();
    let first = further_interface(interface);
    let key = Key { container_id: workload, interface_name: first.interface_name };
    let Labels { namespace, name, uid } = labels;
    Ok(AddRequest {
        pod: v1::Pod { namespace, name, uid },
        interface: first.interface,
        further,
        ..AddRequest::plain(key, netns, String::new())
    })
}

fn further_interface(asked: Interface) -> FurtherInterface {
    let Interface { name, network, mac, addresses } = asked;
    let addresses = addresses.into_iter().map(WantedAddress::from).collect();
    FurtherInterface {
        interface_name: name,
        interface: InterfaceRequest { network, mac, addresses, ..InterfaceRequest::default() },
        ..FurtherInterface::default()
    }
}

fn attached(attachment: &v1::Attachment) -> Attached {
    let key = attachment.key.clone().unwrap_or_default();
    let dns = attachment.dns.clone().unwrap_or_default();
    let addresses = attachment.addresses.iter().filter_map(|held| held.address.parse().ok());
    Attached {
        interface: key.interface_name,
        network: attachment.network.clone(),
        mac: attachment.mac.clone(),
        addresses: addresses.collect(),
        nameservers: dns.nameservers,
        search: dns.search,
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use tempfile::TempDir;
    use test_clock::within;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A configuration that uses nothing of the machine, with an unreachable DPU.
    fn config(folder: &Path) -> Config {
        let dpu = DpuSettings { endpoint: "127.0.0.1:1".into(), name: "dpu-1".into() };
        let path = |name: &str| folder.join(name);
        let tls = TlsSettings {
            ca: path("ca.crt"),
            certificate: path("host.crt"),
            key: path("host.key"),
            trust_domain: "dpu-offload.local".into(),
        };
        let mut config = Config::new(dpu, tls);
        config.state_dir = path("state");
        config.pod_locks = path("pods.lock");
        config.timeouts.reconnect_ms = 0;
        config
    }

    async fn agent() -> (Agent, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let agent = Agent::start(config(folder.path())).await.unwrap();
        (agent, folder)
    }

    fn refused(asked: Attach) -> Failure {
        add(asked).unwrap_err()
    }

    #[tokio::test]
    async fn invalid_embedded_configuration_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut senseless = config(folder.path());
        senseless.state_dir = "state".into();
        let error = Agent::start(senseless).await.unwrap_err();
        assert!(error.is_of_configuration() && error.to_string().contains("state_dir"), "{error}");
        assert!(!folder.path().join("state").exists());
    }

    #[tokio::test]
    async fn second_agent_with_same_records_is_refused() {
        let (first, folder) = agent().await;
        let error = Agent::start(config(folder.path())).await.unwrap_err();
        assert!(matches!(error, AgentError::Records(_)), "{error}");
        first.stop().await.unwrap();
        Agent::start(config(folder.path())).await.unwrap().stop().await.unwrap();
    }

    #[tokio::test]
    async fn dropped_agent_ends() {
        let (dropped, folder) = agent().await;
        let over = dropped.over.clone();
        drop(dropped);
        within(LIMIT, over.cancelled()).await.unwrap();
        Agent::start(config(folder.path())).await.unwrap().stop().await.unwrap();
    }

    #[tokio::test]
    async fn agent_with_dropped_start_ends() {
        let folder = tempfile::tempdir().unwrap();
        let begun = within(Duration::ZERO, Agent::start(config(folder.path()))).await;
        assert!(begun.is_none());
        let again = async {
            loop {
                match Agent::start(config(folder.path())).await {
                    Ok(agent) => break agent,
                    Err(error) => assert!(matches!(error, AgentError::Records(_)), "{error}"),
                }
            }
        };
        within(LIMIT, again).await.unwrap().stop().await.unwrap();
    }

    #[tokio::test]
    async fn embedded_agent_detaches_without_certificates() {
        let (agent, folder) = agent().await;
        let failure = agent.status("").await.unwrap_err();
        assert_eq!(failure.reason, Reason::CertificateRefused, "{failure}");
        let own = "/proc/self/ns/net";
        let failure = agent.attach(Attach::new("web", own, "eth0")).await.unwrap_err();
        assert_eq!(failure.reason, Reason::NetnsInvalid, "the host's own: {failure}");
        agent.detach("web").await.unwrap();
        agent.stop().await.unwrap();
        drop(folder);
    }

    #[test]
    fn calls_are_awaited_on_any_executor() {
        let folder = tempfile::tempdir().unwrap();
        futures::executor::block_on(async {
            let agent = Agent::start(config(folder.path())).await.unwrap();
            agent.detach("web").await.unwrap();
            agent.stop().await.unwrap();
        });
    }

    #[tokio::test]
    async fn dropped_call_is_cancelled() {
        let (agent, _folder) = agent().await;
        let (sender, receiver) = oneshot::channel();
        let call = agent.ask(Verb::Add, async move |_workloads, caller: Arc<Caller>| {
            let _ = sender.send(caller.hangup().await);
            None
        });
        assert!(within(Duration::from_millis(50), call).await.is_none(), "it waits");
        let failure = within(LIMIT, receiver).await.unwrap().unwrap();
        assert_eq!(failure.reason, Reason::DeadlineExceeded);
        agent.stop().await.unwrap();
    }

    #[test]
    fn malformed_attach_is_refused() {
        let good = Attach::new("web", "/run/netns/web", "eth0");
        let of = |change: fn(&mut Attach)| {
            let mut asked = good.clone();
            change(&mut asked);
            refused(asked)
        };
        let interface = |name: &str| Interface { name: name.into(), ..Interface::default() };
        for (failure, reason, word) in [
            (of(|it| it.workload = "../web".into()), Reason::InvalidRequest, "\"../web\""),
            (of(|it| it.netns = "web".into()), Reason::NetnsInvalid, "\"web\""),
            (of(|it| it.interface.name = "lo".into()), Reason::InvalidRequest, "loopback"),
            (of(|it| it.interface.name = "a/b".into()), Reason::InvalidRequest, "\"a/b\""),
        ] {
            assert_eq!(failure.reason, reason, "{failure}");
            assert!(failure.message.contains(word), "{failure}");
        }
        let twice = Attach { further: vec![interface("net1"), interface("eth0")], ..good.clone() };
        let failure = refused(twice);
        assert_eq!(failure.reason, Reason::InvalidRequest);
        assert!(failure.message.contains("\"eth0\""), "{failure}");
        let bad = Attach { further: vec![interface("")], ..good };
        assert_eq!(refused(bad).reason, Reason::InvalidRequest);
    }

    #[test]
    fn attach_becomes_an_add_of_all_interfaces() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let storage = Interface {
            name: "net1".into(),
            network: "storage".into(),
            mac: Some(mac),
            addresses: vec!["10.2.0.9".parse().unwrap()],
        };
        let labels = Labels { namespace: "shop".into(), name: "web-1".into(), uid: "u".into() };
        let asked = Attach {
            labels,
            interface: Interface { name: "eth0".into(), network: "blue".into(), ..storage.clone() },
            further: vec![storage],
            ..Attach::new("web", "/run/netns/web", "")
        };
        let add = add(asked).unwrap();
        assert_eq!(add.key.to_string(), "web/eth0");
        assert_eq!((add.pod.namespace.as_str(), add.pod.name.as_str()), ("shop", "web-1"));
        let both = add.each();
        assert_eq!(both.len(), 2);
        for (one, network) in both.iter().zip(["blue", "storage"]) {
            assert_eq!((one.interface.network.as_str(), one.interface.mac), (network, Some(mac)));
            assert_eq!(one.interface.addresses, ["10.2.0.9".parse().unwrap()]);
        }
    }
}
