//! `virtual-nic`: plugs a DPU made of software between two network namespaces.
#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use bootstrap::{
    LogSettings, init_logs, notify_ready, notify_stopping, reload_signals, shutdown_signal,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use netlink::Netns;
use virtual_nic::{Card, Kind, Namespaces, Plan, unplug};

/// A DPU made of software, plugged between the network namespace of a host and that of a DPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plug a card in, and be it until SIGTERM or SIGINT. SIGHUP resets it.
    Plug(PlugArguments),
    /// Remove what a card that died has left.
    Unplug(Places),
}

#[derive(Debug, Args)]
struct Places {
    /// The host's namespace: a path, or a name below /run/netns.
    #[arg(long, value_name = "NAME|PATH")]
    host_netns: PathBuf,
    /// The DPU's namespace: a path, or a name below /run/netns.
    #[arg(long, value_name = "NAME|PATH")]
    dpu_netns: PathBuf,
    /// The controller that the DPU knows the host by. Several cards of one host, or of one DPU, differ in
    /// it: the names of 1's links begin with c1, and its management link is mgmt1.
    #[arg(long, default_value_t = 0)]
    controller: u32,
}

#[derive(Debug, Args)]
struct PlugArguments {
    #[command(flatten)]
    places: Places,
    /// What the card's links are made of.
    #[arg(long, default_value = "veth")]
    kind: KindArgument,
    /// How many PFs.
    #[arg(long, default_value_t = 1)]
    pfs: u16,
    /// How many VFs for each PF.
    #[arg(long, default_value_t = 16)]
    vfs: u16,
    /// No management link between host (192.168.100.1, of controller 1 192.168.101.1 and so on) and DPU
    /// (192.168.100.2).
    #[arg(long)]
    no_management: bool,
    /// Give each PF an uplink, `p0` and so on, in the DPU's namespace.
    #[arg(long, requires = "wire_netns")]
    uplink: bool,
    /// Where the far ends of the uplinks are, `wire0` and so on.
    #[arg(long, requires = "uplink", value_name = "NAME|PATH")]
    wire_netns: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArgument {
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

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell_error(&error);
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> anyhow::Result<()> {
    init_logs(&LogSettings::default(), "virtual-nic")?;
    match arguments.command {
        Command::Plug(arguments) => be_card(arguments).await,
        Command::Unplug(places) => {
            let count = unplug(&open(&places, None)?, places.controller)?;
            tell(&format!("removed {count} links"));
            Ok(())
        }
    }
}

async fn be_card(arguments: PlugArguments) -> anyhow::Result<()> {
    // A signal that comes while the card is plugged in is answered once it is.
    let mut shutdown = tokio::spawn(shutdown_signal());
    let mut resets = reload_signals().context("cannot listen to signals")?;
    let plan = Plan {
        kind: arguments.kind.into(),
        controller: arguments.places.controller,
        pfs: arguments.pfs,
        vfs: arguments.vfs,
        management: !arguments.no_management,
    };
    let namespaces = open(&arguments.places, arguments.wire_netns.as_deref())?;
    let mut card = tokio::task::spawn_blocking(move || Card::plug(namespaces, plan)).await??;
    tell(&format!("plugged {} VFs", plan.total_vfs()));
    notify_ready();

    let outcome = loop {
        tokio::select! {
            biased;
            signal = &mut shutdown => break signal?.context("cannot listen to signals"),
            _ = resets.recv() => {
                tracing::info!("reset");
                card.reset()?;
            }
            failed = card.run() => match failed {
                Err(error) => break Err(error.into()),
                Ok(never) => match never {},
            },
        }
    };
    notify_stopping();
    card.unplug()?;
    outcome
}

fn open(places: &Places, wire: Option<&Path>) -> anyhow::Result<Namespaces> {
    Ok(Namespaces {
        host: open_netns(&places.host_netns)?,
        dpu: open_netns(&places.dpu_netns)?,
        wire: wire.map(open_netns).transpose()?,
    })
}

/// Opens the namespace of this path, or of this name as `ip netns` gives it.
fn open_netns(place: &Path) -> anyhow::Result<Netns> {
    let is_name = place.components().count() == 1 && !place.has_root();
    let path = if is_name { Path::new("/run/netns").join(place) } else { place.to_owned() };
    Ok(Netns::open(&path)?)
}

#[expect(clippy::print_stdout, reason = "the program's answer")]
fn tell(answer: &str) {
    println!("{answer}");
}

#[expect(clippy::print_stderr, reason = "logs may not have been set up")]
fn tell_error(error: &anyhow::Error) {
    eprintln!("virtual-nic: {error:#}");
}
