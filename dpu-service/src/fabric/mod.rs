//! What joins representors and uplinks: the driver's contract.

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
pub(crate) use gateway::mac_of;
pub use gateway::{GatewayLink, GatewayPort};
pub use limit::EgressLimit;
use netlink::{LinkEvent, MacAddress};
pub use settings::BridgeSettings;
use tokio::sync::watch;

use crate::{
    counters::{Drops, Offloaded},
    driver::{Capability, Reading, Refused, Unsupported},
    eswitch::Representor,
    model::PortSettings,
};

/// How a link is joined to the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Its bridge, where there are several. `None`: there is one.
    pub bridge: Option<String>,
    /// Its access VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// The VLANs that pass tagged.
    pub trunk: BTreeSet<u16>,
    /// What keeps frames from passing though it is joined, by the names of the fabric's own tools, such as `isolated`.
    /// Nothing wants any.
    pub held_back_by: BTreeSet<&'static str>,
}

impl Membership {
    /// What a port wants of a fabric with one bridge.
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

/// The links of gateways, each as it is or why it could not be made.
pub type GatewayLinks = Vec<Result<GatewayLink, Refused>>;

/// A driver of a fabric. The rules of [`crate::eswitch::Eswitch`] hold here too: methods block, are
/// idempotent, and take a representor that vanished for cleared.
///
/// Calls for several ports overlap, those for one port never do: whoever programs a port holds the lock
/// of its VF. So what ports share, the driver has to lock, and nothing else.
pub trait Fabric: fmt::Debug + Send + Sync + 'static {
    /// The driver's name, as in the configuration.
    fn name(&self) -> &'static str;

    /// Whether an event is about what all ports share, as far as is known without asking the kernel.
    fn concerns(&self, event: &LinkEvent) -> bool {
        matches!(event, LinkEvent::Missed)
    }

    /// Counts what happens, from now on, to what the kernel tells nothing of: a daemon that ended and came back,
    /// or something that others have changed. Of a fabric with several bridges, each counts. Empty: there is nothing
    /// of the kind. Asked once.
    fn changes(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    /// What the kernel can do for it, as probed at start.
    fn capabilities(&self) -> Vec<Capability>;

    /// Whether a port can be joined with these settings, whichever card its VF is of.
    ///
    /// # Errors
    /// The first setting that it can't be given.
    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported>;

    /// Makes what all ports share, and joins the uplinks.
    ///
    /// # Errors
    /// When the kernel refuses. What ports can join without, such as an uplink that is missing, is told as
    /// [partial](Refused::partial), and only if nothing else is.
    fn prepare(&self) -> Result<(), Refused>;

    /// What [`Self::prepare`] has repaired of what all ports share since the latest call, for people: one sentence each.
    /// What it makes for the first time is no repair.
    fn take_repairs(&self) -> Vec<String> {
        Vec::new()
    }

    /// How many ports are best worked at at a time, where there are many. Does not ask the kernel.
    fn together(&self) -> usize {
        1
    }

    /// The largest packet that all uplinks of a network's `bridge` carry, in bytes, as the latest [`Self::prepare`]
    /// found them. Does not ask the kernel. `None`: there is none.
    fn uplink_mtu(&self, _bridge: Option<&str>) -> Option<u32> {
        None
    }

    /// The names of the links that lead outside from a network's `bridge`, as the configuration has them: by these, other
    /// machines are asked whether they use a pod's address. Does not ask the kernel.
    fn uplinks(&self, _bridge: Option<&str>) -> &[String] {
        &[]
    }

    /// The uplinks of all its bridges, by name, as the configuration has them. Does not ask the kernel.
    fn all_uplinks(&self) -> Vec<String> {
        self.uplinks(None).to_vec()
    }

    /// The bridge, bond or the like of another program that has the representor as a port, by name. `None`: none has, so
    /// that the representor can join.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn occupant(&self, _port: &Representor) -> Result<Option<String>, Refused> {
        Ok(None)
    }

