//! What all ports share: the bridge, the links in it that are no pods', and the flows of both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use netlink::{LinkChange, MacAddress, Rtnl};
use openflow::{Action, Flow, Match, Switch};
use ovsdb::{Datum, Operation, Replica, Row};

use super::{
    ALL_FLOWS, COOKIE, Inner, OURS, number_of, openings,
    rows::{self, BRIDGE, INTERFACE, PORT, Port, ROOT},
};
use crate::{
    driver::{Fault, Refused},
    fabric::settings::Role,
};

/// What the kernel has of the links that all ports share.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedLinks {
    /// The smallest MTU of the uplinks that could be joined.
    pub(super) mtu: Option<u32>,
    /// The Ethernet addresses of the bridge and of the links in it that are no pods'.
    pub(super) macs: Vec<MacAddress>,
    /// What somebody else has that comes before our ports' guards, for people.
    pub(super) problem: Option<String>,
}

/// A trunk of it alone carries what has no tag.
const UNTAGGED: i64 = 0;

/// Only what flows of ours let pass is forwarded, with the daemon or without.
const SECURE: &str = "secure";

impl Inner {
    /// Does all that can be done, then tells the first thing that could not.
    pub(super) fn prepare(&self) -> Result<(), Refused> {
        // What there is of the rows says nothing of a server that stands still.
        self.vswitch.look_for_life()?;
        let is_ours = self.ensure_bridge()?;
        let join = |(role, name)| {
            let joined =
                self.join_link(role, name).inspect_err(|_| self.repairs.note_missing(name));
            (role, joined)
        };
        let joined: Vec<_> = self.settings.links().map(join).collect();
        let uplinks = joined.iter().filter(|(role, _)| *role == Role::Uplink);
        let shared = self.look_at_links(uplinks.filter_map(|(_, mtu)| mtu.as_ref().ok()).min());
        let problem = self.shared().problem.take();
        *self.shared() = SharedLinks { problem, ..shared? };
        let flows = self.set_own_flows(is_ours);
        let forgotten = self.look_at_first_table();
        let meters = self.look_for_meters();
        let opened = self.open_ports();
        let joined = joined.into_iter().try_for_each(|(_, joined)| joined.map(drop));
        flows.and(forgotten).and(meters).and(opened).and(joined.map_err(Refused::partial))
    }

    /// Makes the bridge unless there is one. Whether it is ours. One that somebody else has made, and taken away, is
    /// his to make again: nobody but him knows what else was in it.
    fn ensure_bridge(&self) -> Result<bool, Refused> {
        let of_bridge = |replica: &Replica| {
            let bridge = rows::bridge(replica, &self.settings.name)?;
            Some((bridge.id(), rows::is_ours(bridge), bridge.text("fail_mode") == SECURE))
        };
        let found = self.vswitch.look(of_bridge)?;
        if let Some((_, is_ours, _)) = found {
            self.is_others.store(!is_ours, Ordering::Relaxed);
            self.repairs.note_in_place(&self.settings.name, None);
        }
        match found {
            None if self.is_others.load(Ordering::Relaxed) => return Err(self.taken_away()),
            None => {
                self.make_bridge()?;
                let change = format!("bridge {} was missing: created it again", self.settings.name);
                self.repairs.note_in_place(&self.settings.name, Some(change));
                return Ok(true);
            }
            Some((row, true, false)) => {
                let doing = format!("set fail_mode of bridge {}", self.settings.name);
                let mode = [("fail_mode", Datum::text(SECURE))];
                self.vswitch.change(&doing, vec![Operation::update(BRIDGE, row, mode)])?;
            }
            Some((_, is_ours, _)) => return Ok(is_ours),
        }
        Ok(true)
    }

    fn taken_away(&self) -> Refused {
        let name = &self.settings.name;
        Refused::because(format!(
            "Open vSwitch has no bridge {name} any more, which somebody else had made: make it again, with \
             `ovs-vsctl add-br {name}` and what else was in it, or restart this service, which then makes one of its \
             own"
        ))
        .blamed_on(Fault::FabricAway)
    }

    fn make_bridge(&self) -> Result<(), Refused> {
        let doing = format!("make Open vSwitch's bridge {}", self.settings.name);
        let root = self.vswitch.look(|replica| rows::root(replica).map(Row::id))?;
        let empty = || Refused::because(format!("can't {doing}: its database is empty"));
        let root = root.ok_or_else(empty)?;
        let name = || Datum::text(&self.settings.name);
        let marks = || rows::marks("joins representors");
        let interface =
            [("name", name()), ("type", Datum::text("internal")), ("external_ids", marks())];
        let port = [
            ("name", name()),
            ("interfaces", Datum::inserted("interface")),
            ("external_ids", marks()),
        ];
        let bridge = [
            ("name", name()),
            ("ports", Datum::inserted("port")),
            ("fail_mode", Datum::text(SECURE)),
            ("datapath_type", Datum::text(self.datapath.name())),
            ("external_ids", marks()),
        ];
        self.vswitch.change(
            &doing,
            vec![
                Operation::check_absent(BRIDGE, "name", &name()),
                Operation::insert(INTERFACE, "interface", interface),
                Operation::insert(PORT, "port", port),
                Operation::insert(BRIDGE, "bridge", bridge),
                Operation::add_to_set(ROOT, root, "bridges", &Datum::inserted("bridge")),
            ],
        )?;
        tracing::info!(bridge = self.settings.name, "made Open vSwitch's bridge");
        Ok(())
    }

