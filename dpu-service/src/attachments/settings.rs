//! Settings of the engine, from the configuration file.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use vf_alloc::{PfId, PoolSpec};

use crate::gateway::GatewaySettings;
use drivers::settings::FabricDriver;
use model::{HostName, HostRights, Network};

/// Settings that a reload of the configuration file may change.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    pub hosts: Vec<(HostName, Vec<PfId>)>,
    /// Rights of hosts. A host without an entry may request everything.
    pub rights: BTreeMap<HostName, HostRights>,
    /// Numbers of VFs by PF. Hosts leave PFs without an entry as they are.
    pub vfs: BTreeMap<PfId, u32>,
    pub pools: Vec<PoolSpec>,
    pub networks: Vec<Network>,
}

/// Settings that need a restart to change.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time in cool-down before an address is leased to another owner. Whole seconds count.
    pub address_cool_down: Duration,
    /// First 1 to 5 bytes of generated MAC addresses, locally administered unicast.
    pub mac_prefix: Vec<u8>,
    /// Number of consecutive failures that quarantine a VF. 0: never.
    pub quarantine_after: u32,
    pub attachments: usize,
    /// Maximum number of networks, of file and API together.
    pub networks: usize,
    pub fabric: FabricDriver,
    pub bridges: Vec<String>,
    pub gateway: GatewaySettings,
    /// TCP addresses on which the service itself listens: no pod may map these ports.
    pub own_ports: Vec<SocketAddr>,
    /// How long an attach waits for a representor that the card has not created yet.
    pub representor_wait: Duration,
    /// How long a representor may be missing, as during a reset of its card, before a condition reports it.
    pub missing_reported_after: Duration,
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
            missing_reported_after: Duration::from_secs(5),
        }
    }
}
