//! `virtual-nic`: plugs a software DPU between two network namespaces.
#![forbid(unsafe_code)]

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use bootstrap::{
    LogSettings, ShutdownSignals, TracingSettings, init_logs, notify_ready, notify_stopping,
    reload_signals,
};
use clap::Parser;
use netlink::Netns;
use virtual_nic::{
    Card, Namespaces, Plan,
    arguments::{Arguments, Command, Places, PlugArguments},
    unplug,
};

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let _ = init_logs(&LogSettings::default(), &TracingSettings::default(), "virtual-nic")?;
    match arguments.command {
        Command::Plug(arguments) => run_card(arguments).await,
        Command::Unplug(places) => {
            let count = unplug(&open(&places, None)?, places.controller)?;
            print_answer(&format!("removed {count} links"));
            Ok(())
        }
    }
}

async fn run_card(arguments: PlugArguments) -> anyhow::Result<()> {
    // Catch signals first: one that arrives during the plugging is handled afterwards.
    let mut shutdown = ShutdownSignals::catch().context("cannot listen to signals")?;
    let mut resets = reload_signals().context("cannot listen to signals")?;
    let plan = Plan {
        kind: arguments.kind,
        controller: arguments.places.controller,
        pfs: arguments.pfs,
        vfs: arguments.vfs,
        management: !arguments.no_management,
        whole_checksums: arguments.whole_checksums,
    };
    let namespaces = open(&arguments.places, arguments.wire_netns.as_deref())?;
    let mut card = tokio::task::spawn_blocking(move || Card::plug(namespaces, plan)).await??;
    print_answer(&format!("plugged {} VFs", plan.total_vfs()));
    notify_ready();

    let outcome = loop {
        tokio::select! {
            biased;
            () = shutdown.received() => break Ok(()),
            _ = resets.recv() => {
                tracing::info!("resetting the card");
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

/// Opens a namespace by path, or by its name in `ip netns`.
fn open_netns(place: &Path) -> anyhow::Result<Netns> {
    let is_name = place.components().count() == 1 && !place.has_root();
    let path = if is_name { Path::new("/run/netns").join(place) } else { place.to_owned() };
    Ok(Netns::open(&path)?)
}

#[expect(clippy::print_stdout, reason = "the program's answer")]
fn print_answer(answer: &str) {
    println!("{answer}");
}

#[expect(clippy::print_stderr, reason = "logs may not have been set up")]
fn print_error(error: &anyhow::Error) {
    eprintln!("virtual-nic: {error:#}");
}