    /// Joins a link, an uplink in all VLANs and a kept one untagged, and returns its MTU.
    fn join_link(&self, role: Role, name: &str) -> Result<u32, Refused> {
        let what = role.name();
        let refused = |error| Refused::new(format!("join {what} {name}"), error);
        let missing = || role.missing(name, &self.settings.name);
        let link = self.sockets.with(|rtnl| rtnl.link_by_name(name).map_err(refused))?;
        let link = link.ok_or_else(missing)?;
        let of_link = |replica: &Replica| {
            let bridge = rows::bridge(replica, &self.settings.name).map(Row::id);
            let port = Port::find(replica, name);
            (bridge, port.map(|port| (port.bridge.id(), port.index())))
        };
        let mut change = None;
        match self.vswitch.look(of_link)? {
            (None, _) => return Err(self.no_bridge()),
            (Some(bridge), None) => {
                self.check_free(what, name, link.master)?;
                self.add_link(role, name, link.index, bridge)?;
                change = Some(role.joined(name, &self.settings.name));
            }
            (Some(bridge), Some((other, _))) if other != bridge => {
                return Err(Refused::because(format!(
                    "{what} {name} is a port of another bridge of Open vSwitch: take it out first"
                )));
            }
            (Some(bridge), Some((_, index))) if index != Some(link.index) => {
                self.remove_link(role, name, bridge)?;
                self.add_link(role, name, link.index, bridge)?;
                change = Some(role.joined(name, &self.settings.name));
            }
            (Some(_), Some(_)) => {}
        }
        if !link.is_up {
            let up = |rtnl: &mut Rtnl| {
                rtnl.change_link(link.index, &LinkChange::new().up()).map_err(refused)
            };
            self.sockets.with(up)?;
            change.get_or_insert_with(|| role.switched_on(name));
        }
        self.repairs.note_in_place(name, change);
        Ok(link.mtu)
    }

    fn add_link(
        &self,
        role: Role,
        name: &str,
        index: u32,
        bridge: uuid::Uuid,
    ) -> Result<(), Refused> {
        let what = role.name();
        let doing = format!("join {what} {name} to bridge {}", self.settings.name);
        let interface = [("external_ids", rows::marks_of_link(what, index))];
        let trunks = match role {
            Role::Uplink => Datum::empty(),
            Role::Kept => Datum::integer(UNTAGGED),
        };
        let port = [("trunks", trunks), ("external_ids", rows::marks(what))];
        let _touching = self.touch(name);
        self.vswitch.change(&doing, rows::insert_port(bridge, name, interface, port).into())
    }

    /// One that was joined by a link which is gone.
    fn remove_link(&self, role: Role, name: &str, bridge: uuid::Uuid) -> Result<(), Refused> {
        let row = |replica: &Replica| Port::find(replica, name).map(|port| port.port.id());
        let Some(row) = self.vswitch.look(row)? else { return Ok(()) };
        let what = role.name();
        let doing = format!(
            "take {what} {name}, which was made anew, out of bridge {}",
            self.settings.name
        );
        let removal = Operation::remove_from_set(BRIDGE, bridge, "ports", &Datum::reference(row));
        let _touching = self.touch(name);
        self.vswitch.change(&doing, vec![removal])
    }

    fn look_at_links(&self, mtu: Option<&u32>) -> Result<SharedLinks, Refused> {
        self.sockets.with(|rtnl| {
            let names = self.settings.links().map(|(_, name)| name).chain([&*self.settings.name]);
            let macs = names.filter_map(|name| rtnl.link_by_name(name).ok()??.mac).collect();
            Ok(SharedLinks { mtu: mtu.copied(), macs, problem: None })
        })
    }

    /// What is the same for all ports of ours. And in a bridge of ours, what comes in at a link that is no pod's or
    /// from the DPU itself is forwarded; in another's, that is his affair.
    fn set_own_flows(&self, is_ours: bool) -> Result<(), Refused> {
        let own = [Match::InPort(openflow::LOCAL)].map(forwarded);
        let numbers = self.vswitch.look(|replica| {
            let ports = self.settings.links().filter_map(|(_, name)| Port::find(replica, name));
            ports.filter_map(|port| port.number()).collect::<Vec<_>>()
        })?;
        let of_links = numbers.into_iter().map(|number| forwarded(Match::InPort(number)));
        let mut wanted = self.common.clone();
        if is_ours {
            wanted.extend(own.into_iter().chain(of_links));
        }
        let doing = format!("set the flows of bridge {}", self.settings.name);
        if self.flows.set(&doing, COOKIE, &wanted)? {
            let bridge = &self.settings.name;
            tracing::warn!(bridge, "flows of all ports were not as they should be: put right");
        }
        Ok(())
    }

