//! What the configuration tells the driver.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fabric::BridgeSettings;

/// Where Debian, Red Hat and NVIDIA's images have Open vSwitch's database.
pub const DATABASE: &str = "/run/openvswitch/db.sock";

/// Which bridge, and what leads outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvsSettings {
    /// The bridge, and the uplinks that join it. One that somebody else made is used as it is.
    pub bridge: BridgeSettings,
    /// What forwards in a bridge that is made.
    pub datapath: Datapath,
}

/// What forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datapath {
    /// The kernel's module `openvswitch`, and the card where it can.
    #[default]
    System,
    /// The daemon itself, on any kernel: slowly, for tests.
    Netdev,
}

impl Datapath {
    /// Its name, in the configuration as in the database.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Netdev => "netdev",
        }
    }
}

/// What makes no sense in where the database is, one sentence.
pub(crate) fn check_database(socket: &Path) -> Option<String> {
    (!socket.is_absolute()).then(|| {
        format!("fabric.database = {socket:?} must be an absolute path, such as {DATABASE}")
    })
}
