//! A program is killed at every point of each of its flows, under load. After its restart it completes or releases
//! unfinished work and keeps confirmed attachments.
//!
//! A run tries a third of the points of each flow, and all with `OFFLOAD_TEST_WHOLE=1`.

mod flows;
mod permanent_pods;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
};

pub use self::flows::{Flow, OF_THE_AGENT, OF_THE_SERVICE};
use self::{
    flows::{OF_OTHERS, OTHERS, SERVICE, Stage},
    permanent_pods::{LIMIT, PermanentPods},
};
use super::{
    crowd::{CALLERS, amid_a_crowd, of_each},
    delegates::OtherPlugins,
    figure,
};
use crate::{
    FaultAction, Lab, Program, Settings, TIME_LIMIT, process::kill_points, sample::Sample, wait_for,
};

/// Points of a program that none of these flows passes.
///
/// # Panics
/// If a flow does not finish.
#[must_use]
pub fn kill_points_without_flow(flows: &[Flow]) -> BTreeSet<String> {
    let mut points = BTreeSet::from_iter(kill_points(flows[0].program));
    let (mut lab, permanent_pods) = begin();
    for flow in flows {
        for passed in rehearse(&mut lab, &permanent_pods, *flow) {
            points.remove(&passed);
        }
    }
    permanent_pods.detach(&lab);
    points
}

/// Kills the program under load at each selected point of the flow.
///
/// # Panics
/// If a confirmed attachment is lost, or anything remains.
pub fn kill_at_each_point_of_flow(flow: Flow) {
    let (mut lab, permanent_pods) = begin();
    let points = rehearse(&mut lab, &permanent_pods, flow);
    let points = Sample::of_this_run().of(&points);
    for point in &points {
        kill_at(&mut lab, &permanent_pods, flow, point);
    }
    permanent_pods.detach(&lab);
    figure(points.len(), "kill points tried under load");
}

/// Kills the program at each selected point with one of these prefixes that a card reset makes it pass.
///
/// # Panics
/// If a pod does not get its VF back, or no passed point has such a prefix.
pub fn kill_at_each_point_after_card_reset(program: &str, own: &[&str]) {
    let (mut lab, permanent_pods) = begin();
    let trace = lab.trace(program);
    lab.reset_card();
    permanent_pods.assert_back(&lab);
    let passed = fs::read_to_string(&trace).unwrap();
    fs::remove_file(&trace).unwrap();
    for own in own {
        assert!(passed.lines().any(|point| point.starts_with(own)), "{own} is not in {passed}");
    }
    let is_own = |point: &&str| own.iter().any(|own| point.starts_with(own));
    let points: BTreeSet<_> = passed.lines().filter(is_own).collect();
    let points = Sample::of_this_run().of(points);
    for point in &points {
        let armed = lab.arm(program, FaultAction::Kill, point);
        lab.reset_card();
        wait_for(&format!("{point} to kill {program}"), LIMIT, || (!armed.exists()).then_some(()));
        if program == SERVICE {
            lab.service_ends();
            lab.start_service();
        } else {
            lab.agent_ends();
            lab.start_agent();
        }
        permanent_pods.assert_back(&lab);
    }
    permanent_pods.detach(&lab);
    figure(points.len(), "kill points tried after a card reset");
}

fn begin() -> (Lab, PermanentPods) {
    let pool = CALLERS + OTHERS;
    let settings = Settings { proxied: true, vfs: pool + 1, pool, ..Settings::default() };
    let others = OtherPlugins::with_links(OF_OTHERS, "green");
    let lab = Lab::start(&others.in_lab(&settings));
    let permanent_pods = PermanentPods::attach(&lab, others);
    (lab, permanent_pods)
}

/// Runs the flow once and returns its own points.
fn rehearse(lab: &mut Lab, permanent_pods: &PermanentPods, flow: Flow) -> BTreeSet<String> {
    let mut trace = None;
    let started = {
        let stage = Stage { lab, permanent_pods };
        (flow.cause)(&stage, &mut || trace = Some(lab.trace(flow.program)))
    };
    replace(lab, flow.program, started);
    lab.wait_until_good();
    permanent_pods.assert_reach();
    permanent_pods.assert_alone(lab);
    let trace = trace.unwrap();
    let passed = fs::read_to_string(&trace).unwrap();
    fs::remove_file(&trace).unwrap();
    let is_own = |point: &&str| flow.own.iter().any(|own| point.starts_with(own));
    let points: BTreeSet<_> = passed.lines().filter(is_own).map(str::to_owned).collect();
    assert!(
        !points.is_empty(),
        "{} wrote down no point of {}; is it built with the feature fault-injection? {passed}",
        flow.program,
        flow.name
    );
    points
}

fn replace(lab: &mut Lab, name: &str, started: Option<Program>) {
    let Some(started) = started else { return };
    if name == SERVICE { lab.service = started } else { lab.agent = started }
}

fn kill_at(lab: &mut Lab, permanent_pods: &PermanentPods, flow: Flow, point: &str) {
    let (crowd, revived) = amid_a_crowd(lab, flow.crowd, |lab| {
        let running = if flow.program == SERVICE { &lab.service } else { &lab.agent };
        let revive = || {
            if flow.program == SERVICE { lab.another_service() } else { lab.another_agent() }
        };
        let armed = OnceLock::new();
        let arm = || {
            let was_over = running.is_over();
            armed
                .set((lab.arm(flow.program, FaultAction::Kill, point), was_over))
                .expect("armed once");
        };
        let dies_under_it = || {
            let spent = |(file, was_over): &(PathBuf, bool)| !was_over && !file.exists();
            armed.get().is_some_and(spent) && running.is_over()
        };
        thread::scope(|scope| {
            let cause = scope.spawn(|| (flow.cause)(&Stage { lab, permanent_pods }, &mut { arm }));
            wait_for("a cause or a death", TIME_LIMIT, || {
                (cause.is_finished() || dies_under_it()).then_some(())
            });
            // A call of the flow waits for the next agent.
            let early = (!cause.is_finished()).then(revive);
            let started = cause.join().unwrap();
            let dying = started.as_ref().unwrap_or(running);
            wait_for_death(dying, flow, point, &armed.get().unwrap().0);
            early.unwrap_or_else(revive)
        })
    });
    replace(lab, flow.program, Some(revived));
    lab.wait_until_good();
    permanent_pods.assert_kept(lab);
    of_each(&crowd, |member| member.attach_again(lab));
    lab.assert_invariants();
    of_each(&crowd, |member| member.detach(lab));
    permanent_pods.assert_alone(lab);
}

fn wait_for_death(program: &Program, flow: Flow, point: &str, armed: &Path) {
    let what = format!("{point} to kill {} during {}", flow.program, flow.name);
    wait_for(&what, LIMIT, || (!armed.exists() && program.is_over()).then_some(()));
    assert!(program.is_killed(), "{} ended by itself after {point}", flow.program);
}
