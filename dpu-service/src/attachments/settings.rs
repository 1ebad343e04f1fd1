//! What the engine is told by the configuration file.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use vf_alloc::{PfId, PoolSpec};

use crate::{
    drivers::FabricDriver,
    gateway::GatewaySettings,
    model::{HostName, HostRights, Network},
};

/// What can change while the service runs.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The hosts that are served, each with its PFs.
    pub hosts: Vec<(HostName, Vec<PfId>)>,
    /// What hosts may ask for, as far as that is limited.
    pub rights: BTreeMap<HostName, HostRights>,
    /// How many VFs PFs shall have. The hosts leave the other PFs as they are.
    pub vfs: BTreeMap<PfId, u32>,
    /// The pools of VFs.
    pub pools: Vec<PoolSpec>,
    /// The networks of the configuration file.
    pub networks: Vec<Network>,
}

/// What stays for the life of the service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long an address rests before it is handed out again. Whole seconds count.
    pub address_cool_down: Duration,
    /// The first bytes of the MAC addresses handed out: 1 to 5, locally administered unicast.
    pub mac_prefix: Vec<u8>,
    /// Failures in a row after which a VF is quarantined. 0: never.
    pub quarantine_after: u32,
    /// How many attachments there may be.
    pub attachments: usize,
    /// How many networks there may be, of file and API together.
    pub networks: usize,
    /// The fabric's driver.
    pub fabric: FabricDriver,
    /// The fabric's bridges, by name.
    pub bridges: Vec<String>,
    /// Where networks lead whose gateway is this DPU.
    pub gateway: GatewaySettings,
    /// Where the service listens itself, by TCP.
    pub own_ports: Vec<SocketAddr>,
    /// How long an attach waits for a representor that the card has not made yet.
    pub representor_wait: Duration,
    /// How long a representor may be missing, as while its card is reset, until that is told.
    pub missing_told_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address_cool_down: Duration::from_secs(60),
            mac_prefix: vec![0x02],
            quarantine_after: 3,
            attachments: 4096,
            networks: 1024,
            fabric: FabricDriver::default(),
            bridges: Vec::new(),
            gateway: GatewaySettings::default(),
            own_ports: Vec::new(),
            representor_wait: Duration::from_secs(2),
            missing_told_after: Duration::from_secs(5),
        }
    }
}
