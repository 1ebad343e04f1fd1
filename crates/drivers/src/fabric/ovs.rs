//! The fabric driver `ovs`: a bridge of Open vSwitch.
//!
//! A missing bridge is created and is ours: it forwards only what our flows let pass. A bridge that another program
//! created is used as it is: our ports join it, and nothing else in it changes. Ports and bridges are rows of Open
//! vSwitch's database and survive restarts. Guards are flows; they end with the daemon and are set again when it is
//! back.
//!
//! Calls for several ports overlap. Ports share the connection to the database, the port numbers, and the QoS row
//! without queues. Each has a lock of its own. The lock of the numbers is taken inside a look at the replica. The
//! lock of the QoS row is held while the row is created, which happens once. Otherwise no lock is held while
//! another one is taken, or while a call waits for the daemon. A port's number becomes free when its flows are
//! gone, which is after its row is gone.

mod allow_rules;
mod flow_set;
mod flows;
mod guard;
mod limit;
mod numbers;
mod ports;
mod protocols;
mod rows;
mod settings;
mod shared;
mod tables;
mod touched;
mod vswitch;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicBool},
};

use netlink::{LinkEvent, MacAddress};
use openflow::{Action, Cookies, CountedFlow, Switch};
use parking_lot::{Condvar, Mutex};
pub use settings::{DATABASE, Datapath, OvsSettings, check_database};
pub use vswitch::Vswitch;

use flows::Flows;
use rows::Port;
use touched::Touched;

use super::{
    BridgeSettings, EgressLimit, Fabric, Membership,
    guard::{describe, wanted},
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
};
use model::PortSettings;

/// What is covered: a sentence for people.
const WHERE: &str = "by flows, which a card may take over";

/// The cookie of our flows. The last 16 bits are the port's number; 0: flows of the bridge itself.
const COOKIE: u64 = 0x0ff1_0ad0_0000_0000;
/// The bits of a cookie with the port's number.
const NUMBER: u64 = 0xffff;

/// Matches all flows of ours.
const OURS: Cookies = Cookies { value: COOKIE, mask: u64::MAX << u32::BITS };

/// Matches all flows, those of other programs included.
const ALL_FLOWS: Cookies = Cookies { value: 0, mask: 0 };

/// The driver.
#[derive(Debug)]
pub struct OvsFabric {
    inner: Arc<Inner>,
}

/// State that the driver shares with its watching threads.
#[derive(Debug)]
struct Inner {
    settings: BridgeSettings,
    datapath: Datapath,
    vswitch: Arc<Vswitch>,
    flows: Flows,
    /// The flows that are the same for all our ports.
    common: BTreeSet<openflow::Flow>,
    sockets: Sockets,
    /// The links that all ports share, as the latest look found them.
    shared: Mutex<SharedLinks>,
    /// Whether the datapath has meters, as the latest look found.
    meters: Mutex<Ability>,
    /// Whether the bridge that was found last belongs to another program.
    is_foreign: AtomicBool,
    touched: Touched,
    repairs: Repairs,
    /// Whether the driver was dropped.
    is_over: Mutex<bool>,
    /// Notified when `is_over` changes.
    over: Condvar,
}

/// What the kernel reports about the links that all ports share.
#[derive(Debug, Default)]
struct SharedLinks {
    /// The smallest MTU of the uplinks that could be joined, in bytes.
    mtu: Option<u32>,
    /// The MAC addresses of the bridge and of its links that are not pods' ports.
    macs: Vec<MacAddress>,
    /// A sentence about another program's flows that precede our guards.
    problem: Option<String>,
}

impl OvsFabric {
    /// A driver for this bridge of `vswitch`, which all bridges of the fabric share. Links are those of the calling
    /// thread's network namespace. Open vSwitch need not run yet. [`Fabric::prepare`] creates the bridge.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn open(settings: &OvsSettings, vswitch: &Arc<Vswitch>) -> Result<Self, Refused> {
        let inner = Inner {
            settings: settings.bridge.clone(),
            datapath: settings.datapath,
            vswitch: Arc::clone(vswitch),
            flows: Flows::new(vswitch.management(&settings.bridge.name)),
            common: common_flows(),
            sockets: Sockets::open()?,
            shared: Mutex::default(),
            meters: Mutex::new(Ok(())),
            is_foreign: AtomicBool::default(),
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
        *self.inner.is_over.lock() = true;
        self.inner.over.notify_all();
        // Ends the wait of the thread that watches the database.
        self.inner.vswitch.close();
    }
}

impl Inner {
    /// Calls `look` with the port's row, if the port is a member by the link that it has now.
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

