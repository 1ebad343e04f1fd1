//! A card and a kernel in memory that can be told to refuse.

mod drivers;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

use ::drivers::{
    driver::{Fault, Refused},
    eswitch::Representor,
    fabric::{EgressLimit, Membership},
    programmer::Programmer,
};
use model::{AntiSpoofing, Bandwidth, Label, PortSettings, Source};
use netlink::MacAddress;
use parking_lot::{Mutex, MutexGuard};
use test_clock::sleep_until_moment;
use vf_alloc::{FunctionId, PfId};

use drivers::{FakeEswitch, FakeFabric};

/// The methods behind the steps, in the steps' order.
pub(crate) const DOING: [&str; 8] = [
    "set_mtu",
    "join",
    "set_label",
    "set_port_mac",
    "set_rate",
    "set_guard",
    "set_egress_limit",
    "set_up",
];

/// MAC address of a link of the fabric.
pub(crate) const FABRIC_MAC: MacAddress = MacAddress([0x0e, 0, 0, 0, 0, 0xfa]);

/// The card and kernel. Clones share one state.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeKernel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ports: BTreeMap<FunctionId, Port>,
    last_index: u32,
    /// Number of calls to refuse, by method.
    refusals: HashMap<&'static str, u32>,
    /// What is at fault for refusals. `None`: the port.
    fault: Option<Fault>,
    /// The next refusal waits for this.
    gate: Option<Receiver<()>>,
    /// The next call of a method signals its start, and then waits.
    held_up: HashMap<&'static str, (Sender<()>, Receiver<()>)>,
    /// Number of calls so far.
    calls: u32,
    /// VLANs are unsupported.
    without_vlan: bool,
    /// The PF whose card limits what its VFs send. `None`: the fabric limits all.
    limiting: Option<PfId>,
    /// The fabric cannot limit.
    without_limits: bool,
    /// VFs have no representors.
    without_representors: bool,
    /// Preparing fails only in a part that ports do not need.
    is_partial: bool,
    /// The fabric's daemon does not answer.
    is_fabric_away: bool,
    /// The representor vanishes before the next call of this method.
    vanishing: Option<&'static str>,
    /// Lock that each change takes. `None`: changes take no time.
    lock: Option<KernelLock>,
}

/// A fair lock like RTNL: each holder keeps it for `held`.
#[derive(Clone, Debug)]
struct KernelLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    held: Duration,
}

impl KernelLock {
    /// Takes the lock once. The caller needs half as long again without the lock.
    fn pass(&self) {
        let held = self.lock.blocking_lock();
        sleep_until_moment(self.held);
        drop(held);
        sleep_until_moment(self.held / 2);
    }
}

/// A representor and its programming.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) representor: Representor,
    pub(crate) mac: Option<MacAddress>,
    pub(crate) rate: Bandwidth,
    pub(crate) membership: Option<Membership>,
    /// Up, but without carrier.
    pub(crate) is_waiting_for_vf: bool,
    /// What it may send.
    pub(crate) guard: Option<GuardStates>,
    /// Limit on what the VF sends, unless the card limits that.
    pub(crate) limit: Option<EgressLimit>,
}

/// Settings of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardStates {
    level: AntiSpoofing,
    mac: MacAddress,
    addresses: Vec<IpAddr>,
    sources: BTreeSet<Source>,
    trunk: BTreeSet<u16>,
}

fn guarded(settings: &PortSettings) -> GuardStates {
    GuardStates {
        level: settings.anti_spoofing,
        mac: settings.mac,
        addresses: settings.addresses.clone(),
        sources: settings.allowed_sources.clone(),
        trunk: settings.trunk.clone(),
    }
}

impl Port {
    fn new(vf: FunctionId, index: u32) -> Self {
        let representor = Representor {
            vf,
            index,
            name: vf.to_string(),
            mtu: 1500,
            up: false,
            label: Label::default(),
            mac: None,
            master: None,
            is_limited: false,
            offloads_filters: false,
            is_veth: false,
        };
        Self {
            representor,
            mac: None,
            rate: Bandwidth::default(),
            membership: None,
            is_waiting_for_vf: false,
            guard: None,
            limit: None,
        }
    }

    /// The representor as a survey shows it.
    fn look(&self) -> Representor {
        Representor {
            master: self.membership.as_ref().map(|_| 1),
            is_limited: self.rate != Bandwidth::default(),
            ..self.representor.clone()
        }
    }

    /// Whether nothing is programmed.
    pub(crate) fn is_idle(&self) -> bool {
        *self == Self::new(self.representor.vf, self.representor.index)
    }

    /// Whether everything in `settings` is programmed.
    pub(crate) fn serves(&self, settings: &PortSettings) -> bool {
        self.representor.up
            && self.representor.mtu == settings.mtu
            && self.representor.label == settings.label
            && self.mac == Some(settings.mac)
            && self.rate == settings.bandwidth
            && self.membership.as_ref() == Some(&Membership::of(settings))
            && self.guard == Some(guarded(settings))
            && self.limit == EgressLimit::of(&settings.bandwidth)
    }
}

impl FakeKernel {
    /// A card with VFs 0 to `count` - 1 of PF 0.
    pub(crate) fn with_vfs(count: u16) -> Self {
        let kernel = Self::default();
        for vf in 0..count {
            kernel.make(FunctionId::local(0, vf));
        }
        kernel
    }

