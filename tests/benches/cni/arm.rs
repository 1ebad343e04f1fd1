//! The plugin and the floor, with an emulated Arm machine of `hack/arm-dpu` as the DPU. Like a real DPU it has a kernel
//! of its own, but it runs at an emulator's speed.

use std::time::Duration;

use e2e::{ArmLab, Settings, Timeouts};

use crate::{
    contest::Logged,
    floor::{Families, Floor},
    phases::{self, Log},
    pictures,
    pods::Pods,
    table::Report,
    timing::Timing,
    turns::{self, Load, System},
};

/// Few, because the machine's cards filter addresses themselves: its kernel gives each port's card the addresses of all
/// other ports, which is slow in an emulator.
const COUNT: usize = 8;
const ROUNDS: usize = 12;
const NAME: &str = "ours, an emulated Arm machine as the DPU";
/// Time without an answer after which a session is lost. An emulator may stop for a while.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// Prints ADD and DEL of one caller, and the phases of an ADD.
pub(crate) fn print(report: &mut Report) {
    let load = Load::new(COUNT, ROUNDS);
    let vfs = u32::try_from(load.pods()).unwrap();
    let heartbeat = format!("[limits]\nheartbeat_ms = {}\n", HEARTBEAT.as_millis());
    // Without a grace period a successful STATUS says that the agent has its session.
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    let settings = Settings { service: heartbeat, timeouts, ..Settings::with_vfs(vfs) };
    let lab = ArmLab::start(&settings);
    let (floor, pods) = (Floor::new(load.pods(), Families::Both), Pods::new(&lab, load.pods()));
    let systems =
        [System { name: Floor::NAME, network: &floor }, System { name: NAME, network: &pods }];
    let mut log = Log::of(&lab.agent);
    let figures = load.measure(&systems, 1, Timing::Apart);
    let columns = [&[pictures::CALLERS], &turns::COLUMNS[..]].concat();
    let mut table = report.table("ADD and DEL beside an emulated Arm machine", &columns);
    turns::rows(1, 1, &systems, &figures).for_each(|(row, _)| table.row(row));
    let adds = Some(figures[1][0].clone());
    phases::print(report, &[Logged { callers: 1, of: NAME, lines: log.fresh(), adds }]);
    lab.assert_clean_slate();
}
