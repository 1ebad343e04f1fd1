//! The driver's configuration.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fabric::BridgeSettings;

/// The default socket of Open vSwitch's database: its path on Debian, Red Hat and NVIDIA's images.
pub const DATABASE: &str = "/run/openvswitch/db.sock";

/// The bridge and its datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvsSettings {
    /// The bridge, and its uplinks. A bridge that another program created is used as it is.
    pub bridge: BridgeSettings,
    /// The datapath of a bridge that the driver creates.
    pub datapath: Datapath,
}

/// The part of Open vSwitch that forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datapath {
    /// The kernel module `openvswitch`, and the card where it offloads.
    #[default]
    System,
    /// The daemon itself, on any kernel. Slow; for tests.
    Netdev,
}

impl Datapath {
    /// The name in the configuration and in the database.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Netdev => "netdev",
        }
    }
}

/// Checks the socket's path. Returns a sentence if it is wrong.
pub fn check_database(socket: &Path) -> Option<String> {
    (!socket.is_absolute()).then(|| {
        format!("fabric.database = {socket:?} must be an absolute path, such as {DATABASE}")
    })
}
