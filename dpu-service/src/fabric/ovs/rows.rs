//! What Open vSwitch's database has of bridges and their ports (ovs-vswitchd.conf.db(5)).

use std::collections::BTreeSet;

use ovsdb::{Datum, MonitoredTable, Operation, Replica, Row};
use uuid::Uuid;

use crate::fabric::Membership;

/// The one row that is about the daemon itself.
pub(super) const ROOT: &str = "Open_vSwitch";
pub(super) const BRIDGE: &str = "Bridge";
pub(super) const PORT: &str = "Port";
pub(super) const INTERFACE: &str = "Interface";
pub(super) const QOS: &str = "QoS";

/// By which a row of ours is known, among its `external_ids`.
const OWNER: (&str, &str) = ("owner", "dpu-offload");

/// Settings of a port that have no column of their own.
pub(super) const OPTIONS: &str = "other_config";

/// The queues of ports that others queue for.
const NO_QUEUES: &str = "linux-noop";

/// The spanning trees of a bridge: the column that switches one on, the key by which a port takes no part in it, and its
/// name for people.
const SPANNING_TREES: [(&str, &str, &str); 2] =
    [("stp_enable", "stp-enable", "STP"), ("rstp_enable", "rstp-enable", "RSTP")];

/// All VLANs that a port may be in.
const EVERY_VLAN: std::ops::RangeInclusive<u16> = 1..=4094;

/// What is kept a replica of.
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

/// The index of the link that an interface was made for, likewise.
const MADE_FOR: &str = "ifindex";

/// What marks a row as ours, and tells people what it is for.
pub(super) fn marks(purpose: &str) -> Datum {
    Datum::map([OWNER, ("purpose", purpose)])
}

/// The same for an interface that is made for the link with that index. The userspace datapath tells the index of the
/// link that has the name now, and goes on with the one that it has opened, be it gone or not.
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

/// Behind how many tags the daemon is told to look, where that is not the one of its default (0: all that it can).
pub(super) fn other_vlan_limit(replica: &Replica) -> Option<&str> {
    let limit = root(replica)?.map("other_config").get("vlan-limit").copied();
    limit.filter(|limit| *limit != "1")
}

pub(super) fn bridge<'a>(replica: &'a Replica, name: &str) -> Option<&'a Row> {
    replica.named(BRIDGE, name)
}

/// The row of ours that leaves a port's queues to others.
pub(super) fn no_queues(replica: &Replica) -> Option<Uuid> {
    let found = replica.rows(QOS).find(|row| row.text("type") == NO_QUEUES && is_ours(row));
    found.map(Row::id)
}

/// What such a row holds.
pub(super) fn no_queues_row() -> [(&'static str, Datum); 2] {
    [("type", Datum::text(NO_QUEUES)), ("external_ids", marks("leaves queues to others"))]
}

/// A port with its one interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port<'a> {
    pub(super) bridge: &'a Row,
    pub(super) port: &'a Row,
    pub(super) interface: &'a Row,
}

impl<'a> Port<'a> {
    /// The port of that name, in whichever bridge. A bond has several interfaces, and is none that we look for.
    pub(super) fn find(replica: &'a Replica, name: &str) -> Option<Self> {
        let interface = replica.named(INTERFACE, name)?;
        let has_it = |row: &&Row| row.refers("interfaces", interface.id());
        // A port is called like its one interface, unless somebody has called it otherwise.
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

    /// Why the daemon could not open it. `None`: it has said nothing of the kind.
    pub(super) fn error(&self) -> Option<&'a str> {
        Some(self.interface.text("error")).filter(|error| !error.is_empty())
    }

    /// Whether the daemon has last seen its link up.
    pub(super) fn is_seen_up(&self) -> bool {
        self.interface.text("admin_state") == "up"
    }

    /// Its number in flows. `None`: it has none, or none yet.
    pub(super) fn number(&self) -> Option<u32> {
        let number = self.interface.integer("ofport")?;
        u32::try_from(number).ok().filter(|number| *number > 0)
    }