    /// Has frames pass ports of ours that another program has set not to receive, to forward or to be flooded. The
    /// database does not have these settings, which end with the daemon.
    fn open_ports(&self) -> Result<(), Refused> {
        let name = |port: Port<'_>| Some((port.number()?, port.name().to_owned()));
        let ours: BTreeMap<u32, String> =
            self.of_ports(|port| name(port).filter(|_| port.is_ours()))?;
        let doing = format!("look at the ports of bridge {}", self.settings.name);
        for port in self.flows.open_ports(&doing, |number| ours.contains_key(&number))? {
            let held_back_by = Vec::from_iter(port.held_back_by()).join(" and ");
            let name = ours.get(&port.number).map_or("", |name| name);
            self.repairs.note(format!("port {name} was set to {held_back_by}: set it back"));
        }
        Ok(())
    }

    /// What of others' flows is in the way of guards is told, and what of ours is left of ports that are gone is taken
    /// away.
    fn look_at_first_table(&self) -> Result<(), Refused> {
        let doing = format!("look at the flows of bridge {}", self.settings.name);
        // All flows begin there: each of our ports has one that leads to its guard, as long as it has any.
        let first_table = |switch: &mut Switch| switch.flows_of_tables(&[0], ALL_FLOWS);
        let found: Vec<_> = self.flows.with(&doing, first_table)?;
        let found: Vec<_> = found.into_iter().map(|counted| counted.flow).collect();
        let (ours, others): (Vec<_>, Vec<_>) =
            found.iter().partition(|flow| OURS.include(flow.cookie));
        self.read_fragments(&doing)?;
        self.tell(self.overruled(&others));
        self.forget_flows_of_nobody(&doing, &ours)
    }

    /// Has what guards look for found in the first fragment of a packet, too: the bridge would forward fragments unread
    /// otherwise, and hosts would put a router's or a server's message together again. In whosever bridge: the guard
    /// would not hold, and flows of his that ask for ports only see more.
    fn read_fragments(&self, doing: &str) -> Result<(), Refused> {
        if self.flows.with(doing, Switch::reads_first_fragments)? {
            return Ok(());
        }
        self.flows.with(doing, Switch::read_first_fragments)?;
        tracing::info!(bridge = self.settings.name, "has first fragments read (nx-match)");
        Ok(())
    }

    /// Flows of others that decide before those of ours do: they are left alone.
    fn overruled(&self, others: &[&Flow]) -> Option<String> {
        let before = others.iter().filter(|flow| flow.priority >= openings::TO_PODS);
        let told: Vec<_> = before.map(|flow| format!("{:#x}", flow.cookie)).collect();
        (!told.is_empty()).then(|| {
            format!(
                "flows of somebody else's in bridge {} come before what pods' ports are kept to: give those with cookie \
                 {} a priority below {}, with ovs-ofctl",
                self.settings.name,
                told.join(", "),
                openings::TO_PODS
            )
        })
    }

    fn tell(&self, problem: Option<String>) {
        let mut shared = self.shared();
        if let Some(problem) = problem.as_ref().filter(|_| shared.problem != problem) {
            tracing::warn!("{problem}");
        }
        shared.problem = problem;
    }

    /// Deletes the flows of ports that have left, which a crash may have kept.
    fn forget_flows_of_nobody(&self, doing: &str, ours: &[&Flow]) -> Result<(), Refused> {
        let numbers = ours.iter().filter_map(|flow| number_of(flow.cookie));
        let numbers: BTreeSet<u32> = numbers.filter(|number| *number != 0).collect();
        // After the flows: a port that joins has its row, or holds its number, before it has flows.
        let of_nobody = self.vswitch.look(|replica| {
            let bridge = rows::bridge(replica, &self.settings.name)?;
            // Also of one whose marks somebody has taken away: its pod is to be kept to what it may send.
            let ports = Port::all(replica, bridge);
            let taken = ports.flat_map(|port| [port.number(), port.wanted_number()]).flatten();
            let taken: BTreeSet<u32> = taken.collect();
            let of_nobody = numbers.difference(&taken);
            Some(
                of_nobody
                    .filter_map(|number| self.vswitch.hold_number(*number))
                    .collect::<Vec<_>>(),
            )
        })?;
        let of_nobody = of_nobody.ok_or_else(|| self.no_bridge())?;
        if of_nobody.is_empty() {
            return Ok(());
        }
        let numbers: Vec<_> = of_nobody.iter().map(|held| held.number).collect();
        self.forget_flows(doing, &numbers)
    }
}

fn forwarded(from: Match) -> Flow {
    let matches = [from].into();
    Flow { table: 0, priority: 1, cookie: COOKIE, matches, action: Action::Normal }
}
