//! A card and a kernel in memory, which can be made to refuse.

mod drivers;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

use dpu_service::{
    driver::{Fault, Refused},
    eswitch::Representor,
    fabric::{EgressLimit, Membership},
    model::{AntiSpoofing, Bandwidth, Label, PortSettings, Source},
    programmer::Programmer,
};
use netlink::MacAddress;
use test_clock::sleep_until_moment;
use vf_alloc::{FunctionId, PfId};

use drivers::{FakeEswitch, FakeFabric};

/// The methods that do a step, in the steps' order.
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

/// That of a link of the fabric's own.
pub(crate) const FABRIC_MAC: MacAddress = MacAddress([0x0e, 0, 0, 0, 0, 0xfa]);

/// Cloning it gives the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeKernel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ports: BTreeMap<FunctionId, Port>,
    last_index: u32,
    /// How many calls of a method are refused yet.
    refusals: HashMap<&'static str, u32>,
    /// Whose fault that is. `None`: the port's.
    fault: Option<Fault>,
    /// What the next refusal waits for.
    gate: Option<Receiver<()>>,
    /// What the next call of a method waits for, and what it tells first.
    held_up: HashMap<&'static str, (Sender<()>, Receiver<()>)>,
    /// How many calls there were.
    calls: u32,
    /// Whether VLANs can't be done.
    without_vlan: bool,
    /// The PF whose card limits what its VFs send. `None`: the fabric limits what any sends.
    limiting: Option<PfId>,
    /// Whether the fabric can't.
    without_limits: bool,
    /// Whether nothing of a VF is programmed.
    without_representors: bool,
    /// Whether ports need nothing of what can't be prepared.
    is_partial: bool,
    /// Whether nothing that is asked of the fabric is answered.
    is_fabric_away: bool,
    /// The method whose next call finds the representor gone.
    vanishing: Option<&'static str>,
    /// What each change takes. `None`: no time.
    lock: Option<KernelLock>,
}

/// A lock as the kernel's for links: those that wait get it in their order, and each has it for so long.
#[derive(Clone, Debug)]
struct KernelLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    held: Duration,
}

impl KernelLock {
    /// Has it once. The caller takes half as long again for what needs no lock.
    fn pass(&self) {
        let held = self.lock.blocking_lock();
        sleep_until_moment(self.held);
        drop(held);
        sleep_until_moment(self.held / 2);
    }
}

/// A representor and what is programmed of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) representor: Representor,
    pub(crate) mac: Option<MacAddress>,
    pub(crate) rate: Bandwidth,
    pub(crate) membership: Option<Membership>,
    /// Whether it has no carrier, though it is up.
    pub(crate) is_waiting_for_vf: bool,
    /// Whom it lets send.
    pub(crate) guard: Option<Guarded>,
    /// How much it lets the VF send, where the card does not limit that.
    pub(crate) limit: Option<EgressLimit>,
}

/// What a guard looks at, and whom and what it lets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guarded {
    level: AntiSpoofing,
    mac: MacAddress,
    addresses: Vec<IpAddr>,
    sources: BTreeSet<Source>,
    trunk: BTreeSet<u16>,
}

fn guarded(settings: &PortSettings) -> Guarded {
    Guarded {
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

    /// What a look at it finds.
    fn look(&self) -> Representor {
        Representor {
            master: self.membership.as_ref().map(|_| 1),
            is_limited: self.rate != Bandwidth::default(),
            ..self.representor.clone()
        }
    }

    /// Whether nothing at all is programmed.
    pub(crate) fn is_idle(&self) -> bool {
        *self == Self::new(self.representor.vf, self.representor.index)
    }

    /// Whether all that `settings` want is programmed.
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
    /// With VFs 0 to `count` - 1 of PF 0.
    pub(crate) fn with_vfs(count: u16) -> Self {
        let kernel = Self::default();
        for vf in 0..count {
            kernel.make(FunctionId::local(0, vf));
        }
        kernel
    }

    /// Makes a representor, or makes it anew.
    pub(crate) fn make(&self, vf: FunctionId) {
        let mut state = self.lock();
        state.last_index += 1;
        let port = Port::new(vf, state.last_index);
        state.ports.insert(vf, port);
    }

    /// Takes a representor away.
    pub(crate) fn take_away(&self, vf: FunctionId) {
        self.lock().ports.remove(&vf);
    }

    /// Refuses the next `times` calls of `method`.
    pub(crate) fn refuse(&self, method: &'static str, times: u32) {
        self.lock().refusals.insert(method, times);
    }

    /// Whose fault it is, from now on, when something is refused.
    pub(crate) fn blame(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Refuses the next call of `method`, as soon as something comes through the gate.
    pub(crate) fn refuse_after(&self, gate: Receiver<()>, method: &'static str) {
        self.lock().gate = Some(gate);
        self.refuse(method, 1);
    }

    /// The next call of `method` says that it is there, and waits until it may go on.
    pub(crate) fn hold_up(&self, method: &'static str, there: Sender<()>, go_on: Receiver<()>) {
        self.lock().held_up.insert(method, (there, go_on));
    }

    /// How many calls have changed something, or were to.
    pub(crate) fn calls(&self) -> u32 {
        self.lock().calls
    }

    /// The representor of the next call of `method` vanishes before it.
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

    /// Ports need nothing of what can't be prepared, from now on.
    pub(crate) fn lack_a_part(&self) {
        self.lock().is_partial = true;
    }

    /// The fabric answers no questions, or does so again.
    pub(crate) fn set_fabric_away(&self, is_away: bool) {
        self.lock().is_fabric_away = is_away;
    }

    /// From the service's next start on.
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

    /// Somebody else meddles with a representor.
    pub(crate) fn meddle(&self, vf: FunctionId, meddle: impl Fn(&mut Port)) {
        meddle(self.lock().ports.get_mut(&vf).unwrap());
    }

    /// From now on each change holds one lock of the kernel for so long.
    pub(crate) fn slow_down(&self, held: Duration) {
        self.lock().lock = Some(KernelLock { lock: Arc::default(), held });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
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

    /// What is asked of the fabric.
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