    /// The Ethernet addresses of the links that all ports share, as the latest [`Self::prepare`] found them: no
    /// pod gets one of them. Does not ask the kernel.
    fn own_macs(&self) -> Vec<MacAddress> {
        Vec::new()
    }

    /// Gives this DPU a link of its own in each of these networks, made unless it is there, and takes
    /// those away that it was given in others. Changes nothing that is as it should be. The results are
    /// in the order of `ports`.
    ///
    /// Never called twice at once; other calls overlap.
    ///
    /// # Errors
    /// When the kernel can't be asked, or a link can't be taken away. What one port can't be given is
    /// told in its place.
    fn set_gateways(&self, ports: &[GatewayPort]) -> Result<GatewayLinks, Refused> {
        let refuse = |port: &GatewayPort| {
            let (name, network) = (self.name(), &port.network);
            Err(Refused::because(format!("fabric {name} has no gateway for network {network}")))
        };
        Ok(ports.iter().map(refuse).collect())
    }

    /// The name that the link of a network's gateway has, or will have. Does not ask the kernel.
    fn gateway_name(&self, network: &str) -> String {
        network.to_owned()
    }

    /// As coming in by which links the kernel's packet filter sees packets that pass between ports, where
    /// it may see them at all. Does not ask the kernel.
    fn ports_seen_as(&self) -> Vec<String> {
        Vec::new()
    }

    /// How a port with these settings is joined. Does not ask the kernel.
    fn membership(&self, settings: &PortSettings) -> Membership {
        Membership::of(settings)
    }

    /// Joins the representor, in its VLAN.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused>;

    /// Takes the representor out, and then all of its guard: at no moment does a port that has joined lose it.
    /// Of one that has not joined, what is left of a guard is taken away.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn leave(&self, port: &Representor) -> Result<(), Refused>;

    /// How the representor is joined. `None`: it is not.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused>;

    /// All joined links by index, uplinks included, in one look. In a bridge that is not there is none.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused>;

    /// Whether frames pass the joined link of that index: it is up, and has a carrier.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn forwards(&self, index: u32) -> Result<bool, Refused>;

    /// Drops what the representor's VF must not send: what its network's `anti_spoofing` says, frames to
    /// link-local groups, which would have the switch outside take this DPU for a switch, and those with a tag,
    /// unless it is of a VLAN of the port's trunk. And what must not be opened to the pod, if its network has rules
    /// for that: what it opens itself is answered. The representor has joined with these settings.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_guard(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused>;

    /// Whether exactly that is dropped.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused>;

    /// Whether what guards have in nftables was lost since they were set, as far as one look shows. Asked whenever
    /// nftables has changed; of one loss it is said once.
    fn lost_rules(&self) -> bool {
        false
    }

    /// How many packets were dropped, by the index of the joined link, in one look at all. Who has dropped none may
    /// be left out.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused>;

    /// The flows of its bridges, those of other programs included: for people, one text each. Empty: it has none beside
    /// what the kernel's tables have.
    ///
    /// # Errors
    /// When they can't be listed.
    fn flows(&self) -> Result<Vec<String>, Refused> {
        Ok(Vec::new())
    }

    /// What is wrong with what all ports share that the driver leaves to others, as the latest [`Self::prepare`] found
    /// it: for people, one sentence each. Does not ask the kernel.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// What of the work for the joined links of these indices the card does by itself. A link that is gone may be
    /// left out.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn offloaded(&self, ports: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offloaded>, Refused>;

    /// Whether what VFs send can be limited so, where their card does not limit it. Does not ask the kernel.
    ///
    /// # Errors
    /// The limit, if it can't be had.
    fn check_egress_limit(&self, limit: &EgressLimit) -> Result<(), Unsupported>;

    /// Limits what the representor's VF sends, of what the guard lets pass at most: it has joined, and been guarded.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_egress_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused>;

    /// Takes the limit away again. The representor has not left yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused>;

    /// Whether what the VF sends is limited exactly so, or not at all.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused>;
}
