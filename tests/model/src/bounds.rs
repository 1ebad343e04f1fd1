//! The bounds of an exploration.

use std::fmt;

use clap::ValueEnum;

/// The numbers of everything.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The number of hosts.
    pub hosts: u8,
    /// The number of VFs of each host.
    pub vfs: u8,
    /// The number of containers of each host. Their ids are reused.
    pub containers: u8,
    /// The number of addresses for all pods.
    pub addresses: u8,
    /// The number of calls of ADD.
    pub adds: u8,
    /// The number of faults.
    pub faults: u8,
    /// Whether each host has this many calls of ADD and faults, and the DPU this many faults. Otherwise all share
    /// them.
    pub each: bool,
    /// The faults that may happen.
    pub breakable: Vec<Breakage>,
    /// Whether the DPU offers VFs, and ADDs begin to move them before it has answered.
    pub offers: bool,
}

/// A fault, or an unrequested action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Breakage {
    /// The agent is killed.
    AgentDies,
    /// The service is killed.
    ServiceDies,
    /// A host reboots.
    HostReboots,
    /// A host loses power, and with it its agent's unsynced records.
    PowerFails,
    /// A connection breaks.
    ConnectionBreaks,
    /// A call is abandoned while the session continues.
    CallTimesOut,
    /// A pod's namespace dies before DEL.
    NetnsDies,
    /// The runtime abandons an ADD.
    RuntimeGivesUp,
    /// The caller of ADD dies, and no call follows.
    CallerDies,
    /// An operator releases an attachment.
    OperatorReleases,
    /// The agent is killed, and its records are lost.
    RecordsAreLost,
    /// An operator changes the pools: offered VFs are not available.
    PoolsChange,
}

impl Default for Bounds {
    /// One of everything, without faults. Any fault may be added.
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
            offers: false,
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
