//! An init system that gives its workloads their network itself, without a plugin and without an agent beside it.
//!
//! `init_system CONFIGURATION NETNS...` attaches a workload in each network namespace, says what it has, and detaches
//! all when its standard input ends.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of one task, which says what it does and waits for the DPU"
)]

use std::{
    env,
    error::Error,
    io::{Read, stdin},
    path::Path,
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

use futures::executor::block_on;
use host_shim::embedded::{Agent, Attach, Config, Failure};

/// How long the DPU may take to answer at boot.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let Some(configuration) = arguments.next() else {
        eprintln!("usage: init_system CONFIGURATION NETNS...");
        return ExitCode::from(2);
    };
    match block_on(run(Path::new(&configuration), &arguments.collect::<Vec<_>>())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("init_system: {}", told(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes.
fn told(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", told(cause)),
        None => error.to_string(),
    }
}

async fn run(configuration: &Path, namespaces: &[String]) -> Result<(), Box<dyn Error>> {
    let agent = Agent::start(Config::load(configuration)?).await?;
    await_dpu(&agent).await?;
    for netns in namespaces {
        // Of a workload that is attached already, as before a crash, this tells what it has.
        let attached = agent.attach(Attach::new(name(netns), netns, "eth0")).await?;
        for address in &attached[0].addresses {
            println!("{} eth0 {address}", name(netns));
        }
    }
    stdin().read_to_end(&mut Vec::new())?;
    for netns in namespaces {
        agent.detach(name(netns)).await?;
    }
    agent.stop().await?;
    Ok(())
}

async fn await_dpu(agent: &Agent) -> Result<(), Failure> {
    let latest = Instant::now() + TIMEOUT;
    loop {
        match agent.status("").await {
            Err(failure) if Instant::now() > latest => return Err(failure),
            Err(_) => sleep(Duration::from_millis(100)),
            Ok(()) => return Ok(()),
        }
    }
}

/// The workload's id: the name of its namespace.
fn name(netns: &str) -> &str {
    netns.rsplit('/').next().unwrap_or(netns)
}
