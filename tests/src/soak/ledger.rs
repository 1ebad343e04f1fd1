//! What a caller was promised, and what of it is to be there.

use std::{collections::BTreeSet, ops::Range};

use serde_json::{Value, json};

use super::{others, plan::INTERFACES};
use crate::{Netns, command::run, scenarios::pods::addresses_with_prefix_of};

/// The further network of ours of pods that get all at once.
const FURTHER: &str = "green";

/// With two interfaces in one network each answers for its own addresses only, as their owner sets it.
const SEVERAL_INTERFACES: &str = "cd /proc/sys/net/ipv4/conf && echo 1 >all/arp_ignore && \
                                  echo 2 >all/arp_announce && echo 0 >all/rp_filter && \
                                  echo 0 >default/rp_filter";

/// What a confirmed ADD promises until its DEL.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    /// The result, as the plugin printed it.
    pub(crate) result: Value,
    /// The configuration that it was asked with.
    pub(crate) configuration: Value,
    pub(crate) pci: String,
    pub(crate) mac: String,
    pub(crate) addresses: BTreeSet<String>,
}

impl Promise {
    /// Of the interface of that place in the result.
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

    /// Whether it is the same VF with the same addresses.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        (&self.pci, &self.mac, &self.addresses) == (&other.pci, &other.mac, &other.addresses)
    }
}

/// What is known of one interface.
#[derive(Clone, Debug, Default)]
pub(crate) enum State {
    /// Nothing is attached.
    #[default]
    Absent,
    /// Nothing is to be attached once all is settled.
    Leaving,
    /// An ADD was confirmed.
    Promised(Box<Promise>),
    /// Its pod does as it likes to it: nothing is promised, until the next DEL.
    Misused,
    /// A call failed while something was broken: it may be attached, until the next DEL.
    Unknown,
}

/// One interface of a sandbox.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) interface: &'static str,
    /// The network of the last ADD.
    pub(crate) network: String,
    pub(crate) state: State,
}

impl Port {
    pub(crate) fn promise(&self) -> Option<&Promise> {
        match &self.state {
            State::Promised(promise) => Some(promise),
            _ => None,
        }
    }

    /// Whether it is known what is attached.
    pub(crate) fn is_certain(&self) -> bool {
        matches!(self.state, State::Absent | State::Promised(_))
    }

    /// A call failed, or nobody heard its answer.
    pub(crate) fn doubt(&mut self) {
        if !matches!(self.state, State::Misused) {
            self.state = State::Unknown;
        }
    }
}

/// What a pod gets by its ADDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each interface by one of its own.
    OneByOne,
    /// All of them by that of the first, and another plugin's besides.
    AtOnce,
}

/// A pod's sandbox: a container id, and a netns as long as it lives.
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

    /// The interfaces that are called for.
    pub(crate) fn called(&self) -> Range<usize> {
        match self.kind {
            Kind::OneByOne => 0..self.ports.len(),
            Kind::AtOnce => 0..1,
        }
    }

    /// The further networks that its ADD asks for.
    pub(crate) fn further(&self) -> Option<Value> {
        (self.kind == Kind::AtOnce).then(|| {
            let ours = json!({ "name": FURTHER, "interface": INTERFACES[1] });
            json!([ours, { "name": others::NETWORK, "interface": others::INTERFACE }])
        })
    }

    /// What has become of the first interface has become of those that came with it.
    pub(crate) fn follow(&mut self) {
        let [first, rest @ ..] = &mut self.ports[..] else { return };
        for (place, port) in rest.iter_mut().enumerate().filter(|_| self.kind == Kind::AtOnce) {
            port.network = FURTHER.into();
            port.state = match &first.state {
                State::Promised(promise) => {
                    let Promise { result, configuration, .. } = (**promise).clone();
                    State::Promised(Box::new(Promise::new(result, configuration, place + 1)))
                }
                other => other.clone(),
            };
        }
    }

    /// Its netns ends, and what was promised with it: the agent may give it back before DEL.
    pub(crate) fn end_netns(&mut self) {
        self.netns = None;
        for port in &mut self.ports {
            if matches!(port.state, State::Promised(_) | State::Misused) {
                port.state = State::Unknown;
            }
        }
    }
}

/// What a caller has: its pods, and the sandboxes before them whose DEL is late.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) caller: usize,
    /// The host that its pods are on.
    pub(crate) host: usize,
    pub(crate) pods: Vec<Sandbox>,
    pub(crate) late: Vec<Sandbox>,
    /// A namespace beside those of its pods, where they put what they stack on their interfaces.
    pub(crate) elsewhere: Netns,
}

impl Ledger {
    pub(crate) fn new(caller: usize, host: usize, pods: impl Iterator<Item = Kind>) -> Self {
        let pods = pods.map(Sandbox::new).collect();
        Self { caller, host, pods, late: Vec::new(), elsewhere: Netns::new("elsewhere") }
    }

    /// All its pods end with their host, and others begin.
    pub(crate) fn begin_anew(&mut self) {
        let kinds: Vec<_> = self.pods.iter().map(|sandbox| sandbox.kind).collect();
        *self = Self::new(self.caller, self.host, kinds.into_iter());
    }

    /// The name of the network that this caller applies and deletes.
    pub(crate) fn own_network(&self) -> String {
        format!("own-{}", self.caller)
    }

    /// The pod gets a new sandbox; the DEL of what it had is late.
    pub(crate) fn replace(&mut self, pod: usize) {
        let new = Sandbox::new(self.pods[pod].kind);
        let old = std::mem::replace(&mut self.pods[pod], new);
        self.late.push(old);
    }

    /// All sandboxes, those whose DEL is late included.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.pods.iter().chain(&self.late)
    }
}
