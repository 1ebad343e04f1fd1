//! A caller's grants and what must exist of them.

use std::{collections::BTreeSet, ops::Range};

use serde_json::{Value, json};

use super::{others, plan::INTERFACES};
use crate::{Netns, command::run, scenarios::pods::addresses_with_prefix_of};

/// The further network of this plugin for pods that get all networks at once.
const FURTHER: &str = "green";

/// With two interfaces in one network, each answers only for its own addresses, as the owner of such a pod configures
/// it.
const SEVERAL_INTERFACES: &str = "cd /proc/sys/net/ipv4/conf && echo 1 >all/arp_ignore && \
                                  echo 2 >all/arp_announce && echo 0 >all/rp_filter && \
                                  echo 0 >default/rp_filter";

/// The content of a confirmed ADD, valid until its DEL.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// The result, as the plugin printed it.
    pub(crate) result: Value,
    /// The configuration of the ADD.
    pub(crate) configuration: Value,
    pub(crate) pci: String,
    pub(crate) mac: String,
    pub(crate) addresses: BTreeSet<String>,
}

impl Grant {
    /// The grant of one interface in the result.
    pub(crate) fn new(result: Value, configuration: Value, place: usize) -> Self {
        let interface = &result["interfaces"][place];
        let text = |key: &str| interface[key].as_str().unwrap_or_default().to_owned();
        Self {
            pci: text("pciID"),
            mac: text("mac"),
            addresses: addresses_with_prefix_of(&result, place).into_iter().collect(),
            result,
            configuration,
        }
    }

    /// Whether both are the same VF with the same addresses.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        (&self.pci, &self.mac, &self.addresses) == (&other.pci, &other.mac, &other.addresses)
    }
}

/// What is known of one interface.
#[derive(Clone, Debug, Default)]
pub(crate) enum State {
    /// It is not attached.
    #[default]
    Absent,
    /// It must not be attached once all is settled.
    Leaving,
    /// An ADD was confirmed.
    Granted(Box<Grant>),
    /// The pod may change it at will: nothing is expected until the next DEL.
    Misused,
    /// A call failed during a fault: it may be attached until the next DEL.
    Unknown,
}

/// One interface of a sandbox.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) interface: &'static str,
    /// Network of the last ADD.
    pub(crate) network: String,
    pub(crate) state: State,
}

impl Port {
    pub(crate) fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Granted(grant) => Some(grant),
            _ => None,
        }
    }

    /// Whether its state is known.
    pub(crate) fn is_certain(&self) -> bool {
        matches!(self.state, State::Absent | State::Granted(_))
    }

    /// A call failed or its answer was lost.
    pub(crate) fn mark_unknown(&mut self) {
        if !matches!(self.state, State::Misused) {
            self.state = State::Unknown;
        }
    }
}

/// How a pod gets its interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each interface by its own ADD.
    OneByOne,
    /// All by the ADD of the first, together with another plugin's.
    AtOnce,
}

/// A pod's sandbox: a container ID, and a netns while it lives.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) kind: Kind,
    pub(crate) container: String,
    pub(crate) netns: Option<Netns>,
    pub(crate) ports: Vec<Port>,
}

impl Sandbox {
    pub(crate) fn new(kind: Kind) -> Self {
        let netns = Netns::new("pod");
        let set = run(netns.command("sh").args(["-c", SEVERAL_INTERFACES]));
        assert!(set.status.success(), "{set:?}");
        let port = |interface| Port { interface, network: "blue".into(), state: State::default() };
        Self {
            kind,
            container: netns.name().to_owned(),
            netns: Some(netns),
            ports: INTERFACES.map(port).into(),
        }
    }

    /// The interfaces with calls of their own.
    pub(crate) fn called(&self) -> Range<usize> {
        match self.kind {
            Kind::OneByOne => 0..self.ports.len(),
            Kind::AtOnce => 0..1,
        }
    }

    /// Further networks in its ADD.
    pub(crate) fn further(&self) -> Option<Value> {
        (self.kind == Kind::AtOnce).then(|| {
            let ours = json!({ "name": FURTHER, "interface": INTERFACES[1] });
            json!([ours, { "name": others::NETWORK, "interface": others::INTERFACE }])
        })
    }

    /// Gives the other interfaces of a group the state of the first.
    pub(crate) fn follow(&mut self) {
        let [first, rest @ ..] = &mut self.ports[..] else { return };
        for (place, port) in rest.iter_mut().enumerate().filter(|_| self.kind == Kind::AtOnce) {
            port.network = FURTHER.into();
            port.state = match &first.state {
                State::Granted(grant) => {
                    let Grant { result, configuration, .. } = (**grant).clone();
                    State::Granted(Box::new(Grant::new(result, configuration, place + 1)))
                }
                other => other.clone(),
            };
        }
    }

    /// Ends its netns and its grants: the agent may release them before DEL.
    pub(crate) fn end_netns(&mut self) {
        self.netns = None;
        for port in &mut self.ports {
            if matches!(port.state, State::Granted(_) | State::Misused) {
                port.state = State::Unknown;
            }
        }
    }
}

/// A caller's pods, and earlier sandboxes whose DEL is late.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) caller: usize,
    /// The host of its pods.
    pub(crate) host: usize,
    pub(crate) pods: Vec<Sandbox>,
    pub(crate) late: Vec<Sandbox>,
    /// A namespace beside those of its pods, for upper devices.
    pub(crate) elsewhere: Netns,
}

impl Ledger {
    pub(crate) fn new(caller: usize, host: usize, pods: impl Iterator<Item = Kind>) -> Self {
        let pods = pods.map(Sandbox::new).collect();
        Self { caller, host, pods, late: Vec::new(), elsewhere: Netns::new("elsewhere") }
    }

    /// Ends all pods with their host, and begins new ones.
    pub(crate) fn replace_all_pods(&mut self) {
        let kinds: Vec<_> = self.pods.iter().map(|sandbox| sandbox.kind).collect();
        *self = Self::new(self.caller, self.host, kinds.into_iter());
    }

    /// Name of the network that this caller applies and deletes.
    pub(crate) fn own_network(&self) -> String {
        format!("own-{}", self.caller)
    }

    /// Gives the pod a new sandbox. The old one's DEL is late.
    pub(crate) fn replace(&mut self, pod: usize) {
        let new = Sandbox::new(self.pods[pod].kind);
        let old = std::mem::replace(&mut self.pods[pod], new);
        self.late.push(old);
    }

    /// All sandboxes, including those whose DEL is late.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.pods.iter().chain(&self.late)
    }
}
