//! A card and a kernel in memory, which can be made to refuse.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{Receiver, Sender},
    },
};

use dpu_service::{
    driver::{Capability, Fault, Reading, Refused, Unsupported},
    eswitch::{Eswitch, Representor},
    fabric::{Fabric, Membership},
    model::{Bandwidth, PortSettings},
    programmer::Programmer,
};
use netlink::MacAddress;
use vf_alloc::FunctionId;

/// The methods that do a step, in the steps' order.
pub(crate) const DOING: [&str; 7] = [
    "set_mtu",
    "join",
    "set_port_mac",
    "set_rate",
    "set_frame_filter",
    "set_anti_spoofing",
    "set_up",
];

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
    /// Whether nothing of a VF is programmed.
    without_representors: bool,
    /// The method whose next call finds the representor gone.
    vanishing: Option<&'static str>,
}

/// A representor and what is programmed of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) representor: Representor,
    pub(crate) mac: Option<MacAddress>,
    pub(crate) rate: Bandwidth,
    pub(crate) membership: Option<Membership>,
    pub(crate) is_filtered: bool,
    /// Whether it has no carrier, though it is up.
    pub(crate) is_waiting_for_vf: bool,
    pub(crate) anti_spoofing: Option<MacAddress>,
}

impl Port {
    fn new(vf: FunctionId, index: u32) -> Self {
        let representor = Representor {
            vf,
            index,
            name: vf.to_string(),
            mtu: 1500,
            up: false,
            mac: None,
            master: None,
            is_limited: false,
        };
        Self {
            representor,
            mac: None,
            rate: Bandwidth::default(),
            membership: None,
            is_filtered: false,
            is_waiting_for_vf: false,
            anti_spoofing: None,
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
            && self.mac == Some(settings.mac)
            && self.rate == settings.bandwidth
            && self.membership.as_ref() == Some(&Membership::of(settings))
            && self.is_filtered
            && self.anti_spoofing == settings.anti_spoofing.then_some(settings.mac)
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

    /// From the service's next start on.
    pub(crate) fn leave_all_to_the_hosts(&self) {
        self.lock().without_representors = true;
    }

    pub(crate) fn programmer(&self) -> Programmer {
        if self.lock().without_representors {
            return Programmer::without_representors();
        }
        Programmer::new(Arc::new(self.clone()), Arc::new(self.clone()))
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
        let found = state.ports.values_mut().find(|found| found.representor.index == port.index);
        let is_clearing = method.starts_with("clear") || method == "leave";
        match found {
            Some(found) => change(found),
            None if is_clearing => {}
            None => return Err(Refused::because(format!("{} is gone", port.name))),
        }
        Ok(())
    }

    fn find<T>(&self, port: &Representor, find: impl Fn(&Port) -> T) -> Result<T, Refused> {
        let state = self.lock();
        let found = state.ports.values().find(|found| found.representor.index == port.index);
        found.map(find).ok_or_else(|| Refused::because(format!("{} is gone", port.name)))
    }
}

fn reading(in_place: bool) -> Reading {
    if in_place { Reading::in_place("as wanted") } else { Reading::missing("otherwise") }
}

impl Eswitch for FakeKernel {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Vec<Capability> {
        Vec::new()
    }

    fn check(&self, _: &PortSettings) -> Result<(), Unsupported> {
        Ok(())
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        Ok(self.lock().ports.values().map(Port::look).collect())
    }

    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        Ok(self.lock().ports.get(&vf).map(Port::look))
    }

    fn set_port_mac(&self, port: &Representor, mac: MacAddress) -> Result<(), Refused> {
        self.call("set_port_mac", port, |port| port.mac = Some(mac))
    }

    fn clear_port_mac(&self, port: &Representor) -> Result<(), Refused> {
        self.call("clear_port_mac", port, |port| port.mac = None)
    }

    fn port_mac(&self, port: &Representor, mac: MacAddress) -> Result<Reading, Refused> {
        self.find(port, |port| reading(port.mac == Some(mac)))
    }

    fn set_rate(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<(), Refused> {
        self.call("set_rate", port, |port| port.rate = *bandwidth)
    }

    fn clear_rate(&self, port: &Representor) -> Result<(), Refused> {
        self.call("clear_rate", port, |port| port.rate = Bandwidth::default())
    }

    fn rate(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<Reading, Refused> {
        self.find(port, |port| reading(port.rate == *bandwidth))
    }

    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.call("set_mtu", port, |port| port.representor.mtu = mtu)
    }

    fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        self.call("set_up", port, |port| port.representor.up = up)
    }
}

impl Fabric for FakeKernel {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Vec<Capability> {
        Vec::new()
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        match settings.vlan {
            Some(vlan) if self.lock().without_vlan => Err(Unsupported {
                setting: format!("VLAN {vlan}"),
                why: "the kernel has no VLAN filtering".into(),
            }),
            _ => Ok(()),
        }
    }

    fn prepare(&self) -> Result<(), Refused> {
        let mut state = self.lock();
        match state.refusals.get_mut("prepare").filter(|times| **times > 0) {
            Some(times) => {
                *times -= 1;
                Err(Refused::new("make bridge br-offload", "Operation not permitted"))
            }
            None => Ok(()),
        }
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        let membership = Membership::of(settings);
        self.call("join", port, |port| port.membership = Some(membership))
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        self.call("leave", port, |port| {
            port.membership = None;
            port.anti_spoofing = None;
        })
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        self.find(port, |port| port.membership.clone())
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        let member = |port: &Port| Some((port.representor.index, port.membership.clone()?));
        Ok(self.lock().ports.values().filter_map(member).collect())
    }

    fn forwards(&self, index: u32) -> Result<bool, Refused> {
        let state = self.lock();
        let port = state.ports.values().find(|port| port.representor.index == index);
        Ok(port.is_some_and(|port| port.representor.up && !port.is_waiting_for_vf))
    }

    fn set_frame_filter(&self, port: &Representor, _: &PortSettings) -> Result<(), Refused> {
        self.call("set_frame_filter", port, |port| port.is_filtered = true)
    }

    fn clear_frame_filter(&self, port: &Representor) -> Result<(), Refused> {
        self.call("clear_frame_filter", port, |port| port.is_filtered = false)
    }

    fn frame_filter(&self, port: &Representor, _: &PortSettings) -> Result<Reading, Refused> {
        self.find(port, |port| reading(port.is_filtered))
    }

    fn set_anti_spoofing(
        &self,
        port: &Representor,
        settings: &PortSettings,
    ) -> Result<(), Refused> {
        self.call("set_anti_spoofing", port, |port| port.anti_spoofing = Some(settings.mac))
    }

    fn clear_anti_spoofing(&self, port: &Representor) -> Result<(), Refused> {
        self.call("clear_anti_spoofing", port, |port| port.anti_spoofing = None)
    }

    fn anti_spoofing(
        &self,
        port: &Representor,
        settings: &PortSettings,
    ) -> Result<Reading, Refused> {
        let wanted = settings.anti_spoofing.then_some(settings.mac);
        self.find(port, |port| reading(port.anti_spoofing == wanted))
    }
}
