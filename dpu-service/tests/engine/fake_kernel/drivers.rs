//! Drivers of the card and kernel in memory.

use std::collections::{BTreeMap, BTreeSet};

use drivers::{
    counters::{Drops, Offloaded},
    driver::{Capability, Reading, Refused, Unsupported},
    eswitch::{Carried, Eswitch, Representor},
    fabric::{EgressLimit, Fabric, Membership},
};
use model::{Bandwidth, Label, PortSettings};
use netlink::MacAddress;
use vf_alloc::FunctionId;

use super::{FABRIC_MAC, FakeKernel, Port, guarded};

#[derive(Debug)]
pub(super) struct FakeEswitch(pub(super) FakeKernel);

/// The fabric of the card's representors.
#[derive(Debug)]
pub(super) struct FakeFabric(pub(super) FakeKernel);

fn reading(in_place: bool) -> Reading {
    if in_place { Reading::in_place("as wanted") } else { Reading::missing("otherwise") }
}

impl Eswitch for FakeEswitch {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn card_of(&self, vf: FunctionId) -> Option<String> {
        Some(format!("pci/0000:0{}:00.0", vf.pf.pf))
    }

    fn capabilities(&self) -> Vec<Capability> {
        Vec::new()
    }

    fn check(&self, _: &PortSettings) -> Result<(), Unsupported> {
        Ok(())
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        Ok(self.0.lock().ports.values().map(Port::look).collect())
    }

    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        Ok(self.0.lock().ports.get(&vf).map(Port::look))
    }

    fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused> {
        let carried = |port: &Port| (port.representor.index, Carried::default());
        Ok(self.0.lock().ports.values().map(carried).collect())
    }

    fn set_port_mac(&self, port: &Representor, mac: MacAddress) -> Result<(), Refused> {
        self.0.call("set_port_mac", port, |port| port.mac = Some(mac))
    }

    fn clear_port_mac(&self, port: &Representor) -> Result<(), Refused> {
        self.0.call("clear_port_mac", port, |port| port.mac = None)
    }

    fn port_mac(&self, port: &Representor, mac: MacAddress) -> Result<Reading, Refused> {
        self.0.find(port, |port| reading(port.mac == Some(mac)))
    }

    fn limits_egress(&self, vf: FunctionId) -> bool {
        let kernel = self.0.lock();
        !kernel.ports.contains_key(&vf) || kernel.limiting == Some(vf.pf)
    }

    fn set_rate(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.0.call("set_rate", port, |port| port.rate = settings.bandwidth)
    }

    fn clear_rate(&self, port: &Representor) -> Result<(), Refused> {
        self.0.call("clear_rate", port, |port| port.rate = Bandwidth::default())
    }

    fn rate(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        self.0.find(port, |port| reading(port.rate == settings.bandwidth))
    }

    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.0.call("set_mtu", port, |port| port.representor.mtu = mtu)
    }

    fn set_label(&self, port: &Representor, label: &Label) -> Result<(), Refused> {
        self.0.call("set_label", port, |port| port.representor.label = label.clone())
    }

    fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        self.0.call("set_up", port, |port| port.representor.up = up)
    }
}

impl Fabric for FakeFabric {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Vec<Capability> {
        Vec::new()
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        match settings.vlan {
            Some(vlan) if self.0.lock().without_vlan => Err(Unsupported {
                setting: format!("VLAN {vlan}"),
                why: "the kernel has no VLAN filtering".into(),
            }),
            _ => Ok(()),
        }
    }

    fn prepare(&self) -> Result<(), Refused> {
        let mut state = self.0.lock();
        match state.refusals.get_mut("prepare").filter(|times| **times > 0) {
            Some(times) => {
                *times -= 1;
                let refused = Refused::new("make bridge br-offload", "Operation not permitted");
                Err(if state.is_partial { refused.partial() } else { refused })
            }
            None => Ok(()),
        }
    }

    fn own_macs(&self) -> Vec<MacAddress> {
        vec![FABRIC_MAC]
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        let membership = Membership::of(settings);
        self.0.call("join", port, |port| port.membership = Some(membership))
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        self.0.call("leave", port, |port| (port.membership, port.guard) = (None, None))
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        self.0.ask(|| self.0.find(port, |port| port.membership.clone()))
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        let member = |port: &Port| Some((port.representor.index, port.membership.clone()?));
        self.0.ask(|| Ok(self.0.lock().ports.values().filter_map(member).collect()))
    }

    fn forwards(&self, index: u32) -> Result<bool, Refused> {
        let state = self.0.lock();
        let port = state.ports.values().find(|port| port.representor.index == index);
        Ok(port.is_some_and(|port| port.representor.up && !port.is_waiting_for_vf))
    }

    fn set_guard(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.0.call("set_guard", port, |port| port.guard = Some(guarded(settings)))
    }

    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        self.0.ask(|| self.0.find(port, |port| reading(port.guard == Some(guarded(settings)))))
    }

    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        self.0.ask(|| Ok(BTreeMap::new()))
    }

    fn offloaded(&self, _: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offloaded>, Refused> {
        Ok(BTreeMap::new())
    }

    fn check_egress_limit(&self, limit: &EgressLimit) -> Result<(), Unsupported> {
        match self.0.lock().without_limits {
            true => Err(Unsupported {
                setting: format!("an egress rate of {} bit/s", limit.rate),
                why: "the kernel has no police".into(),
            }),
            false => Ok(()),
        }
    }

    fn set_egress_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused> {
        self.0.call("set_egress_limit", port, |port| port.limit = Some(*limit))
    }

    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused> {
        self.0.call("clear_egress_limit", port, |port| port.limit = None)
    }

    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused> {
        self.0.ask(|| self.0.find(port, |port| reading(port.limit.as_ref() == wanted)))
    }
}
