//! What all ports share: the bridge, its links that are not pods' ports, and the flows of both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use netlink::{LinkChange, Rtnl};
use openflow::{Action, Flow, Match, Switch};
use ovsdb::{Datum, Operation, Replica, Row};

use super::{
    ALL_FLOWS, COOKIE, Inner, OURS, SharedLinks, allow_rules, number_of,
    rows::{self, BRIDGE, INTERFACE, PORT, Port, ROOT},
};
use crate::{
    driver::{Fault, Refused},
    fabric::settings::Role,
};

/// The only VLAN of a trunk that carries untagged frames.
const UNTAGGED: i64 = 0;

/// The fail mode in which the bridge forwards only by flows, also while the daemon is away.
const SECURE: &str = "secure";

impl Inner {
    /// Continues after a failure, and returns the first one.
    pub(super) fn prepare(&self) -> Result<(), Refused> {
        // The replica keeps its rows while the server is suspended, so ask the server itself first.
        self.vswitch.check_alive()?;
        let is_ours = self.ensure_bridge()?;
        let join = |(role, name)| {
            let joined =
                self.join_link(role, name).inspect_err(|_| self.repairs.note_missing(name));
            (role, joined)
        };
        let joined: Vec<_> = self.settings.links().map(join).collect();
        let uplinks = joined.iter().filter(|(role, _)| *role == Role::Uplink);
        let shared = self.look_at_links(uplinks.filter_map(|(_, mtu)| mtu.as_ref().ok()).min());
        let problem = self.shared.lock().problem.take();
        *self.shared.lock() = SharedLinks { problem, ..shared? };
        // After the links have joined: their flows need the links' port numbers.
        let flows = self.set_own_flows(is_ours);
        let forgotten = self.look_at_first_table();
        let meters = self.look_for_meters();
        let opened = self.open_ports();
        let joined = joined.into_iter().try_for_each(|(_, joined)| joined.map(drop));
        flows.and(forgotten).and(meters).and(opened).and(joined.map_err(Refused::partial))
    }

