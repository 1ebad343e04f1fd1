//! Processor time and memory of the programs.

use std::{fmt::Write, fs, io::Write as _, process::Child, time::Duration};

use e2e::{Lab, Program, Settings, wait_for};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    callers::{Crew, at_once},
    pods::Pods,
    table::{Report, Row},
    timing::{Pauses, Timing},
    turns::Network,
};

const CALLS: usize = 50;
const LARGE_VFS: u32 = 1024;
/// Attachments of the large service. A Linux bridge has at most 1,023 ports.
const LARGE_ATTACHMENTS: usize = 1023;
/// Subnets of the large service's network: the most addresses that an attachment can have.
const LARGE_SUBNETS: usize = 16;
const CALLERS: usize = 4;

const COLUMNS: [&str; 2] = ["what", "figure"];

/// Prints the figures of the plugin's process, and of the agent and the service at rest.
pub(crate) fn print(report: &mut Report, lab: &Lab) {
    let mut table = report.table("Processor time and memory", &COLUMNS);
    let mut row = |what: &str, figure: String| table.row(Row::of(what).and(figure));
    let pods = Pods::new(lab, CALLS);
    row("the plugin's processor time, one ADD", format!("{:.2} ms", processor_ms(&pods)));
    row("the plugin's memory at its peak", mib(peak_mib(&pods)));
    (0..CALLS).for_each(|number| pods.del(number));
    row("the agent's memory at rest", mib(resident_mib(&lab.agent)));
    row("the service's memory at rest", mib(resident_mib(&lab.service)));
}

fn mib(figure: f64) -> String {
    format!("{figure:.1} MiB")
}

/// Processor time of children that were waited for, all of which are plugins here.
fn processor_ms(pods: &Pods<'_>) -> f64 {
    let half = CALLS / 2;
    let before = children_ms();
    (0..half).for_each(|number| pods.add(number));
    (children_ms() - before) / half as f64
}

fn children_ms() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let ms =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3;
    ms(usage.user_time()) + ms(usage.system_time())
}

/// Polls `VmHWM` until the process has ended. `ru_maxrss` would include the parent's value.
fn peak_mib(pods: &Pods<'_>) -> f64 {
    let peaks = (CALLS / 2..CALLS).map(|number| {
        let (mut command, configuration) = pods.command("ADD", number);
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(configuration.as_bytes()).unwrap();
        peak_until_exit(&mut child)
    });
    peaks.fold(0.0, f64::max)
}

fn peak_until_exit(child: &mut Child) -> f64 {
    let mut peak = 0.0;
    while child.try_wait().unwrap().is_none() {
        peak = status_mib(child.id(), "VmHWM").unwrap_or(peak);
        std::thread::yield_now();
    }
    peak
}

pub(crate) fn resident_mib(program: &Program) -> f64 {
    status_mib(program.id(), "VmRSS").unwrap()
}

fn status_mib(id: u32, key: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Prints the service with 1,024 VFs and as many leases as its limits allow.
pub(crate) fn print_large_service(report: &mut Report) {
    let mut networks = "[[network]]\nname = \"blue\"\ndefault = true\n".to_owned();
    for number in 0..LARGE_SUBNETS {
        let cidr = format!("10.{number}.0.0/20");
        write!(networks, "[[network.subnets]]\ncidr = \"{cidr}\"\n").unwrap();
    }
    let settings = Settings { networks, ..Settings::with_vfs(LARGE_VFS) };
    let lab = Lab::start(&settings);
    let pods = Pods::asking_for(&lab, LARGE_ATTACHMENTS, one_of_each_subnet);
    let empty = resident_mib(&lab.service);
    let add = |number| pods.add(number);
    let pauses = Pauses::draw(Timing::Locked, LARGE_ATTACHMENTS);
    at_once([Crew::new(CALLERS, 0..LARGE_ATTACHMENTS, &add)], &pauses);
    wait_for("all to be attached", Duration::from_secs(60), || {
        (lab.attachments_in("ATTACHED") == LARGE_ATTACHMENTS).then_some(())
    });
    let leases = LARGE_ATTACHMENTS * LARGE_SUBNETS;
    let mut table = report.table("Memory of a large service", &COLUMNS);
    for (what, figure) in [
        (format!("the service's memory, {LARGE_VFS} VFs, none attached"), empty),
        (
            format!("the service's memory, {LARGE_ATTACHMENTS} of them attached, {leases} leases"),
            resident_mib(&lab.service),
        ),
        ("the agent's memory then".to_owned(), resident_mib(&lab.agent)),
    ] {
        table.row(Row::of(what).and(mib(figure)));
    }
}

fn one_of_each_subnet(number: usize) -> Vec<String> {
    let (high, low) = (number / 250, number % 250 + 2);
    (0..LARGE_SUBNETS).map(|subnet| format!("10.{subnet}.{high}.{low}/20")).collect()
}
