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
use openflow::{Action, Change, Cookies, CountedFlow};
pub use settings::{DATABASE, Datapath, OvsSettings};

use numbers::Numbers;
use rows::Port;
use shared::SharedLinks;
use switches::Switches;
use touched::Touched;
use vswitch::Vswitch;

use super::{
    BridgeSettings, EgressLimit, Fabric, Membership,
    guard::{told, wanted},
    offload,
    sockets::Sockets,
};
use crate::{
    counters::Offloaded,
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
    vswitch: Vswitch,
    switches: Switches,
    numbers: Numbers,
    sockets: Sockets,
    /// What the latest look found of the links that all ports share.
    shared: Mutex<SharedLinks>,
    /// Whether the datapath has meters, as the latest look found.
    meters: Mutex<Ability>,
    /// Whether the bridge that was found last is somebody else's.
    is_others: AtomicBool,
    /// Held while the one row is looked for or made that leaves queues to others.
    no_queues: Mutex<()>,
    touched: Touched,
    /// Whether nobody is interested any more in what happens.
    is_over: Mutex<bool>,
    /// Told of that.
    over: Condvar,
}

impl OvsFabric {
    /// The driver for that bridge; the links are those of the calling thread's network namespace. Open vSwitch
    /// need not run yet. [`Fabric::prepare`] makes the bridge.
    ///
    /// # Errors
    /// When the kernel can't be talked to.
    pub fn open(settings: &OvsSettings) -> Result<Self, Refused> {
        let inner = Inner {
            settings: settings.bridge.clone(),
            datapath: settings.datapath,
            vswitch: Vswitch::new(settings.database.clone()),
            switches: Switches::new(settings.management()),
            numbers: Numbers::default(),
            sockets: Sockets::open()?,
            shared: Mutex::default(),
            meters: Mutex::new(Ok(())),
            is_others: AtomicBool::default(),
            no_queues: Mutex::default(),
            touched: Touched::default(),
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

    /// What each port's flow that drops has counted, by the index of its link.
    fn guard_drops(&self) -> Result<BTreeMap<u32, u64>, Refused> {
        let doing = format!("count what bridge {} has dropped", self.settings.name);
        let counted =
            self.switches.with(&doing, |switch| switch.flows_of_table(guard::DROPS, OURS))?;
        let of_port =
            |counted: CountedFlow| Some((number_of(counted.flow.cookie)?, counted.packets));
        let by_number: BTreeMap<_, _> = counted.into_iter().filter_map(of_port).collect();
        self.vswitch.look(|replica| {
            let bridge = rows::bridge(replica, &self.settings.name);
            let ports = bridge.into_iter().flat_map(|bridge| Port::all(replica, bridge));
            let dropped = |port: Port<'_>| Some((port.index()?, *by_number.get(&port.number()?)?));
            ports.filter(Port::is_ours).filter_map(dropped).collect()
        })
    }

    /// Has exactly these flows with that cookie.
    fn set_flows(
        &self,
        doing: &str,
        cookie: u64,
        wanted: &BTreeSet<openflow::Flow>,
    ) -> Result<(), Refused> {
        self.switches.with(doing, |switch| {
            let found = flows_with(switch, cookie)?;
            let surplus = found.difference(wanted).cloned().map(Change::Remove);
            let missing = wanted.difference(&found).cloned().map(Change::Add);
            // The switch does all of it at once: what was let pass, and still is, is at no moment dropped.
            let changes: Vec<_> = surplus.chain(missing).collect();
            if changes.is_empty() {
                return Ok(());
            }
            switch.change(&changes)?;
            let zones = zones(&found);
            let left = zones.difference(&self::zones(wanted)).copied().collect::<Vec<_>>();
            left.into_iter().try_for_each(|zone| switch.forget_connections(zone))
        })
    }
}

fn flows_with(
    switch: &mut openflow::Switch,
    cookie: u64,
) -> Result<BTreeSet<openflow::Flow>, openflow::Error> {
    let found = switch.flows(Cookies { value: cookie, mask: u64::MAX })?;
    Ok(found.into_iter().map(|counted| counted.flow).collect())
}

/// The number of the port whose flows are marked so.
fn number_of(cookie: u64) -> Option<u32> {
    u32::try_from(cookie & NUMBER).ok()
}

/// The zones in which flows look connections up.
fn zones<'a>(flows: impl IntoIterator<Item = &'a openflow::Flow>) -> BTreeSet<u16> {
    let zone = |flow: &openflow::Flow| match flow.action {
        Action::Track { zone, .. } | Action::Remember { zone, .. } => Some(zone),
        Action::Drop
        | Action::Normal
        | Action::Table(_)
        | Action::Metered { .. }
        | Action::Other => None,
    };
    flows.into_iter().filter_map(zone).collect()
}

/// All flows of the port with that number.
fn flows_of(number: u32, settings: &PortSettings) -> BTreeSet<openflow::Flow> {
    let cookie = cookie_of(number);
    let end = openings::behind_guard(settings);
    let mut flows = guard::flows(number, cookie, &wanted(settings), end);
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

    /// With every change the daemon goes through all of its ports, and through several changes together.
    fn together(&self) -> usize {
        16
    }

    fn uplink_mtu(&self, _bridge: Option<&str>) -> Option<u32> {
        self.inner.shared().mtu
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
        let inner = &self.inner;
        inner
            .vswitch
            .look(|replica| {
                let bridge = rows::bridge(replica, &inner.settings.name)?;
                let ports = Port::all(replica, bridge);
                Some(ports.filter_map(|port| Some((port.index()?, port.membership()))).collect())
            })?
            .ok_or_else(|| inner.no_bridge())
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
        self.inner.set_flows(&doing, cookie_of(number), &flows_of(number, settings))
    }

    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        let Some(number) = self.inner.number(port)? else {
            return Ok(Reading::missing("the port is not in the bridge"));
        };
        let (doing, cookie) = (format!("read the flows of {}", port.name), cookie_of(number));
        let found = self.inner.switches.with(&doing, |switch| flows_with(switch, cookie))?;
        if let Err(refused) = self.inner.check_tags("rely on its flows") {
            return Ok(Reading::missing(refused.to_string()));
        }
        Ok(if found == flows_of(number, settings) {
            let rules = openings::told(settings).map(|rules| format!("; {rules}"));
            Reading::in_place(told(&wanted(settings)) + &rules.unwrap_or_default())
        } else if found.is_empty() {
            Reading::missing("it has no flows")
        } else {
            Reading::missing("it has other flows")
        })
    }

    fn guard_drops(&self) -> Result<BTreeMap<u32, u64>, Refused> {
        self.inner.guard_drops()
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
