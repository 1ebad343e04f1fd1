//! Rows of Open vSwitch's database about bridges and their ports (ovs-vswitchd.conf.db(5)).

use std::collections::BTreeSet;

use ovsdb::{Datum, MonitoredTable, Operation, Replica, Row};
use uuid::Uuid;

use crate::fabric::Membership;

/// The table with the one row about the daemon itself.
pub(super) const ROOT: &str = "Open_vSwitch";
pub(super) const BRIDGE: &str = "Bridge";
pub(super) const PORT: &str = "Port";
pub(super) const INTERFACE: &str = "Interface";
pub(super) const QOS: &str = "QoS";

/// The key and value in `external_ids` that mark a row as ours.
const OWNER: (&str, &str) = ("owner", "dpu-offload");

/// The column with a port's further settings.
pub(super) const OPTIONS: &str = "other_config";

/// The QoS type that leaves a link's queues alone.
const NO_QUEUES: &str = "linux-noop";

/// The spanning trees: the bridge's column that enables one, the port's key that excludes the port, and the name
/// for people.
const SPANNING_TREES: [(&str, &str, &str); 2] =
    [("stp_enable", "stp-enable", "STP"), ("rstp_enable", "rstp-enable", "RSTP")];

/// All VLANs that a port can be in.
const EVERY_VLAN: std::ops::RangeInclusive<u16> = 1..=4094;

/// The tables and columns of the replica.
pub(super) fn tables() -> Vec<MonitoredTable> {
    vec![
        MonitoredTable::new(ROOT, ["bridges", "cur_cfg", "next_cfg", "other_config"]),
        MonitoredTable::new(
            BRIDGE,
            ["name", "ports", "external_ids", "fail_mode", "stp_enable", "rstp_enable"],
        ),
        MonitoredTable::new(
            PORT,
            ["name", "interfaces", "tag", "trunks", "vlan_mode", "qos", OPTIONS, "external_ids"],
        ),
        MonitoredTable::new(
            INTERFACE,
            [
                "name",
                "type",
                "ofport",
                "ofport_request",
                "ifindex",
                "admin_state",
                "error",
                "external_ids",
            ],
        ),
        MonitoredTable::new(QOS, ["type", "external_ids"]),
    ]
}

/// The key in `external_ids` for the index of the link that an interface was made for.
const MADE_FOR: &str = "ifindex";

/// The `external_ids` that mark a row as ours and state its purpose.
pub(super) fn marks(purpose: &str) -> Datum {
    Datum::map([OWNER, ("purpose", purpose)])
}

/// The same for an interface of the link with that index. The userspace datapath reports the index of the link that
/// has the name now, but continues with the link that it opened, even if that is gone.
pub(super) fn marks_of_link(purpose: &str, index: u32) -> Datum {
    Datum::map([OWNER, ("purpose", purpose), (MADE_FOR, &index.to_string())])
}

pub(super) fn is_ours(row: &Row) -> bool {
    row.map("external_ids").get(OWNER.0) == Some(&OWNER.1)
}

/// The row of the daemon.
pub(super) fn root(replica: &Replica) -> Option<&Row> {
    replica.rows(ROOT).next()
}

/// The daemon's `vlan-limit`, unless it is the default 1. 0: as many tags as it can parse.
pub(super) fn other_vlan_limit(replica: &Replica) -> Option<&str> {
    let limit = root(replica)?.map("other_config").get("vlan-limit").copied();
    limit.filter(|limit| *limit != "1")
}

pub(super) fn bridge<'a>(replica: &'a Replica, name: &str) -> Option<&'a Row> {
    replica.named(BRIDGE, name)
}

/// Our QoS row that leaves a port's queues alone.
pub(super) fn no_queues(replica: &Replica) -> Option<Uuid> {
    let found = replica.rows(QOS).find(|row| row.text("type") == NO_QUEUES && is_ours(row));
    found.map(Row::id)
}

/// The columns of that row.
pub(super) fn no_queues_row() -> [(&'static str, Datum); 2] {
    [("type", Datum::text(NO_QUEUES)), ("external_ids", marks("leaves queues to others"))]
}

/// A port with exactly one interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port<'a> {
    pub(super) bridge: &'a Row,
    pub(super) port: &'a Row,
    pub(super) interface: &'a Row,
}

impl<'a> Port<'a> {
    /// The port of that name in any bridge. Bonds, which have several interfaces, are not found.
    pub(super) fn find(replica: &'a Replica, name: &str) -> Option<Self> {
        let interface = replica.named(INTERFACE, name)?;
        let has_it = |row: &&Row| row.refers("interfaces", interface.id());
        // A port normally has its interface's name, which makes the lookup cheap. `ovs-vsctl` allows another one.
        let port = replica.named(PORT, name).filter(has_it);
        let port = port.or_else(|| replica.rows(PORT).find(has_it))?;
        let bridge = replica.rows(BRIDGE).find(|row| row.refers("ports", port.id()))?;
        Some(Self { bridge, port, interface })
    }

    /// All ports of a bridge that have one interface.
    pub(super) fn all(replica: &'a Replica, bridge: &'a Row) -> impl Iterator<Item = Self> {
        bridge.references("ports").filter_map(move |port| {
            let port = replica.row(PORT, port)?;
            let mut interfaces = port.references("interfaces");
            let interface = interfaces.next().filter(|_| interfaces.next().is_none())?;
            Some(Self { bridge, port, interface: replica.row(INTERFACE, interface)? })
        })
    }