    /// Creates the bridge unless it exists, and returns whether it is ours. Does not create a bridge again that
    /// another program made and deleted: only that program knows what else was in it.
    fn ensure_bridge(&self) -> Result<bool, Refused> {
        let of_bridge = |replica: &Replica| {
            let bridge = rows::bridge(replica, &self.settings.name)?;
            Some((bridge.id(), rows::is_ours(bridge), bridge.text("fail_mode") == SECURE))
        };
        let found = self.vswitch.look(of_bridge)?;
        if let Some((_, is_ours, _)) = found {
            self.is_foreign.store(!is_ours, Ordering::Relaxed);
            self.repairs.note_in_place(&self.settings.name, None);
        }
        match found {
            None if self.is_foreign.load(Ordering::Relaxed) => return Err(self.bridge_gone()),
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

    fn bridge_gone(&self) -> Refused {
        let name = &self.settings.name;
        Refused::because(format!(
            "another program's bridge {name} is gone from Open vSwitch: create it again, with `ovs-vsctl add-br {name}` \
             and what else was in it, or restart this service, which then creates a bridge of its own"
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
        tracing::info!(bridge = self.settings.name, "created Open vSwitch's bridge");
        Ok(())
    }

    /// Joins a link, an uplink in all VLANs and a kept link untagged. Returns its MTU in bytes.
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
        let _touching = self.touched.touch(&self.vswitch, name);
        self.vswitch.change(&doing, rows::insert_port(bridge, name, interface, port).into())
    }

    /// Removes a port whose link is gone.
    fn remove_link(&self, role: Role, name: &str, bridge: uuid::Uuid) -> Result<(), Refused> {
        let row = |replica: &Replica| Port::find(replica, name).map(|port| port.port.id());
        let Some(row) = self.vswitch.look(row)? else { return Ok(()) };
        let what = role.name();
        let doing = format!(
            "take {what} {name}, whose link was replaced, out of bridge {}",
            self.settings.name
        );
        let removal = Operation::remove_from_set(BRIDGE, bridge, "ports", &Datum::reference(row));
        let _touching = self.touched.touch(&self.vswitch, name);
        self.vswitch.change(&doing, vec![removal])
    }

    fn look_at_links(&self, mtu: Option<&u32>) -> Result<SharedLinks, Refused> {
        self.sockets.with(|rtnl| {
            let names = self.settings.links().map(|(_, name)| name).chain([&*self.settings.name]);
            let macs = names.filter_map(|name| rtnl.link_by_name(name).ok()??.mac).collect();
            Ok(SharedLinks { mtu: mtu.copied(), macs, problem: None })
        })
    }

    /// Sets the flows that are the same for all our ports. In a bridge of ours, also forwards frames from uplinks,
    /// kept links and the DPU itself. In another program's bridge, that program decides.
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
            tracing::warn!(bridge, "another program changed flows of the bridge; repaired them");
        }
        Ok(())
    }

    /// Resets ports of ours that another program has set not to receive, forward or flood. These settings are not
    /// in the database and end with the daemon.
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

    /// Reports other programs' flows that precede the guards, and removes our flows of ports that are gone.
    fn look_at_first_table(&self) -> Result<(), Refused> {
        let doing = format!("look at the flows of bridge {}", self.settings.name);
        // Every port with flows has one in table 0 that leads to its guard.
        let first_table = |switch: &mut Switch| switch.flows_of_tables(&[0], ALL_FLOWS);
        let found: Vec<_> = self.flows.with(&doing, first_table)?;
        let found: Vec<_> = found.into_iter().map(|counted| counted.flow).collect();
        let (ours, others): (Vec<_>, Vec<_>) =
            found.iter().partition(|flow| OURS.include(flow.cookie));
        self.read_fragments(&doing)?;
        self.report_problem(self.overruled(&others));
        self.remove_stale_flows(&doing, &ours)
    }

    /// Makes the bridge read first fragments (`nx-match`). Otherwise it forwards fragments unread, and hosts would
    /// reassemble a router's or server's message from them. Also set in another program's bridge: the guard needs
    /// it, and that program's matches on ports only see more packets.
    fn read_fragments(&self, doing: &str) -> Result<(), Refused> {
        if self.flows.with(doing, Switch::reads_first_fragments)? {
            return Ok(());
        }
        self.flows.with(doing, Switch::read_first_fragments)?;
        tracing::info!(bridge = self.settings.name, "set the bridge's fragment mode to nx-match");
        Ok(())
    }

    /// A sentence about other programs' flows that precede ours. They are not changed.
    fn overruled(&self, others: &[&Flow]) -> Option<String> {
        let before = others.iter().filter(|flow| flow.priority >= allow_rules::TO_PODS);
        let cookies: Vec<_> = before.map(|flow| format!("{:#x}", flow.cookie)).collect();
        (!cookies.is_empty()).then(|| {
            format!(
                "flows of another program in bridge {} precede the guards of pods' ports: give those with cookie {} a \
                 priority below {}, with ovs-ofctl",
                self.settings.name,
                cookies.join(", "),
                allow_rules::TO_PODS
            )
        })
    }

    fn report_problem(&self, problem: Option<String>) {
        let mut shared = self.shared.lock();
        if let Some(problem) = problem.as_ref().filter(|_| shared.problem != problem) {
            tracing::warn!(problem, "flows of another program precede pods' guards");
        }
        shared.problem = problem;
    }

    /// Deletes the flows of ports that have left: a crash between row and flows leaves them.
    fn remove_stale_flows(&self, doing: &str, ours: &[&Flow]) -> Result<(), Refused> {
        let numbers = ours.iter().filter_map(|flow| number_of(flow.cookie));
        let numbers: BTreeSet<u32> = numbers.filter(|number| *number != 0).collect();
        // Read the rows after the flows: a joining port has its row, or holds its number, before it has flows.
        let stale = self.vswitch.look(|replica| {
            let bridge = rows::bridge(replica, &self.settings.name)?;
            // Includes a port whose marks another program has removed: its pod must stay guarded.
            let ports = Port::all(replica, bridge);
            let taken = ports.flat_map(|port| [port.number(), port.wanted_number()]).flatten();
            let taken: BTreeSet<u32> = taken.collect();
            let stale = numbers.difference(&taken);
            Some(stale.filter_map(|number| self.vswitch.hold_number(*number)).collect::<Vec<_>>())
        })?;
        let stale = stale.ok_or_else(|| self.no_bridge())?;
        if stale.is_empty() {
            return Ok(());
        }
        let numbers: Vec<_> = stale.iter().map(|held| held.number).collect();
        self.forget_flows(doing, &numbers)
    }
}

fn forwarded(from: Match) -> Flow {
    let matches = [from].into();
    Flow { table: 0, priority: 1, cookie: COOKIE, matches, action: Action::Normal }
}
