//! Joins representors to the bridge and removes them.

use std::collections::BTreeSet;

use openflow::Change;
use ovsdb::{Datum, Operation, Replica};
use uuid::Uuid;

use super::{
    Inner, cookies_of,
    flows::zones,
    limit,
    numbers::Held,
    rows::{self, BRIDGE, PORT, Port},
};
use crate::{
    driver::{Fault, Refused},
    eswitch::Representor,
    fabric::Membership,
};

/// The kind of the link that is the kernel's master of ports of the datapath.
const DATAPATH: &str = "openvswitch";

/// What the database has for a representor.
enum Found {
    /// No port.
    Nowhere,
    /// A port of another program, in the bridge of that name.
    Foreign(String),
    /// A port of ours in another bridge, or by a link that is gone or could not be opened.
    Broken,
    /// A port of ours by the representor's present link.
    Joined { port: Uuid, is_as_wanted: bool },
}

impl Inner {
    pub(super) fn join(&self, port: &Representor, wanted: &Membership) -> Result<(), Refused> {
        let queues = self.vswitch.no_queues()?;
        let found = self.vswitch.look(|replica| self.found(replica, port, wanted, queues))?;
        match found {
            Found::Joined { is_as_wanted: true, .. } => Ok(()),
            Found::Joined { port: row, .. } => self.change_port(port, row, wanted, queues),
            Found::Foreign(bridge) => Err(foreign_port(port, &bridge)),
            Found::Nowhere => self.add_port(port, wanted, queues, None),
            Found::Broken => {
                let number = self.own_port(port)?.flatten();
                let held = number.and_then(|number| self.vswitch.hold_number(number));
                // The daemon closes the old link only when its port is gone.
                self.remove_port(port)?;
                self.add_port(port, wanted, queues, held)
            }
        }
    }

    pub(super) fn leave(&self, port: &Representor) -> Result<(), Refused> {
        let Some(number) = self.own_port(port)? else { return Ok(()) };
        // Held until its flows are gone: a port that joins must not get the number before.
        let _held = number.and_then(|number| self.vswitch.hold_number(number));
        self.await_seen(port)?;
        self.remove_port(port)?;
        let Some(number) = number else { return Ok(()) };
        let doing = format!("take away the flows of {}", port.name);
        self.forget_flows(&doing, &[number])
    }

    /// The number of a port of ours in any bridge except siblings. Outer `None`: there is no such port. Inner
    /// `None`: it has no number.
    pub(super) fn own_port(&self, port: &Representor) -> Result<Option<Option<u32>>, Refused> {
        let is_own = |found: &Port<'_>| found.is_ours() && !self.is_siblings(found);
        self.vswitch.look(|replica| {
            let found = Port::find(replica, &port.name).filter(is_own)?;
            Some(found.number().or_else(|| found.wanted_number()))
        })
    }

    /// Removes all flows of the ports with these numbers, the meters of limited ones, and their tracked
    /// connections. A meter that none of our flows uses may belong to another program.
    pub(super) fn forget_flows(&self, doing: &str, numbers: &[u32]) -> Result<(), Refused> {
        let removals: Vec<_> =
            numbers.iter().map(|number| Change::RemoveAll(cookies_of(*number))).collect();
        self.flows.with(doing, |switch| {
            // Read before the removal: the flows name the conntrack zones and meters to clean up.
            let found = numbers.iter().map(|number| switch.flows(cookies_of(*number)));
            let found = found.collect::<Result<Vec<_>, _>>()?;
            let found: Vec<_> = found.iter().flatten().map(|counted| &counted.flow).collect();
            switch.change(&removals)?;
            zones(found.iter().copied())
                .iter()
                .try_for_each(|zone| switch.forget_connections(*zone))?;
            let meters = found.iter().filter_map(|flow| limit::meter_of(flow));
            BTreeSet::from_iter(meters).into_iter().try_for_each(|meter| switch.remove_meter(meter))
        })
    }

