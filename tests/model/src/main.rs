//! Explores the protocol within bounds of one's choice.

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
    /// Hosts.
    #[arg(long, default_value_t = 1)]
    hosts: u8,
    /// VFs of each host.
    #[arg(long, default_value_t = 1)]
    vfs: u8,
    /// Containers of each host.
    #[arg(long, default_value_t = 1)]
    containers: u8,
    /// Addresses.
    #[arg(long, default_value_t = 1)]
    addresses: u8,
    /// Calls of ADD.
    #[arg(long, default_value_t = 2)]
    adds: u8,
    /// Faults.
    #[arg(long, default_value_t = 2)]
    faults: u8,
    /// So many calls and faults of each host, and so many faults of the DPU; or else of all together.
    #[arg(long)]
    each: bool,
    /// What may break. Everything, unless told.
    #[arg(long, value_delimiter = ',')]
    breakable: Vec<Breakage>,
    /// The DPU promises VFs, and ADDs begin to move them before it has answered.
    #[arg(long)]
    promises: bool,
    /// What is taken out of the protocol.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Protection>,
    /// Gives up after so many states.
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
        promises,
        without,
        limit,
    } = Arguments::parse();
    if breakable.is_empty() {
        breakable = Breakage::value_variants().to_vec();
    }
    let bounds =
        Bounds { hosts, vfs, containers, addresses, adds, faults, each, breakable, promises };
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
    let kept = INVARIANTS.len() + 3;
    let seconds = (Instant::now() - began).as_secs();
    let end = if states > limit { "gave up at the limit" } else { "all visited" };
    writeln!(
        out,
        "{}: {states} states, {transitions} transitions, depth {depth}, {end}; {kept} promises \
         hold; {seconds} s",
        protocol.bounds
    )?;
    Ok(ExitCode::SUCCESS)
}
