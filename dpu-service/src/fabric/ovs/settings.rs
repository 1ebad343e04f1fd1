//! What the configuration tells the driver.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fabric::BridgeSettings;

/// Where Debian, Red Hat and NVIDIA's images have Open vSwitch's database.
pub const DATABASE: &str = "/run/openvswitch/db.sock";

/// Which bridge of which Open vSwitch, and what leads outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvsSettings {
    /// The bridge, and the uplinks that join it. One that somebody else made is used as it is.
    pub bridge: BridgeSettings,
    /// The socket of the database. Those of the bridges are beside it.
    pub database: PathBuf,
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

impl OvsSettings {
    /// What makes no sense in them besides the bridge, one sentence.
    pub(crate) fn check(&self) -> Option<String> {
        (!self.database.is_absolute()).then(|| {
            format!(
                "fabric.database = {:?} must be an absolute path, such as {DATABASE}",
                self.database
            )
        })
    }

    /// The socket by which the bridge's flows are set.
    pub(super) fn management(&self) -> PathBuf {
        let folder = self.database.parent().unwrap_or(Path::new("/"));
        folder.join(format!("{}.mgmt", self.bridge.name))
    }
}
