//! A bridge of Open vSwitch as the fabric.
//!
//! One that is not there is made, and ours: it forwards nothing but what flows of ours let pass. One that somebody
//! else made is used as it is: our ports join it, and nothing else of it is changed. Ports and bridges are rows of
//! Open vSwitch's database, which survive everything; the guards are flows, which end with the daemon and are set
//! again when it is back.
//!
//! Calls for several ports overlap. What two ports share is the connection to the database, the numbers of ports and
//! the row that leaves queues to others: each has a lock of its own. That of the numbers is taken while the replica is
//! looked at; otherwise none is held while another is taken, and none while the daemon is waited for, but for that of
//! the one row, which is made once. A number is nobody's again when its flows are gone, which is after its row is.

mod flow_set;
mod flows;
mod guard;
mod limit;
mod numbers;
mod openings;
mod ports;
mod rows;
mod settings;
mod shared;
mod switches;
mod touched;
mod vswitch;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use netlink::{LinkEvent, MacAddress};
use openflow::{Action, Cookies, CountedFlow, Switch};
pub(crate) use settings::check_database;
pub use settings::{DATABASE, Datapath, OvsSettings};
pub use vswitch::Vswitch;

use flows::Flows;
use rows::Port;
use shared::SharedLinks;
use switches::Switches;
use touched::Touched;

use super::{
    BridgeSettings, EgressLimit, Fabric, Membership,
    guard::{told, wanted},
    offload,
    repairs::Repairs,
    sockets::Sockets,
};
use crate::{
    counters::{Drops, Offloaded},
    driver::{
        ALLOW_RULES, Ability, Capability, Fault, Reading, Refused, Unsupported, capability,
        limited_capability,
    },
    eswitch::Representor,
    model::PortSettings,
};

/// What is done where it can be, for people.
const WHERE: &str = "by flows, which a card may take over";

/// Marks our flows. The last 16 bits are the port's number; 0: those of the bridge itself.
const COOKIE: u64 = 0x0ff1_0ad0_0000_0000;
/// Where the number is.
const NUMBER: u64 = 0xffff;

/// All flows of ours.
const OURS: Cookies = Cookies { value: COOKIE, mask: u64::MAX << u32::BITS };

/// All flows, those of other programs included.
const ALL_FLOWS: Cookies = Cookies { value: 0, mask: 0 };

/// The driver.
#[derive(Debug)]
pub struct OvsFabric {
    inner: Arc<Inner>,
}

/// What the threads that wait for news share with it.
#[derive(Debug)]
struct Inner {
    settings: BridgeSettings,
    datapath: Datapath,
    vswitch: Arc<Vswitch>,
    flows: Flows,
    /// The flows that are the same for all ports of ours.
    common: BTreeSet<openflow::Flow>,
    sockets: Sockets,
    /// What the latest look found of the links that all ports share.
    shared: Mutex<SharedLinks>,
    /// Whether the datapath has meters, as the latest look found.
    meters: Mutex<Ability>,
    /// Whether the bridge that was found last is somebody else's.
    is_others: AtomicBool,
    touched: Touched,
    repairs: Repairs,
    /// Whether nobody is interested any more in what happens.
    is_over: Mutex<bool>,
    /// Told of that.
    over: Condvar,
}

