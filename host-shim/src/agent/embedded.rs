//! The agent within another program, such as an init system that attaches its workloads itself: no socket, no plugin
//! and no process besides its own.
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
//! It is the agent of `host-shim-agent`, with its records, locks and recovery: what was attached is known after a
//! restart, and of what was under way nothing is left. It has a thread of its own, and threads that wait for the kernel,
//! so that its calls can be awaited on any executor, and a program that is busy does not hold it up. Of the process it
//! takes file descriptors, some for each attachment under way, and nothing else: signals, logging (it speaks through
//! `tracing`) and systemd's notifications are the program's own affair.
//!
//! A call whose future is dropped is taken back: an attach is undone.

use std::{collections::HashSet, io, net::IpAddr, sync::Arc, thread};

use ipnetwork::IpNetwork;
use offload_proto::v1;
use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use super::{
    caller::{Answer, Caller},
    desk::refused,
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

/// An agent that runs within this program. Dropped, it stops, and finishes its work behind the back of whoever has
/// dropped it.
#[derive(Debug)]
pub struct Agent {
    workloads: Workloads,
    executor: Handle,
    /// Cancelled when it was told to stop.
    stopping: DropGuard,
    /// Cancelled when it has ended.
    over: CancellationToken,
    outcome: oneshot::Receiver<Result<(), AgentError>>,
}

/// What a workload is to have: all of it, or nothing.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Its id: 1 to 253 letters, digits, `_`, `.` and `-`, with a letter or digit first.
    pub workload: String,
    /// The absolute path of its network namespace.
    pub netns: String,
    /// Whose it is, for networks that are not for everybody.
    pub labels: Labels,
    /// Its interface.
    pub interface: Interface,
    /// Its further ones.
    pub further: Vec<Interface>,
}

/// Whose a workload is, in Kubernetes' words. The DPU shows them with the attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// The namespace, which networks with `namespaces` are only for some of.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
}

/// An interface that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the workload's namespace. Empty, for a workload's first one: as its network's `interface_prefix`
    /// says, with a 0, or `eth0`.
    pub name: String,
    /// The DPU's network. Empty: its default one.
    pub network: String,
    /// The MAC address asked for. `None`: any.
    pub mac: Option<MacAddress>,
    /// The addresses asked for, one of each family at most. None of a family: any.
    pub addresses: Vec<IpAddr>,
}

/// An interface that a workload has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attached {
    /// Its name in the workload's namespace.
    pub interface: String,
    /// The DPU's network.
    pub network: String,
    /// Its MAC address: six bytes in hexadecimal with colons.
    pub mac: String,
    /// Its addresses. None on a network of layer 2.
    pub addresses: Vec<IpNetwork>,
    /// The servers that names are asked of.
    pub nameservers: Vec<String>,
    /// Where names without dots are looked for.
    pub search: Vec<String>,
}

impl Attach {
    /// One interface of that name on the DPU's default network.
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
    /// Starts it in the network namespace that the caller's thread is in, which has to be the host's, and returns once
    /// it has finished what one before has left. The DPU need not be there yet: [`status`](Self::status) tells whether
    /// it is. Of the configuration, `socket` and `[log]` count for nothing.
    ///
    /// # Errors
    /// [`AgentError`]. One with [`is_of_configuration`](AgentError::is_of_configuration) does not mend itself. Another
    /// agent with the same `state_dir`, in whatever process, is [`AgentError::Records`].
    pub async fn start(config: Config) -> Result<Self, AgentError> {
        config.check().map_err(|problems| AgentError::Senseless(problems.join("\n")))?;
        let (begun, beginning) = oneshot::channel();
        let (told, outcome) = oneshot::channel();
        let (stopping, over) = (CancellationToken::new(), CancellationToken::new());
        let (stop, end) = (stopping.clone(), over.clone().drop_guard());
        // Whoever does not wait for its beginning has it stop, too.
        let stopping = stopping.drop_guard();
        let thread = thread::Builder::new().name("dpu-offload".into());
        let thread = thread.spawn(move || {
            let outcome = runtime().and_then(|it| it.block_on(live(config, begun, stop)));
            // Whoever dropped the agent does not wait for it.
            let _ = told.send(outcome);
            drop(end);
        });
        thread.map_err(cannot("start the agent's thread"))?;
        match beginning.await {
            Ok((workloads, executor)) => Ok(Self { workloads, executor, stopping, over, outcome }),
            Err(_) => {
                Err(outcome.await.map_or_else(|_| lost(), |told| told.err().unwrap_or_else(lost)))
            }
        }
    }

    /// Attaches a workload, and returns when it has all its interfaces, in the order in which they were asked for. What
    /// is attached just so already stays as it is, and is told again.
    ///
    /// # Errors
    /// Why it has none of them. [`Failure::reason`] is a stable code.
    pub async fn attach(&self, asked: Attach) -> Result<Vec<Attached>, Failure> {
        let request = add(asked)?;
        let attach = async move |room: Workloads, caller| {
            room.attach(request, &caller).await.err().map(refused)
        };
        Ok(self.ask(Verb::Add, attach).await?.iter().map(attached).collect())
    }