    pub(super) fn name(&self) -> &'a str {
        self.interface.text("name")
    }

    pub(super) fn is_ours(&self) -> bool {
        is_ours(self.port)
    }

    pub(super) fn is_in(&self, bridge: &str) -> bool {
        self.bridge.text("name") == bridge
    }

    /// The daemon's error about opening the port. `None`: it reported none.
    pub(super) fn error(&self) -> Option<&'a str> {
        Some(self.interface.text("error")).filter(|error| !error.is_empty())
    }

    /// Whether the link was up when the daemon looked last.
    pub(super) fn is_seen_up(&self) -> bool {
        self.interface.text("admin_state") == "up"
    }

    /// The port's OpenFlow number. `None`: the daemon has not given one.
    pub(super) fn number(&self) -> Option<u32> {
        let number = self.interface.integer("ofport")?;
        u32::try_from(number).ok().filter(|number| *number > 0)
    }

    /// The number that the port requests.
    pub(super) fn wanted_number(&self) -> Option<u32> {
        self.interface.integer("ofport_request").and_then(|number| u32::try_from(number).ok())
    }

    /// The index of the link that the daemon has opened. `None`: it could not, or another link has the name now. A
    /// database that has just started does not have the daemon's reports; the port's own mark counts then.
    pub(super) fn index(&self) -> Option<u32> {
        let made_for = self.interface.map("external_ids").get(MADE_FOR)?.parse().ok()?;
        let reported = self.interface.integer("ifindex");
        let is_same = reported.is_none_or(|reported| reported == i64::from(made_for));
        (is_same && self.error().is_none()).then_some(made_for).filter(|_| self.number().is_some())
    }

    /// The VLANs of the port.
    pub(super) fn membership(&self) -> Membership {
        let tag = self.port.integer("tag").and_then(|tag| u16::try_from(tag).ok());
        let trunks = self.port.integers("trunks");
        let trunks: BTreeSet<u16> = trunks.filter_map(|vlan| vlan.try_into().ok()).collect();
        // An empty list means every VLAN.
        let carried = if trunks.is_empty() { EVERY_VLAN.collect() } else { trunks.clone() };
        let (vlan, trunk) = match (self.port.text("vlan_mode"), tag) {
            ("access", _) | ("", Some(_)) => (tag, BTreeSet::new()),
            ("native-untagged", tag) => {
                let trunk = carried.into_iter().filter(|vlan| Some(*vlan) != tag).collect();
                (tag, trunk)
            }
            // A trunk: untagged frames pass only if VLAN 0 is in the list.
            _ => (None, carried),
        };
        let vlan = vlan.filter(|vlan| *vlan != 0);
        Membership { bridge: None, vlan, trunk, held_back_by: self.spanning_trees() }
    }

    /// The spanning trees that the port takes part in. Each drops a new port's frames at first.
    fn spanning_trees(&self) -> BTreeSet<&'static str> {
        let options = self.port.map(OPTIONS);
        let takes_part = |(column, key, _): &(&str, &str, &str)| {
            self.bridge.flag(column) == Some(true) && options.get(key) != Some(&"false")
        };
        SPANNING_TREES.into_iter().filter(takes_part).map(|(.., name)| name).collect()
    }

    /// Whether the port's columns match the membership and the QoS row.
    pub(super) fn is_like(&self, membership: &Membership, queues: Option<Uuid>) -> bool {
        self.membership() == *membership && self.port.references("qos").next() == queues
    }
}

/// The operations that create a port with one interface. The further columns are for these two rows.
pub(super) fn insert_port<'a>(
    bridge: Uuid,
    name: &str,
    interface: impl IntoIterator<Item = (&'a str, Datum)>,
    port: impl IntoIterator<Item = (&'a str, Datum)>,
) -> [Operation; 4] {
    let named = || Datum::text(name);
    let interface = interface.into_iter().chain([("name", named())]);
    let port =
        port.into_iter().chain([("name", named()), ("interfaces", Datum::inserted("interface"))]);
    [
        Operation::check_absent(INTERFACE, "name", &named()),
        Operation::insert(INTERFACE, "interface", interface),
        Operation::insert(PORT, "port", port),
        Operation::add_to_set(BRIDGE, bridge, "ports", &Datum::inserted("port")),
    ]
}

/// Excludes a pod's port from spanning trees: they would drop all frames at first, and the guard lets no frame of a
/// spanning tree pass.
pub(super) fn no_spanning_tree() -> Datum {
    Datum::map(SPANNING_TREES.map(|(_, key, _)| (key, "false")))
}

/// The operations that exclude an existing port. Other keys of the column stay.
pub(super) fn leave_spanning_trees(port: Uuid) -> [Operation; 2] {
    let keys = Datum::set(SPANNING_TREES.map(|(_, key, _)| Datum::text(key)));
    [
        Operation::remove_from_set(PORT, port, OPTIONS, &keys),
        Operation::add_to_set(PORT, port, OPTIONS, &no_spanning_tree()),
    ]
}

/// The columns that put a port into these VLANs only. VLAN 0 is untagged traffic.
pub(super) fn vlans(membership: &Membership) -> [(&'static str, Datum); 3] {
    let mode = if membership.trunk.is_empty() { "access" } else { "native-untagged" };
    let trunks = membership.trunk.iter().map(|vlan| Datum::integer(i64::from(*vlan)));
    [
        ("vlan_mode", Datum::text(mode)),
        ("tag", Datum::integer(i64::from(membership.vlan.unwrap_or_default()))),
        ("trunks", Datum::set(trunks)),
    ]
}
