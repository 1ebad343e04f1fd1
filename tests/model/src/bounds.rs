//! How much of everything there is, so that the exploration ends.

use std::fmt;

use clap::ValueEnum;

/// How much of everything there is.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Hosts.
    pub hosts: u8,
    /// VFs of each host.
    pub vfs: u8,
    /// Containers of each host, whose ids are used again.
    pub containers: u8,
    /// Addresses that all pods share.
    pub addresses: u8,
    /// Calls of ADD.
    pub adds: u8,
    /// Faults.
    pub faults: u8,
    /// Whether each host has so many calls of ADD and faults, and the DPU so many faults; or else all
    /// together.
    pub each: bool,
    /// What may break.
    pub breakable: Vec<Breakage>,
    /// Whether the DPU promises VFs, and ADDs begin to move them before it has answered.
    pub promises: bool,
}

/// Something that breaks, or that somebody does without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Breakage {
    /// The agent is killed.
    AgentDies,
    /// The service is killed.
    ServiceDies,
    /// A host reboots.
    HostReboots,
    /// A host loses power: its agent's records are not synced, so that they are lost with it.
    PowerFails,
    /// A connection breaks.
    ConnectionBreaks,
    /// A call is given up while the session goes on.
    CallTimesOut,
    /// A pod's namespace dies before DEL.
    NetnsDies,
    /// The runtime gives an ADD up.
    RuntimeGivesUp,
    /// Whoever called ADD dies, and nobody calls again.
    CallerDies,
    /// An operator takes an attachment away.
    OperatorReleases,
    /// The agent is killed, and its records are lost.
    RecordsAreLost,
    /// An operator changes the pools: what is named as promised can't be had.
    PoolsChange,
}

impl Default for Bounds {
    /// One of everything, of which anything may break, and nothing does.
    fn default() -> Self {
        let breakable = Breakage::value_variants().to_vec();
        Self {
            hosts: 1,
            vfs: 1,
            containers: 1,
            addresses: 1,
            adds: 1,
            faults: 0,
            each: false,
            breakable,
            promises: false,
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, vfs, containers, addresses, adds, faults, each, .. } = self;
        let of = if *each { " of each host" } else { "" };
        write!(
            out,
            "{hosts} hosts, {vfs} VFs and {containers} containers each, {addresses} addresses, \
             {adds} ADDs and {faults} faults{of}"
        )
    }
}