    /// Whether another bridge of the fabric has the port and manages it.
    fn is_siblings(&self, port: &Port<'_>) -> bool {
        self.settings.siblings.iter().any(|sibling| port.is_in(sibling))
    }

    /// Waits until the daemon has seen that the link was taken down, if it was. When a port leaves, the daemon
    /// restores the link's flags as it saw them last. It could switch the link on again after this program has
    /// ended, and nothing would show later that the link was a port of ours.
    fn await_seen(&self, port: &Representor) -> Result<(), Refused> {
        let doing = format!("see {} taken down", port.name);
        let refused = |error| Refused::new(format!("look at {}", port.name), error);
        let link = self.sockets.with(|rtnl| rtnl.link_by_index(port.index).map_err(refused))?;
        if link.is_none_or(|link| link.is_up) {
            return Ok(());
        }
        let name = port.name.clone();
        self.vswitch.wait(&doing, move |replica| {
            let is_seen_up = Port::find(replica, &name).is_some_and(|found| found.is_seen_up());
            (!is_seen_up).then_some(())
        })
    }

    fn found(
        &self,
        replica: &Replica,
        port: &Representor,
        wanted: &Membership,
        queues: Uuid,
    ) -> Found {
        let Some(found) = Port::find(replica, &port.name) else { return Found::Nowhere };
        if !found.is_ours() {
            return Found::Foreign(found.bridge.text("name").to_owned());
        }
        if !found.is_in(&self.settings.name) || found.index() != Some(port.index) {
            return Found::Broken;
        }
        let is_as_wanted = found.is_like(wanted, Some(queues));
        Found::Joined { port: found.port.id(), is_as_wanted }
    }

    /// Adds interface and port in one transaction, so that no partial port exists. Reuses the known number, because
    /// flows with it may exist.
    fn add_port(
        &self,
        port: &Representor,
        wanted: &Membership,
        queues: Uuid,
        number: Option<Held<'_>>,
    ) -> Result<(), Refused> {
        self.check_free("representor", &port.name, port.master)?;
        let doing = format!("join {} to bridge {}", port.name, self.settings.name);
        let bridge =
            |replica: &Replica| rows::bridge(replica, &self.settings.name).map(ovsdb::Row::id);
        let bridge = self.vswitch.look(bridge)?.ok_or_else(|| self.no_bridge())?;
        let full = || {
            let why = format!("can't {doing}: Open vSwitch has no number left for it");
            Refused::because(why).blamed_on(Fault::FabricFull)
        };
        let number = match number {
            Some(number) => number,
            None => self.vswitch.choose_number()?.ok_or_else(full)?,
        };
        let interface = [
            ("ofport_request", Datum::integer(i64::from(number.number))),
            ("external_ids", rows::marks_of_link(&port.vf.to_string(), port.index)),
        ];
        let marks = ("external_ids", rows::marks(&port.vf.to_string()));
        let options = (rows::OPTIONS, rows::no_spanning_tree());
        let columns = rows::vlans(wanted).into_iter();
        let columns = columns.chain([("qos", Datum::reference(queues)), options, marks]);
        // Marked as touched before the write, so that the watching thread takes the row for ours.
        let _touching = self.touched.touch(&self.vswitch, &port.name);
        let insert = rows::insert_port(bridge, &port.name, interface, columns);
        let added = self.vswitch.change(&doing, insert.into());
        added.map_err(|refused| self.or_foreign_port(port, refused))?;
        self.await_opened(&doing, port)
    }

    /// Returns `refused`, or a clearer refusal if another program has added the port.
    fn or_foreign_port(&self, port: &Representor, refused: Refused) -> Refused {
        // ovsdb-server sends the other program's port before it refuses ours, so the replica has it now.
        let others = self.vswitch.look(|replica| {
            let found = Port::find(replica, &port.name).filter(|found| !found.is_ours())?;
            Some(found.bridge.text("name").to_owned())
        });
        match others {
            Ok(Some(bridge)) => foreign_port(port, &bridge),
            _ => refused,
        }
    }