    /// Takes all back that a workload has, whatever has become of it and its namespace. What can't be given back now, as
    /// while the DPU is away, is given back later. It is no mistake if it has nothing.
    ///
    /// # Errors
    /// [`Reason::InvalidRequest`] if the id can be no workload's; [`Reason::DeadlineExceeded`] if it takes too long, and
    /// goes on.
    pub async fn detach(&self, workload: &str) -> Result<(), Failure> {
        let workload = workload_id(workload)?.to_owned();
        let detach = async move |room: Workloads, _caller| {
            room.detach(&workload, None, "").await;
            Some(Answer::Done)
        };
        self.ask(Verb::Del, detach).await.map(drop)
    }

    /// Whether workloads can be attached to that network of the DPU's. Empty: to its default one.
    ///
    /// # Errors
    /// Why they can't.
    pub async fn status(&self, network: &str) -> Result<(), Failure> {
        let network = network.to_owned();
        let status = async move |room: Workloads, _caller| Some(room.status(&network).await);
        self.ask(Verb::Status, status).await.map(drop)
    }

    /// Waits until it has ended, which it only does if it can't go on; [`stop`](Self::stop) tells why. A new one finds
    /// all that it knew.
    pub async fn ended(&self) {
        self.over.cancelled().await;
    }

    /// Stops it, once the calls under way are answered. Workloads keep their interfaces.
    ///
    /// # Errors
    /// Why it has ended before, if it has.
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
        let room = self.workloads.clone();
        // The call is the executor's, and ends with whoever waits for it.
        let call = self.executor.spawn(async move { room.at_desk(verb, work).await });
        let ended = |_| Failure::new(Reason::Internal, "the agent has ended: start another");
        AbortOnDropHandle::new(call).await.unwrap_or_else(|error| Err(ended(error)))
    }
}

/// The agent's life, from its first look around to its last work.
async fn live(
    config: Config,
    begun: oneshot::Sender<(Workloads, Handle)>,
    stopping: CancellationToken,
) -> Result<(), AgentError> {
    let boot_id = boot_id(&config.boot_id_file)?;
    let records = open_records(&config, &boot_id)?;
    let agent = rooms::Agent::open(config, boot_id, records)?;
    let monitor = agent.look_around().await?;
    // Whoever started it may have gone: then it is told to stop, too.
    let _ = begun.send((agent.workloads(), Handle::current()));
    let stopped = async {
        stopping.cancelled().await;
        // The work under way still needs the session, and events of the kernel.
        agent.finish().await;
    };
    tokio::select! {
        error = agent.keep(monitor) => Err(error),
        () = stopped => Ok(()),
    }
}

fn lost() -> AgentError {
    cannot("learn what has become of the agent")(io::ErrorKind::BrokenPipe.into())
}

/// The ADD that is asked for.
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
    let lead = further_interface(interface);
    let key = Key { container_id: workload, interface_name: lead.interface_name };
    let Labels { namespace, name, uid } = labels;
    Ok(AddRequest {
        pod: v1::Pod { namespace, name, uid },
        mac: lead.mac,
        addresses: lead.addresses,
        further,
        ..AddRequest::plain(key, netns, lead.network)
    })
}

fn further_interface(asked: Interface) -> FurtherInterface {
    let Interface { name, network, mac, addresses } = asked;
    let addresses = addresses.iter().map(IpAddr::to_string).collect();
    FurtherInterface {
        interface_name: name,
        network,
        mac,
        addresses,
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

    /// Of an agent that has nothing of the machine's, and whose DPU is not there.
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
    async fn what_makes_no_sense_is_refused_before_anything_is_begun() {
        let folder = tempfile::tempdir().unwrap();
        let mut senseless = config(folder.path());
        senseless.state_dir = "state".into();
        let error = Agent::start(senseless).await.unwrap_err();
        assert!(error.is_of_configuration() && error.to_string().contains("state_dir"), "{error}");
        assert!(!folder.path().join("state").exists());
    }

    #[tokio::test]
    async fn a_second_agent_with_the_same_records_is_refused_until_the_first_has_stopped() {
        let (first, folder) = agent().await;
        let error = Agent::start(config(folder.path())).await.unwrap_err();
        assert!(matches!(error, AgentError::Records(_)), "{error}");
        first.stop().await.unwrap();
        Agent::start(config(folder.path())).await.unwrap().stop().await.unwrap();
    }

    #[tokio::test]
    async fn one_that_is_dropped_ends() {
        let (dropped, folder) = agent().await;
        let over = dropped.over.clone();
        drop(dropped);
        within(LIMIT, over.cancelled()).await.unwrap();
        Agent::start(config(folder.path())).await.unwrap().stop().await.unwrap();
    }

    #[tokio::test]
    async fn one_whose_beginning_nobody_waits_for_ends() {
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
    async fn without_certificates_it_says_so_and_gives_back_what_is_there() {
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
    async fn a_call_that_is_dropped_is_taken_back() {
        let (agent, _folder) = agent().await;
        let (told, heard) = oneshot::channel();
        let call = agent.ask(Verb::Add, async move |_room, caller: Arc<Caller>| {
            let _ = told.send(caller.hangup().await);
            None
        });
        assert!(within(Duration::from_millis(50), call).await.is_none(), "it waits");
        let failure = within(LIMIT, heard).await.unwrap().unwrap();
        assert_eq!(failure.reason, Reason::DeadlineExceeded);
        agent.stop().await.unwrap();
    }

    #[test]
    fn what_can_not_be_attached_is_refused_by_name() {
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
    fn all_that_is_asked_for_is_asked_of_the_dpu() {
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
            assert_eq!((one.network.as_str(), one.mac), (network, Some(mac)));
            assert_eq!(one.addresses, ["10.2.0.9"]);
        }
    }
}
