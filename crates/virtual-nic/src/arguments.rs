//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::Kind;

/// A DPU made of software, plugged between the network namespace of a host and that of a DPU.
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
    /// Plug a card in, and be it until SIGTERM or SIGINT. SIGHUP resets it.
    Plug(PlugArguments),
    /// Remove what a card that died has left.
    Unplug(Places),
}

/// Between which namespaces a card is.
#[derive(Debug, Args)]
pub struct Places {
    /// The host's namespace: a path, or a name below /run/netns.
    #[arg(long, value_name = "NAME|PATH")]
    pub host_netns: PathBuf,
    /// The DPU's namespace: a path, or a name below /run/netns.
    #[arg(long, value_name = "NAME|PATH")]
    pub dpu_netns: PathBuf,
    /// The controller that the DPU knows the host by. Several cards of one host, or of one DPU, differ in
    /// it: the names of 1's links begin with c1, and its management link is mgmt1.
    #[arg(long, default_value_t = 0)]
    pub controller: u32,
}

/// The card to plug.
#[derive(Debug, Args)]
pub struct PlugArguments {
    /// Between which namespaces.
    #[command(flatten)]
    pub places: Places,
    /// What the card's links are made of.
    #[arg(long, default_value = "veth")]
    pub kind: KindArgument,
    /// How many PFs.
    #[arg(long, default_value_t = 1)]
    pub pfs: u16,
    /// How many VFs for each PF.
    #[arg(long, default_value_t = 16)]
    pub vfs: u16,
    /// No management link between host (192.168.100.1, of controller 1 192.168.101.1 and so on) and DPU
    /// (192.168.100.2).
    #[arg(long)]
    pub no_management: bool,
    /// Have VFs finish the checksums of what they send, as Open vSwitch's userspace datapath needs it. Needs ethtool.
    #[arg(long)]
    pub whole_checksums: bool,
    /// Give each PF an uplink, `p0` and so on, in the DPU's namespace.
    #[arg(long, requires = "wire_netns")]
    pub uplink: bool,
    /// Where the far ends of the uplinks are, `wire0` and so on.
    #[arg(long, requires = "uplink", value_name = "NAME|PATH")]
    pub wire_netns: Option<PathBuf>,
}

/// What a card's links are made of.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KindArgument {
    /// Pairs of connected links: any kernel has them.
    Veth,
    /// The kernel's simulated switchdev card, with devlink ports, one PF, and an uplink `p0` in any
    /// case. The kernel needs the module netdevsim, and for more than 4 VFs debugfs.
    Netdevsim,
}

impl From<KindArgument> for Kind {
    fn from(kind: KindArgument) -> Self {
        match kind {
            KindArgument::Veth => Self::Veth,
            KindArgument::Netdevsim => Self::Netdevsim,
        }
    }
}