    /// The OpenFlow number of a member.
    fn number(&self, port: &Representor) -> Result<Option<u32>, Refused> {
        Ok(self.of_member(port, |port| port.number())?.flatten())
    }

    fn not_joined(&self, port: &Representor) -> Refused {
        Refused::because(format!("{} is not in bridge {}", port.name, self.settings.name))
    }

    /// Refuses a daemon that parses a second VLAN tag. The guard finds double-tagged frames by their EtherType,
    /// which such a daemon replaces by the type behind the second tag.
    fn check_tags(&self, doing: &str) -> Result<(), Refused> {
        let limit = self.vswitch.look(|replica| rows::other_vlan_limit(replica).map(str::to_owned));
        limit?.map_or(Ok(()), |limit| {
            Err(Refused::because(format!(
                "can't {doing}: with vlan-limit {limit}, Open vSwitch does not see that a frame has two tags; reset it \
                 with `ovs-vsctl remove Open_vSwitch . other_config vlan-limit`"
            ))
            .blamed_on(Fault::Elsewhere))
        })
    }

    /// Calls `look` with each port in the bridge, if the bridge exists.
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

    /// The packets that ports' flows and meters have dropped, by the index of the link.
    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        let number =
            |port: Port<'_>| Some((port.index()?, port.number()?)).filter(|_| port.is_ours());
        let numbers: BTreeMap<u32, u32> = self.of_ports(number)?;
        // Without ports the bridge may not exist, so there is nothing to ask.
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

    /// The packets that flows have dropped, by the number of the port.
    fn dropped_by_flows(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        let tables = [tables::DROPS, tables::RULES];
        let counted =
            self.flows.with(&self.counting(), |switch| switch.flows_of_tables(&tables, OURS))?;
        let mut drops: BTreeMap<u32, Drops> = BTreeMap::new();
        for CountedFlow { flow, packets, .. } in counted {
            let number = number_of(flow.cookie).filter(|_| flow.action == Action::Drop);
            let Some(number) = number else { continue };
            let of_port = drops.entry(number).or_default();
            match flow.table {
                tables::DROPS => of_port.guard += packets,
                _ => of_port.allow += packets,
            }
        }
        Ok(drops)
    }

    /// The packets that meters have dropped, by the number of the port.
    fn dropped_by_meters(&self) -> Result<BTreeMap<u32, u64>, Refused> {
        match self.meters() {
            Ok(()) => self.flows.with(&self.counting(), Switch::meter_drops),
            // Without meters there are no limits, and so no drops.
            Err(_) => Ok(BTreeMap::new()),
        }
    }

    fn counting(&self) -> String {
        format!("count what bridge {} has dropped", self.settings.name)
    }
}

/// The number of the port that a flow with this cookie belongs to.
fn number_of(cookie: u64) -> Option<u32> {
    u32::try_from(cookie & NUMBER).ok()
}

/// The flows that are the same for all our ports.
fn common_flows() -> BTreeSet<openflow::Flow> {
    let mut flows = guard::common_flows(COOKIE);
    flows.extend(allow_rules::common_flows(COOKIE));
    flows
}

/// The flows of the port with that number.
fn flows_of(number: u32, settings: &PortSettings) -> BTreeSet<openflow::Flow> {
    let cookie = cookie_of(number);
    let mut flows = guard::flows(number, cookie, &wanted(settings));
    flows.extend(allow_rules::flows(number, cookie, settings));
    flows
}

/// The cookie of the guard's flows of the port with that number.
fn cookie_of(number: u32) -> u64 {
    COOKIE | u64::from(number)
}

/// Matches all flows of the port with that number, its limit's included.
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
        allow_rules::check(settings)
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        let name = match event {
            // A lost event may have been about the bridge.
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

    /// For each change the daemon goes through all ports, and it handles several pending changes in one pass.
    fn together(&self) -> usize {
        16
    }

    fn uplink_mtu(&self, _bridge: Option<&str>) -> Option<u32> {
        self.inner.shared.lock().mtu
    }

    fn uplinks(&self, _bridge: Option<&str>) -> &[String] {
        &self.inner.settings.uplinks
    }

    fn occupant(&self, port: &Representor) -> Result<Option<String>, Refused> {
        self.inner.occupant(port)
    }

    fn own_macs(&self) -> Vec<MacAddress> {
        self.inner.shared.lock().macs.clone()
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
            Reading::missing("its flows differ")
        } else {
            let rules = allow_rules::describe(settings).map(|rules| format!("; {rules}"));
            Reading::in_place(describe(&wanted(settings)) + &rules.unwrap_or_default())
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
        self.inner.shared.lock().problem.clone().into_iter().collect()
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