impl OvsFabric {
    /// The driver for that bridge of `vswitch`, which all bridges of it have in common; the links are those of the
    /// calling thread's network namespace. Open vSwitch need not run yet. [`Fabric::prepare`] makes the bridge.
    ///
    /// # Errors
    /// When the kernel can't be talked to.
    pub fn open(settings: &OvsSettings, vswitch: &Arc<Vswitch>) -> Result<Self, Refused> {
        let inner = Inner {
            settings: settings.bridge.clone(),
            datapath: settings.datapath,
            vswitch: Arc::clone(vswitch),
            flows: Flows::new(Switches::new(vswitch.management(&settings.bridge.name))),
            common: common_flows(),
            sockets: Sockets::open()?,
            shared: Mutex::default(),
            meters: Mutex::new(Ok(())),
            is_others: AtomicBool::default(),
            touched: Touched::default(),
            repairs: Repairs::default(),
            is_over: Mutex::default(),
            over: Condvar::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Drop for OvsFabric {
    fn drop(&mut self) {
        *self.inner.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.over.notify_all();
        self.inner.vswitch.close();
    }
}

impl Inner {
    fn shared(&self) -> MutexGuard<'_, SharedLinks> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of the port `look` makes, if it is a member, by the link that it has now.
    fn of_member<T>(
        &self,
        port: &Representor,
        look: impl FnOnce(Port<'_>) -> T,
    ) -> Result<Option<T>, Refused> {
        self.vswitch.look(|replica| {
            let found = Port::find(replica, &port.name)?;
            let is_member = found.is_ours()
                && found.is_in(&self.settings.name)
                && found.index() == Some(port.index);
            is_member.then(|| look(found))
        })
    }

    /// The number of a member in flows.
    fn number(&self, port: &Representor) -> Result<Option<u32>, Refused> {
        Ok(self.of_member(port, |port| port.number())?.flatten())
    }

    fn not_joined(&self, port: &Representor) -> Refused {
        Refused::because(format!("{} is not in bridge {}", port.name, self.settings.name))
    }

    /// Refuses a daemon that looks behind a second tag: the guard counts on finding its type in place of what is
    /// behind it.
    fn check_tags(&self, doing: &str) -> Result<(), Refused> {
        let limit = self.vswitch.look(|replica| rows::other_vlan_limit(replica).map(str::to_owned));
        limit?.map_or(Ok(()), |limit| {
            Err(Refused::because(format!(
                "can't {doing}: Open vSwitch's vlan-limit is {limit}, by which it does not see that a tag is behind \
                 another; set it back with `ovs-vsctl remove Open_vSwitch . other_config vlan-limit`"
            ))
            .blamed_on(Fault::Elsewhere))
        })
    }

    /// What of each port in the bridge `look` makes something, if there is a bridge.
    fn of_ports<T: FromIterator<O>, O>(
        &self,
        look: impl Fn(Port<'_>) -> Option<O>,
    ) -> Result<T, Refused> {
        self.vswitch.look(|replica| {
            let bridge = rows::bridge(replica, &self.settings.name);
            let ports = bridge.into_iter().flat_map(|bridge| Port::all(replica, bridge));
            ports.filter_map(look).collect()
        })
    }

    /// What ports' flows that drop have counted, and their meters, by the index of the link.
    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        let number =
            |port: Port<'_>| Some((port.index()?, port.number()?)).filter(|_| port.is_ours());
        let numbers: BTreeMap<u32, u32> = self.of_ports(number)?;
        // Without ports there may be no bridge that could be asked.
        if numbers.is_empty() {
            return Ok(BTreeMap::new());
        }
        let by_flows = self.dropped_by_flows()?;
        let by_meters = self.dropped_by_meters()?;
        let of_port = |(index, number)| {
            let by_flows = by_flows.get(&number).copied().unwrap_or_default();
            let egress_limit = by_meters.get(&number).copied().unwrap_or_default();
            (index, Drops { egress_limit, ..by_flows })
        };
        Ok(numbers.into_iter().map(of_port).collect())
    }

    /// By the numbers of ports.
    fn dropped_by_flows(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        let tables = [guard::DROPS, openings::RULES];
        let counted =
            self.flows.with(&self.counting(), |switch| switch.flows_of_tables(&tables, OURS))?;
        let mut drops: BTreeMap<u32, Drops> = BTreeMap::new();
        for CountedFlow { flow, packets, .. } in counted {
            let number = number_of(flow.cookie).filter(|_| flow.action == Action::Drop);
            let Some(number) = number else { continue };
            let of_port = drops.entry(number).or_default();
            match flow.table {
                guard::DROPS => of_port.guard += packets,
                _ => of_port.allow += packets,
            }
        }
        Ok(drops)
    }

    /// Likewise.
    fn dropped_by_meters(&self) -> Result<BTreeMap<u32, u64>, Refused> {
        match self.meters() {
            Ok(()) => self.flows.with(&self.counting(), Switch::meter_drops),
            Err(_) => Ok(BTreeMap::new()),
        }
    }

    fn counting(&self) -> String {
        format!("count what bridge {} has dropped", self.settings.name)
    }
}

/// The number of the port whose flows are marked so.
fn number_of(cookie: u64) -> Option<u32> {
    u32::try_from(cookie & NUMBER).ok()
}

/// What is the same for all ports of ours, beside the flows that each has.
fn common_flows() -> BTreeSet<openflow::Flow> {
    let mut flows = guard::common_flows(COOKIE);
    flows.extend(openings::common_flows(COOKIE));
    flows
}

/// All flows of the port with that number.
fn flows_of(number: u32, settings: &PortSettings) -> BTreeSet<openflow::Flow> {
    let cookie = cookie_of(number);
    let mut flows = guard::flows(number, cookie, &wanted(settings));
    flows.extend(openings::flows(number, cookie, settings));
    flows
}

/// What marks the flows of the guard of the port with that number.
fn cookie_of(number: u32) -> u64 {
    COOKIE | u64::from(number)
}

/// All flows of the port with that number.
fn cookies_of(number: u32) -> Cookies {
    Cookies { value: cookie_of(number), mask: !limit::LIMIT }
}

impl Fabric for OvsFabric {
    fn name(&self) -> &'static str {
        "ovs"
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![
            capability("vlan-filtering", &Ok(())),
            limited_capability("guard", &Ok(()), WHERE),
            limited_capability("egress-limit", &self.inner.meters(), limit::WHERE),
            limited_capability(ALLOW_RULES, &Ok(()), WHERE),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        openings::check(settings)
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        let name = match event {
            LinkEvent::Missed => return true,
            LinkEvent::PortChanged { .. } => return false,
            LinkEvent::Changed(link) => &link.name,
            LinkEvent::Gone { name, .. } => name,
        };
        self.inner.settings.names(name)
    }

    fn changes(&self) -> Vec<tokio::sync::watch::Receiver<u64>> {
        vec![watch::follow(&self.inner)]
    }

    fn prepare(&self) -> Result<(), Refused> {
        self.inner.prepare()
    }

    fn take_repairs(&self) -> Vec<String> {
        self.inner.repairs.take()
    }

    /// With every change the daemon goes through all of its ports, and through several changes together.
    fn together(&self) -> usize {
        16
    }

    fn uplink_mtu(&self, _bridge: Option<&str>) -> Option<u32> {
        self.inner.shared().mtu
    }

    fn uplinks(&self, _bridge: Option<&str>) -> &[String] {
        &self.inner.settings.uplinks
    }

    fn occupant(&self, port: &Representor) -> Result<Option<String>, Refused> {
        self.inner.occupant(port)
    }

    fn own_macs(&self) -> Vec<MacAddress> {
        self.inner.shared().macs.clone()
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.inner.join(port, &Membership::of(settings))
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        self.inner.leave(port)
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        self.inner.of_member(port, |port| port.membership())
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        self.inner.of_ports(|port| Some((port.index()?, port.membership())))
    }

    fn forwards(&self, index: u32) -> Result<bool, Refused> {
        let refused = |error| Refused::new(format!("look at link {index}"), error);
        let link = self.inner.sockets.with(|rtnl| rtnl.link_by_index(index).map_err(refused))?;
        Ok(link.is_some_and(|link| link.is_up && link.is_running))
    }

    fn set_guard(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        let doing = format!("set the flows of {}", port.name);
        let number = self.inner.number(port)?.ok_or_else(|| self.inner.not_joined(port))?;
        self.inner.check_tags(&doing)?;
        self.inner.flows.set(&doing, cookie_of(number), &flows_of(number, settings)).map(drop)
    }

    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        let Some(number) = self.inner.number(port)? else {
            return Ok(Reading::missing("the port is not in the bridge"));
        };
        let (doing, cookie) = (format!("read the flows of {}", port.name), cookie_of(number));
        let found = self.inner.flows.marked(&doing, cookie)?;
        if let Err(refused) = self.inner.check_tags("rely on its flows") {
            return Ok(Reading::missing(refused.to_string()));
        }
        Ok(if found.is_empty() {
            Reading::missing("it has no flows")
        } else if found != flows_of(number, settings) {
            Reading::missing("it has other flows")
        } else {
            let rules = openings::told(settings).map(|rules| format!("; {rules}"));
            Reading::in_place(told(&wanted(settings)) + &rules.unwrap_or_default())
        })
    }

    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        self.inner.drops()
    }

    fn flows(&self) -> Result<Vec<String>, Refused> {
        let bridge = &self.inner.settings.name;
        let doing = format!("list the flows of bridge {bridge}");
        let flows = self.inner.flows.with(&doing, |switch| switch.flows(ALL_FLOWS))?;
        Ok(flows.iter().map(|flow| format!("{bridge} {flow}")).collect())
    }

    fn problems(&self) -> Vec<String> {
        self.inner.shared().problem.clone().into_iter().collect()
    }

    fn offloaded(&self, ports: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offloaded>, Refused> {
        self.inner.sockets.with(|rtnl| offload::of_filters(rtnl, ports))
    }

    fn check_egress_limit(&self, limit: &EgressLimit) -> Result<(), Unsupported> {
        limit.check(&self.inner.meters())
    }

    fn set_egress_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused> {
        self.inner.set_limit(port, limit)
    }

    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused> {
        self.inner.clear_limit(port)
    }

    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused> {
        self.inner.find_limit(port, wanted)
    }
}
