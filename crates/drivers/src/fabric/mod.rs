//! The contract of a fabric driver: a fabric joins representors and uplinks.
//!
//! A driver owns its bridge, the ports in it and their guards. Callers hold the lock of a port's VF, so a driver
//! locks only what ports share.

pub mod bridge;
mod bridges;
mod gateway;
mod guard;
mod limit;
mod offload;
pub mod ovs;
mod repairs;
mod settings;
mod sockets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

pub use bridges::Bridges;
pub use gateway::{GatewayLink, GatewayPort, mac_of};
pub use limit::EgressLimit;
use netlink::{LinkEvent, MacAddress};
pub use settings::BridgeSettings;
use tokio::sync::watch;

use crate::{
    counters::{Drops, Offloaded},
    driver::{Capability, Reading, Refused, Unsupported},
    eswitch::Representor,
};
use model::PortSettings;

/// How a link is joined to the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The bridge's name, where the fabric has several. `None`: it has one.
    pub bridge: Option<String>,
    /// The access VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// The VLANs that pass tagged.
    pub trunk: BTreeSet<u16>,
    /// The settings that keep frames from passing a joined port, such as `isolated`, by the names of the fabric's
    /// tools. Empty in every wanted membership.
    pub held_back_by: BTreeSet<&'static str>,
}

impl Membership {
    /// The membership that a port should have in a fabric with one bridge.
    #[must_use]
    pub fn of(settings: &PortSettings) -> Self {
        Self { vlan: settings.vlan, trunk: settings.trunk.clone(), ..Self::default() }
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("joined")?;
        if let Some(bridge) = &self.bridge {
            write!(out, " to {bridge}")?;
        }
        match self.vlan {
            None => write!(out, ", untagged")?,
            Some(vlan) => write!(out, " in VLAN {vlan}")?,
        }
        if !self.trunk.is_empty() {
            let trunk: Vec<_> = self.trunk.iter().map(u16::to_string).collect();
            write!(out, ", tagged in {}", trunk.join(" "))?;
        }
        if !self.held_back_by.is_empty() {
            let held_back_by = Vec::from_iter(self.held_back_by.iter().copied());
            write!(out, ", held back by {}", held_back_by.join(" "))?;
        }
        Ok(())
    }
}

/// One entry per requested gateway: its link, or why the fabric could not make it.
pub type GatewayLinks = Vec<Result<GatewayLink, Refused>>;

