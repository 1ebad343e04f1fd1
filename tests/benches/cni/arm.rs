//! Ours beside the floor with a DPU that is an emulated Arm machine of `hack/arm-dpu`. It has a kernel of its own, as a
//! card has, and an emulator's speed, as none has: a curiosity.

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

/// Few at a time: the machine's cards filter addresses themselves, so that its kernel has each port's card told of each
/// other port's address, which an emulator takes long for.
const COUNT: usize = 8;
const ROUNDS: usize = 12;
const NAME: &str = "ours, an emulated Arm machine as the DPU";
/// Until a session is taken for lost: an emulator may stand still for a while.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// Prints ADD and DEL of one caller, and where an ADD's time goes.
pub(crate) fn print(report: &mut Report) {
    let load = Load::new(COUNT, ROUNDS);
    let vfs = u32::try_from(load.pods()).unwrap();
    let patience = format!("[limits]\nheartbeat_ms = {}\n", HEARTBEAT.as_millis());
    // Without a grace a good STATUS says that the agent has its session.
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    let settings = Settings { service: patience, timeouts, ..Settings::with_vfs(vfs) };
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
