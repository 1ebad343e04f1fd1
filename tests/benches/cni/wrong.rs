//! The time of an ADD whose speculative move used the wrong VF, compared with one that used the right VF.

use e2e::{Call, Fault, Lab, Netns, Settings, TIME_LIMIT, wait_for};
use netlink::Rtnl;
use nix::sys::signal::Signal;

use crate::{
    sample::Sample,
    table::{Report, Row},
};

/// ADDs of each kind, in turn.
const ROUNDS: usize = 24;
const VFS: u32 = 4;

/// Prints both. The DPU answers after the VF has moved, as a DPU-like DPU does.
pub(crate) fn print(report: &mut Report) {
    let lab = Lab::start(&settings(VFS));
    let (mut right, mut wrong) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        add(&lab, &mut right, || ());
        // The grant changes with the pool, and the host is not told.
        add(&lab, &mut wrong, || have_pool(&lab, VFS - 1));
        have_pool(&lab, VFS);
        lab.assert_clean_slate();
    }
    let title = format!("An ADD whose VF moves in vain, N={ROUNDS} each, in turn");
    let columns = ["what", "p50 ms", "p99 ms", "per s", "ms more, p50"];
    let mut table = report.table(&title, &columns);
    for (what, sample) in [("the right VF", &right), ("a wrong one first", &wrong)] {
        let more = sample.p50() - right.p50();
        table.row(Row::of(what).and_all(sample.row()).and(more));
    }
}

fn settings(pool: u32) -> Settings {
    Settings { vfs: VFS, pool, proxied: true, cool_down: 0, ..Settings::default() }
}

/// Adds and deletes a pod. The DPU's answers are held back until the pod's VF has moved.
fn add(lab: &Lab, sample: &mut Sample, meanwhile: impl FnOnce()) {
    let pod = Netns::new("pod");
    let mut links = Rtnl::open_in(&pod.open()).unwrap();
    lab.proxy().strike(Fault::HoldDown);
    meanwhile();
    let call = Call::new("ADD", &lab.configuration("blue"));
    let call = call.of(pod.name(), Some(&pod.path()), "eth0");
    let added = sample.time(|| {
        let plugin = call.begin(&lab.card.host);
        let has_vf = || (links.links().unwrap().len() > 1).then_some(());
        wait_for("the VF in the pod", TIME_LIMIT, has_vf);
        lab.proxy().heal();
        plugin.wait_with_output().unwrap()
    });
    assert!(added.status.success(), "{added:?}");
    lab.del("blue", &pod, "eth0").nothing();
}

/// Sets the number of VFs in the DPU's pool.
fn have_pool(lab: &Lab, size: u32) {
    lab.configure_service(&settings(size));
    lab.service.signal(Signal::SIGHUP);
    let has_it = || (lab.operator().get("pools")[0]["free"] == size).then_some(());
    wait_for("the DPU to have that pool", TIME_LIMIT, has_it);
}