    /// Creates a representor, with a new ifindex if it existed before.
    pub(crate) fn make(&self, vf: FunctionId) {
        let mut state = self.lock();
        state.last_index += 1;
        let port = Port::new(vf, state.last_index);
        state.ports.insert(vf, port);
    }

    /// Removes a representor.
    pub(crate) fn take_away(&self, vf: FunctionId) {
        self.lock().ports.remove(&vf);
    }

    pub(crate) fn refuse(&self, method: &'static str, times: u32) {
        self.lock().refusals.insert(method, times);
    }

    /// Sets what is at fault for later refusals.
    pub(crate) fn blame(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Refuses the next call of `method` once the gate receives a message.
    pub(crate) fn refuse_after(&self, gate: Receiver<()>, method: &'static str) {
        self.lock().gate = Some(gate);
        self.refuse(method, 1);
    }

    /// Makes the next call of `method` signal its start and wait.
    pub(crate) fn hold_up(&self, method: &'static str, there: Sender<()>, go_on: Receiver<()>) {
        self.lock().held_up.insert(method, (there, go_on));
    }

    /// Number of calls that change something, including refused ones.
    pub(crate) fn calls(&self) -> u32 {
        self.lock().calls
    }

    /// Makes the representor vanish before the next call of `method`.
    pub(crate) fn vanish_at(&self, method: &'static str) {
        self.lock().vanishing = Some(method);
    }

    pub(crate) fn forbid_vlans(&self) {
        self.lock().without_vlan = true;
    }

    /// Only the card of that PF limits what VFs send.
    pub(crate) fn leave_limits_to(&self, card: Option<PfId>) {
        let mut state = self.lock();
        (state.limiting, state.without_limits) = (card, true);
    }

    /// Later failures to prepare concern only a part that ports do not need.
    pub(crate) fn lack_a_part(&self) {
        self.lock().is_partial = true;
    }

    /// Makes the fabric's daemon unavailable or available.
    pub(crate) fn set_fabric_away(&self, is_away: bool) {
        self.lock().is_fabric_away = is_away;
    }

    /// Removes all representors, from the service's next start on.
    pub(crate) fn leave_all_to_the_hosts(&self) {
        self.lock().without_representors = true;
    }

    pub(crate) fn programmer(&self) -> Programmer {
        if self.lock().without_representors {
            return Programmer::without_representors();
        }
        let (eswitch, fabric) = (FakeEswitch(self.clone()), FakeFabric(self.clone()));
        Programmer::new(Arc::new(eswitch), Arc::new(fabric))
    }

    pub(crate) fn port(&self, vf: FunctionId) -> Port {
        self.lock().ports[&vf].clone()
    }

    pub(crate) fn ports(&self) -> Vec<Port> {
        self.lock().ports.values().cloned().collect()
    }

    /// Changes a representor as another program would.
    pub(crate) fn change_port(&self, vf: FunctionId, change_port: impl Fn(&mut Port)) {
        change_port(self.lock().ports.get_mut(&vf).unwrap());
    }

    /// Makes each change hold one lock of the kernel for that long.
    pub(crate) fn slow_down(&self, held: Duration) {
        self.lock().lock = Some(KernelLock { lock: Arc::default(), held });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    fn call(
        &self,
        method: &'static str,
        port: &Representor,
        change: impl FnOnce(&mut Port),
    ) -> Result<(), Refused> {
        let held_up = self.lock().held_up.remove(method);
        if let Some((there, go_on)) = held_up {
            there.send(()).unwrap();
            go_on.recv().unwrap();
        }
        let lock = self.lock().lock.clone();
        if let Some(lock) = lock {
            lock.pass();
        }
        let mut state = self.lock();
        state.calls += 1;
        if let Some(times) = state.refusals.get_mut(method).filter(|times| **times > 0) {
            *times -= 1;
            let (gate, fault) = (state.gate.take(), state.fault.unwrap_or(Fault::Port));
            drop(state);
            if let Some(gate) = gate {
                gate.recv().unwrap();
            }
            let refused =
                Refused::new(format!("{method} {}", port.name), "Device or resource busy");
            return Err(refused.blamed_on(fault));
        }
        if state.vanishing == Some(method) {
            state.vanishing = None;
            state.ports.remove(&port.vf);
        }
        let found = state.ports.get_mut(&port.vf);
        let found = found.filter(|found| found.representor.index == port.index);
        let is_clearing = method.starts_with("clear") || method == "leave";
        match found {
            Some(found) => change(found),
            None if is_clearing => {}
            None => return Err(Refused::because(format!("{} is gone", port.name))),
        }
        Ok(())
    }

    /// A query of the fabric.
    fn ask<T>(&self, answer: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
        if self.lock().is_fabric_away {
            let refused = Refused::because("can't ask the fabric's daemon");
            return Err(refused.blamed_on(Fault::Elsewhere));
        }
        answer()
    }

    fn find<T>(&self, port: &Representor, find: impl Fn(&Port) -> T) -> Result<T, Refused> {
        let state = self.lock();
        let found = state.ports.get(&port.vf);
        let found = found.filter(|found| found.representor.index == port.index);
        found.map(find).ok_or_else(|| Refused::because(format!("{} is gone", port.name)))
    }
}
