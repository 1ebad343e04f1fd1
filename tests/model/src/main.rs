//! Explores the protocol within chosen bounds.
#![forbid(unsafe_code)]

use std::{io::Write, process::ExitCode, time::Instant};

use clap::{Parser, ValueEnum};
use protocol_model::{
    bounds::{Bounds, Breakage},
    explorer::{Extent, explore},
    properties::INVARIANTS,
    protection::Protection,
    protocol::Protocol,
};

/// Explores the protocol between hosts and their DPU, and prints how far it got.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of hosts.
    #[arg(long, default_value_t = 1)]
    hosts: u8,
    /// The number of VFs of each host.
    #[arg(long, default_value_t = 1)]
    vfs: u8,
    /// The number of containers of each host.
    #[arg(long, default_value_t = 1)]
    containers: u8,
    /// The number of addresses.
    #[arg(long, default_value_t = 1)]
    addresses: u8,
    /// The number of calls of ADD.
    #[arg(long, default_value_t = 2)]
    adds: u8,
    /// The number of faults.
    #[arg(long, default_value_t = 2)]
    faults: u8,
    /// Gives each host this many calls and faults, and the DPU this many faults. Default: all share them.
    #[arg(long)]
    each: bool,
    /// The faults that may happen. Default: all.
    #[arg(long, value_delimiter = ',')]
    breakable: Vec<Breakage>,
    /// The DPU offers VFs, and ADDs begin to move them before it has answered.
    #[arg(long)]
    offers: bool,
    /// The protections to remove from the protocol.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Protection>,
    /// Stops after this many states.
    #[arg(long, default_value_t = 20_000_000)]
    limit: usize,
}

fn main() -> std::io::Result<ExitCode> {
    let Arguments {
        hosts,
        vfs,
        containers,
        addresses,
        adds,
        faults,
        each,
        mut breakable,
        offers,
        without,
        limit,
    } = Arguments::parse();
    if breakable.is_empty() {
        breakable = Breakage::value_variants().to_vec();
    }
    let bounds =
        Bounds { hosts, vfs, containers, addresses, adds, faults, each, breakable, offers };
    let began = Instant::now();
    let protocol = Protocol { bounds, without };
    let mut out = std::io::stdout();
    let Extent { states, transitions, depth } = match explore(&protocol, limit) {
        Ok(extent) => extent,
        Err(found) => {
            writeln!(out, "{found}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let checked = INVARIANTS.len() + 3;
    let seconds = (Instant::now() - began).as_secs();
    let end = if states > limit { "gave up at the limit" } else { "all visited" };
    writeln!(
        out,
        "{}: {states} states, {transitions} transitions, depth {depth}, {end}; {checked} properties \
         hold; {seconds} s",
        protocol.bounds
    )?;
    Ok(ExitCode::SUCCESS)
}
