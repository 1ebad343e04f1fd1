//! Command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::Kind;

/// A software DPU, plugged between the network namespaces of a host and a DPU.
#[derive(Debug, Parser)]
#[command(name = "virtual-nic", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Plug in a card and run it until SIGTERM or SIGINT. SIGHUP resets it.
    Plug(PlugArguments),
    /// Remove the links of a card that died.
    Unplug(Places),
}

/// The namespaces of a card.
#[derive(Debug, Args)]
pub struct Places {
    /// The host's namespace: a path, or a name below /run/netns.
    #[arg(long, value_name = "NAME|PATH")]
    pub host_netns: PathBuf,
    /// The DPU's namespace: a path, or a name below /run/netns.
    #[arg(long, value_name = "NAME|PATH")]
    pub dpu_netns: PathBuf,
    /// Number of the host's controller on the DPU. Cards of one host, or of one DPU, need different numbers. The links
    /// of controller 1 begin with c1, and its management link is mgmt1.
    #[arg(long, default_value_t = 0)]
    pub controller: u32,
}

/// The card to plug in.
#[derive(Debug, Args)]
pub struct PlugArguments {
    /// The namespaces.
    #[command(flatten)]
    pub places: Places,
    /// Technique of the card's links.
    #[arg(long, default_value = "veth")]
    pub kind: Kind,
    /// Number of PFs.
    #[arg(long, default_value_t = 1)]
    pub pfs: u16,
    /// Number of VFs for each PF.
    #[arg(long, default_value_t = 16)]
    pub vfs: u16,
    /// Omit the management link between host (192.168.100.1, for controller 1 192.168.101.1 and so on) and DPU
    /// (192.168.100.2).
    #[arg(long)]
    pub no_management: bool,
    /// Make VFs complete the checksums of what they send, as Open vSwitch's userspace datapath requires. Needs ethtool.
    #[arg(long)]
    pub whole_checksums: bool,
    /// Give each PF an uplink, `p0` and so on, in the DPU's namespace.
    #[arg(long, requires = "wire_netns")]
    pub uplink: bool,
    /// Namespace of the uplinks' far ends, `wire0` and so on.
    #[arg(long, requires = "uplink", value_name = "NAME|PATH")]
    pub wire_netns: Option<PathBuf>,
}