    /// The number that it is to have.
    pub(super) fn wanted_number(&self) -> Option<u32> {
        self.interface.integer("ofport_request").and_then(|number| u32::try_from(number).ok())
    }

    /// The index of the link that the daemon has opened. `None`: it could not, or another link has its name now.
    /// What the daemon tells of it is not in a database that has just been started, until the daemon is back.
    pub(super) fn index(&self) -> Option<u32> {
        let made_for = self.interface.map("external_ids").get(MADE_FOR)?.parse().ok()?;
        let told = self.interface.integer("ifindex");
        let is_same = told.is_none_or(|told| told == i64::from(made_for));
        (is_same && self.error().is_none()).then_some(made_for).filter(|_| self.number().is_some())
    }

    /// The VLANs that it is in.
    pub(super) fn membership(&self) -> Membership {
        let tag = self.port.integer("tag").and_then(|tag| u16::try_from(tag).ok());
        let trunks = self.port.integers("trunks");
        let trunks: BTreeSet<u16> = trunks.filter_map(|vlan| vlan.try_into().ok()).collect();
        // Without a list it is in every VLAN.
        let carried = if trunks.is_empty() { EVERY_VLAN.collect() } else { trunks.clone() };
        let (vlan, trunk) = match (self.port.text("vlan_mode"), tag) {
            ("access", _) | ("", Some(_)) => (tag, BTreeSet::new()),
            ("native-untagged", tag) => {
                let trunk = carried.into_iter().filter(|vlan| Some(*vlan) != tag).collect();
                (tag, trunk)
            }
            // Nothing untagged, or only what is untagged in no VLAN: what is carried tells 0 then.
            _ => (None, carried),
        };
        let vlan = vlan.filter(|vlan| *vlan != 0);
        Membership { bridge: None, vlan, trunk, held_back_by: self.spanning_trees() }
    }

    /// The spanning trees in which it takes part. Each holds up a port that joins.
    fn spanning_trees(&self) -> BTreeSet<&'static str> {
        let options = self.port.map(OPTIONS);
        let takes_part = |(column, key, _): &(&str, &str, &str)| {
            self.bridge.flag(column) == Some(true) && options.get(key) != Some(&"false")
        };
        SPANNING_TREES.into_iter().filter(takes_part).map(|(.., name)| name).collect()
    }

    /// Whether its columns say exactly that.
    pub(super) fn is_like(&self, membership: &Membership, queues: Option<Uuid>) -> bool {
        self.membership() == *membership && self.port.references("qos").next() == queues
    }
}

/// What makes a port of one interface, with more columns of both rows.
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

/// What has a pod's port take no part in the spanning trees of its bridge: it would drop all frames at first, and its
/// guard lets no frame of a spanning tree pass.
pub(super) fn no_spanning_tree() -> Datum {
    Datum::map(SPANNING_TREES.map(|(_, key, _)| (key, "false")))
}

/// What replaces the same in the row of a port that there is. The rest of the column is left alone.
pub(super) fn leave_spanning_trees(port: Uuid) -> [Operation; 2] {
    let keys = Datum::set(SPANNING_TREES.map(|(_, key, _)| Datum::text(key)));
    [
        Operation::remove_from_set(PORT, port, OPTIONS, &keys),
        Operation::add_to_set(PORT, port, OPTIONS, &no_spanning_tree()),
    ]
}

/// What puts a port into these VLANs and no other. VLAN 0 is what is untagged.
pub(super) fn vlans(membership: &Membership) -> [(&'static str, Datum); 3] {
    let mode = if membership.trunk.is_empty() { "access" } else { "native-untagged" };
    let trunks = membership.trunk.iter().map(|vlan| Datum::integer(i64::from(*vlan)));
    [
        ("vlan_mode", Datum::text(mode)),
        ("tag", Datum::integer(i64::from(membership.vlan.unwrap_or_default()))),
        ("trunks", Datum::set(trunks)),
    ]
}