/// A driver of a fabric. The rules of [`crate::eswitch::Eswitch`] apply here too: methods block, are idempotent,
/// and treat a vanished representor as cleared.
///
/// Calls for several ports overlap. Calls for one port never do: the caller holds the lock of the port's VF. A
/// driver therefore locks what ports share, and nothing else.
pub trait Fabric: fmt::Debug + Send + Sync + 'static {
    /// The driver's name in the configuration.
    fn name(&self) -> &'static str;

    /// Whether an event concerns what all ports share. Does not ask the kernel.
    fn concerns(&self, event: &LinkEvent) -> bool {
        matches!(event, LinkEvent::Missed)
    }

    /// Receivers whose counter grows at each change that the kernel does not report: a daemon ended or came back,
    /// or another program changed something. One receiver per bridge; empty where the kernel reports everything.
    /// Called once.
    fn changes(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    /// What the kernel supports, as probed at start.
    fn capabilities(&self) -> Vec<Capability>;

    /// Checks whether a port on any card can be joined with these settings.
    ///
    /// # Errors
    /// The first setting that the fabric does not support.
    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported>;

    /// Makes what all ports share, and joins the uplinks.
    ///
    /// # Errors
    /// When the kernel refuses. A failure that does not keep ports from joining, such as a missing uplink, is
    /// reported as [partial](Refused::partial), and only if there is no other failure.
    fn prepare(&self) -> Result<(), Refused>;

    /// Takes the sentences about what [`Self::prepare`] has repaired since the latest call. Making something for
    /// the first time is no repair.
    fn take_repairs(&self) -> Vec<String> {
        Vec::new()
    }

    /// How many ports the caller should program at a time. Does not ask the kernel.
    fn together(&self) -> usize {
        1
    }

    /// The largest packet in bytes that all uplinks of a network's `bridge` carry, as the latest [`Self::prepare`]
    /// found. Does not ask the kernel. `None`: there is no uplink.
    fn uplink_mtu(&self, _bridge: Option<&str>) -> Option<u32> {
        None
    }

    /// The configured uplinks of a network's `bridge`, by name. The service asks other machines through them
    /// whether they use a pod's address. Does not ask the kernel.
    fn uplinks(&self, _bridge: Option<&str>) -> &[String] {
        &[]
    }

    /// The configured uplinks of all bridges, by name. Does not ask the kernel.
    fn all_uplinks(&self) -> Vec<String> {
        self.uplinks(None).to_vec()
    }

    /// The name of another program's bridge or bond that has the representor as a port. `None`: the representor can
    /// join.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn occupant(&self, _port: &Representor) -> Result<Option<String>, Refused> {
        Ok(None)
    }

    /// The MAC addresses of the links that all ports share, as the latest [`Self::prepare`] found. No pod gets one
    /// of them. Does not ask the kernel.
    fn own_macs(&self) -> Vec<MacAddress> {
        Vec::new()
    }

    /// Gives this DPU a link of its own in each network of `ports`, and removes the links that it has in other
    /// networks. Leaves correct links unchanged. The results are in the order of `ports`.
    ///
    /// Never called twice at once; other calls overlap.
    ///
    /// # Errors
    /// When the kernel can't be asked, or a link can't be removed. A failure of one port is in that port's result.
    fn set_gateways(&self, ports: &[GatewayPort]) -> Result<GatewayLinks, Refused> {
        let refuse = |port: &GatewayPort| {
            let (name, network) = (self.name(), &port.network);
            Err(Refused::because(format!("fabric {name} has no gateway for network {network}")))
        };
        Ok(ports.iter().map(refuse).collect())
    }

    /// The name that the link of a network's gateway has or will have. Does not ask the kernel.
    fn gateway_name(&self, network: &str) -> String {
        network.to_owned()
    }

    /// The links that the kernel's packet filter reports as the input of packets between ports, if the filter can
    /// see such packets at all. Does not ask the kernel.
    fn ports_seen_as(&self) -> Vec<String> {
        Vec::new()
    }

    /// The membership of a port with these settings. Does not ask the kernel.
    fn membership(&self, settings: &PortSettings) -> Membership {
        Membership::of(settings)
    }

    /// Joins the representor in its VLAN.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused>;

    /// Takes the representor out, and then removes its guard: no joined port is without a guard at any moment.
    /// Removes the remains of a guard of a representor that has not joined.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn leave(&self, port: &Representor) -> Result<(), Refused>;

    /// The representor's membership. `None`: the representor has not joined.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused>;

    /// All joined links by index, uplinks included, read in one pass. Empty when the bridge does not exist.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused>;

    /// Whether frames pass the joined link with that index: the link is up and has a carrier.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn forwards(&self, index: u32) -> Result<bool, Refused>;

    /// Drops what the representor's VF must not send: what the network's `anti_spoofing` forbids; frames to
    /// link-local groups, by which the switch outside would take this DPU for a switch; and tagged frames outside
    /// the port's trunk. With `allow` rules, also drops connections to the pod that no rule allows; answers to the
    /// pod pass. The representor has joined with these settings.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_guard(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused>;

    /// Whether exactly what [`Self::set_guard`] drops is dropped.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused>;

    /// Whether another program has removed nftables rules of guards since they were set. The service asks at each
    /// change of nftables. Each loss is reported once.
    fn lost_rules(&self) -> bool {
        false
    }

    /// The number of dropped packets by the index of the joined link, read in one pass. A link without drops may be
    /// absent.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused>;

    /// The flows of its bridges as texts for people, those of other programs included. Empty for a fabric without
    /// flows.
    ///
    /// # Errors
    /// When the flows can't be listed.
    fn flows(&self) -> Result<Vec<String>, Refused> {
        Ok(Vec::new())
    }

    /// Sentences about problems in what all ports share that the driver leaves to others, as the latest
    /// [`Self::prepare`] found. Does not ask the kernel.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// How many rules of these joined links, by index, the card carries out. A link that is gone may be absent.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn offloaded(&self, ports: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offloaded>, Refused>;

    /// Checks whether the fabric can limit what VFs send, for cards that do not. Does not ask the kernel.
    ///
    /// # Errors
    /// The limit, if the fabric does not support it.
    fn check_egress_limit(&self, limit: &EgressLimit) -> Result<(), Unsupported>;

    /// Limits what the representor's VF sends, after its guard. The representor has joined and has a guard.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_egress_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused>;

    /// Removes the limit. The representor has not left yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused>;

    /// Whether what the VF sends is limited exactly as `wanted`; `None`: not limited at all.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused>;
}