    /// Waits until the daemon has opened the port's link or reported an error.
    fn await_opened(&self, doing: &str, port: &Representor) -> Result<(), Refused> {
        let (name, index) = (port.name.clone(), port.index);
        let outcome = self.vswitch.wait(doing, move |replica| {
            let found = Port::find(replica, &name)?;
            match found.error() {
                Some(error) => Some(Err(error.to_owned())),
                None => (found.index() == Some(index)).then_some(Ok(())),
            }
        })?;
        outcome.map_err(|error| Refused::because(format!("can't {doing}: {error}")))
    }

    fn change_port(
        &self,
        port: &Representor,
        row: Uuid,
        wanted: &Membership,
        queues: Uuid,
    ) -> Result<(), Refused> {
        let doing = format!("set up {} in bridge {}", port.name, self.settings.name);
        let _touching = self.touched.touch(&self.vswitch, &port.name);
        let columns = rows::vlans(wanted).into_iter().chain([("qos", Datum::reference(queues))]);
        let mut operations = vec![Operation::update(PORT, row, columns)];
        operations.extend(rows::leave_spanning_trees(row));
        self.vswitch.change(&doing, operations)
    }

    /// Removes the reference from the bridge. The database deletes unreferenced ports and interfaces.
    fn remove_port(&self, port: &Representor) -> Result<(), Refused> {
        let found = self.vswitch.look(|replica| {
            let found = Port::find(replica, &port.name).filter(Port::is_ours)?;
            Some((found.bridge.id(), found.port.id()))
        })?;
        let Some((bridge, row)) = found else { return Ok(()) };
        let doing = format!("take {} out of bridge {}", port.name, self.settings.name);
        let _touching = self.touched.touch(&self.vswitch, &port.name);
        let removal = Operation::remove_from_set(BRIDGE, bridge, "ports", &Datum::reference(row));
        self.vswitch.change(&doing, vec![removal])
    }

    /// Refuses a link that already has a master in the kernel, such as a bridge or a bond.
    pub(super) fn check_free(
        &self,
        role: &str,
        name: &str,
        master: Option<u32>,
    ) -> Result<(), Refused> {
        self.foreign_master(name, master)?.map_or(Ok(()), |master| {
            Err(Refused::because(format!(
                "{role} {name} is a port of {master}: take it out first, with `ip link set {name} nomaster`"
            )))
        })
    }

    /// The name of a link's master, unless that is a datapath.
    fn foreign_master(&self, name: &str, master: Option<u32>) -> Result<Option<String>, Refused> {
        let Some(master) = master else { return Ok(None) };
        let refused = |error| Refused::new(format!("look at {name}"), error);
        let master = self.sockets.with(|rtnl| rtnl.link_by_index(master).map_err(refused))?;
        let is_foreign = |master: &netlink::Link| master.kind.as_deref() != Some(DATAPATH);
        Ok(master.filter(is_foreign).map(|master| master.name))
    }

    /// The name of what has the representor as a port that is not ours: a bridge of Open vSwitch, or a kernel link.
    pub(super) fn occupant(&self, port: &Representor) -> Result<Option<String>, Refused> {
        let in_database = self.vswitch.look(|replica| {
            let found = Port::find(replica, &port.name).filter(|found| !found.is_ours())?;
            Some(found.bridge.text("name").to_owned())
        })?;
        match in_database {
            Some(bridge) => Ok(Some(bridge)),
            None => self.foreign_master(&port.name, port.master),
        }
    }

    pub(super) fn no_bridge(&self) -> Refused {
        Refused::because(format!("Open vSwitch has no bridge {}", self.settings.name))
            .blamed_on(Fault::FabricAway)
    }
}

fn foreign_port(port: &Representor, bridge: &str) -> Refused {
    let name = &port.name;
    Refused::because(format!(
        "representor {name} is another program's port in Open vSwitch's bridge {bridge}: take it out first, with \
         `ovs-vsctl del-port {name}`"
    ))
}
