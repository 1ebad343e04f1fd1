//! A program is killed at every point of each of its flows, amid many calls. Started again, it
//! completes or releases what was under way, and keeps what was confirmed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    crowd::{CALLERS, Habit, amid_a_crowd, of_each},
    figure,
    pods::addresses,
};
use crate::{
    Answer, Call, Fault, Lab, Netns, Program, Settings, TIME_LIMIT, eventually,
    process::kill_points, run, wait_for,
};

/// How long what is waited for may take.
const LIMIT: Duration = Duration::from_secs(30);

/// VFs of residents and of what a flow needs.
const OTHERS: u32 = 4;

/// What makes a program pass some of its points.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// What happens, for people.
    pub name: &'static str,
    program: &'static str,
    /// Has it happen, once the function that it is given has been called. A program that it starts in
    /// the place of the one that it ended, it returns.
    cause: Cause,
    /// What else goes on. It passes none of the flow's own points.
    crowd: Habit,
    /// How the names of the flow's own points begin, of all that are passed meanwhile.
    own: &'static [&'static str],
}

/// Where a flow takes place.
#[derive(Debug)]
struct Stage<'a> {
    lab: &'a Lab,
    residents: &'a Residents,
}

/// Two pods that are attached all the time.
#[derive(Debug)]
struct Residents {
    a: Netns,
    b: Netns,
    answers: [Value; 2],
    /// Of the VF of `b`, whose rate is limited.
    representor: String,
}

const ANY: &[&str] = &[""];
const OF_RECONCILING: &[&str] = &["repair-", "reconcile-", "port-cleared"];

/// All flows of the service.
pub const OF_THE_SERVICE: [Flow; 6] = [
    of_the_service("attach and detach", come_and_go, ANY),
    of_the_service("reconcile", damage_the_switch, OF_RECONCILING),
    of_the_service("start", start_the_service, OF_RECONCILING),
    of_the_service("hello", lose_the_session, &["hello-", "inventory-"]),
    of_the_service("collect", collect, &["collected"]),
    of_the_service("release", take_away, &["release-parked"]),
];

/// All flows of the agent.
pub const OF_THE_AGENT: [Flow; 7] = [
    of_the_agent("attach and detach", come_and_go, Habit::ComeAndGo, ANY),
    of_the_agent("undo", fail_to_attach, Habit::ComeAndGo, &["undo-"]),
    of_the_agent("put back", fall_out_of_a_pod, Habit::Go, ANY),
    of_the_agent("restore", end_a_pod, Habit::Come, ANY),
    of_the_agent("start", start_the_agent, Habit::ComeAndGo, ANY),
    of_the_agent(
        "session",
        lose_the_session,
        Habit::ComeAndGo,
        &["session-", "inventory-", "pass-"],
    ),
    of_the_agent("make anew", change_an_interface, Habit::ComeAndGo, &["renewal-"]),
];

const SERVICE: &str = "dpu-service";
const AGENT: &str = "host-shim-agent";

type Cause = fn(&Stage<'_>, &mut dyn FnMut()) -> Option<Program>;

const fn of_the_service(name: &'static str, cause: Cause, own: &'static [&'static str]) -> Flow {
    Flow { name, program: SERVICE, cause, crowd: Habit::ComeAndGo, own }
}

const fn of_the_agent(
    name: &'static str,
    cause: Cause,
    crowd: Habit,
    own: &'static [&'static str],
) -> Flow {
    Flow { name, program: AGENT, cause, crowd, own }
}

fn come_and_go(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    let pod = Netns::new("victim");
    let _ = stage.lab.add("blue", &pod, "eth0");
    // Twice, since the second finds no record.
    for _ in 0..2 {
        let _ = stage.lab.del("blue", &pod, "eth0");
    }
    None
}

fn fail_to_attach(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    let points = kill_points(AGENT);
    let last = points.iter().filter_map(|point| point.strip_prefix("undo-")).next_back();
    stage.lab.arm(AGENT, "fail", last.unwrap());
    let pod = Netns::new("victim");
    let _ = stage.lab.add("blue", &pod, "eth0");
    None
}

/// A representor loses all that was programmed, and one that serves nobody gets into the bridge.
fn damage_the_switch(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    stage.damage();
    None
}

fn start_the_service(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    kill(&stage.lab.service);
    stage.damage();
    arm();
    Some(stage.lab.another_service())
}

fn lose_the_session(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    stage.lab.proxy().strike(Fault::Cut);
    None
}

fn collect(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    let Stage { lab, .. } = stage;
    let pod = Netns::new("victim");
    let _ = lab.add("green", &pod, "eth0").result();
    arm();
    let mut configuration = lab.configuration("green");
    configuration["cni.dev/valid-attachments"] = json!([]);
    let _ = lab.execute(&Call::new("GC", &configuration));
    None
}

/// An operator takes a pod's attachment away.
fn take_away(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    let Stage { lab, .. } = stage;
    let pod = Netns::new("victim");
    let _ = lab.add("blue", &pod, "eth0").result();
    let attachments = lab.operator().get("attachments");
    let of_pod = |attachment: &&Value| attachment["key"]["containerId"] == pod.name();
    let id = attachments.iter().find(of_pod).unwrap()["id"].as_str().unwrap();
    arm();
    let _ = lab.operator().dpuctl(&["release", id, "--reason", "a test", "--yes"]);
    None
}

/// The VF of a pod falls back to the host, as when its card is reset.
fn fall_out_of_a_pod(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    stage.fall_out();
    None
}

fn end_a_pod(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    let pod = Netns::new("victim");
    let _ = stage.lab.add("blue", &pod, "eth0").result();
    arm();
    drop(pod);
    None
}

/// A pod leaves its VF not as it was.
fn change_an_interface(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    let pod = Netns::new("victim");
    let _ = stage.lab.add("blue", &pod, "eth0").result();
    pod.ip(&["link", "set", "eth0", "arp", "off"]);
    arm();
    let _ = stage.lab.del("blue", &pod, "eth0");
    None
}

fn start_the_agent(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    let pod = Netns::new("victim");
    let _ = stage.lab.add("blue", &pod, "eth0");
    kill(&stage.lab.agent);
    drop(pod);
    stage.fall_out();
    arm();
    Some(stage.lab.another_agent())
}

fn kill(program: &Program) {
    program.signal(nix::sys::signal::Signal::SIGKILL);
    wait_for("a program to die", LIMIT, || program.is_over().then_some(()));
}

impl Stage<'_> {
    fn damage(&self) {
        let dpu = &self.lab.card.dpu;
        let of_b = &self.residents.representor;
        dpu.ip(&["link", "set", of_b, "down", "nomaster", "mtu", "1400"]);
        let _ = run(dpu.command("tc").args(["qdisc", "del", "dev", of_b, "root"]));
        let _ = run(dpu.command("tc").args(["qdisc", "del", "dev", of_b, "clsact"]));
        let of_no_pool = format!("pf0vf{}", CALLERS + OTHERS);
        dpu.ip(&["link", "set", &of_no_pool, "master", "br-offload", "up"]);
    }

    fn fall_out(&self) {
        let host = self.lab.card.host.path();
        let home = ["link", "set", "eth0", "netns", host.to_str().unwrap(), "name", "fallen"];
        self.residents.b.ip(&home);
    }
}

impl Residents {
    fn attach(lab: &Lab) -> Self {
        let (a, b) = (Netns::new("resident"), Netns::new("resident"));
        let answers = [Self::add(lab, &a, 0), Self::add(lab, &b, 1)].map(|added| added.result());
        let is_limited = |link: &Value| link["qdisc"] == "tbf";
        let limited = lab.card.representors().into_iter().find(is_limited).expect("a limit");
        let representor = limited["ifname"].as_str().unwrap().to_owned();
        let residents = Self { a, b, answers, representor };
        lab.assert_invariants();
        residents.assert_reach();
        residents
    }

    fn add(lab: &Lab, pod: &Netns, limited: u64) -> Answer {
        let mut configuration = lab.configuration("blue");
        configuration["runtimeConfig"] = json!({ "bandwidth": {
            "ingressRate": limited * 1_000_000_000, "ingressBurst": limited * 10_000_000,
        }});
        let call = Call::new("ADD", &configuration);
        lab.execute(&call.of(pod.name(), Some(&pod.path()), "eth0"))
    }

    fn reach(&self) -> bool {
        addresses(&self.answers[1]).iter().all(|address| self.a.pings(address))
    }

    fn assert_reach(&self) {
        let reached = eventually(LIMIT, || self.reach().then_some(()));
        assert!(reached.is_some(), "{} does not reach {}", self.a.name(), self.b.name());
    }

    /// They have what they had, reach each other, and an ADD says so once more.
    fn assert_kept(&self, lab: &Lab) {
        self.assert_reach();
        for (limited, (pod, first)) in [&self.a, &self.b].into_iter().zip(&self.answers).enumerate()
        {
            assert_eq!(Self::add(lab, pod, limited as u64).result(), *first, "{}", pod.name());
        }
    }

    /// After their card was reset, they have what they had.
    fn assert_back(&self, lab: &Lab) {
        lab.wait_until_good();
        self.assert_kept(lab);
        self.assert_alone(lab);
    }

    fn assert_alone(&self, lab: &Lab) {
        lab.assert_invariants();
        assert_eq!(lab.operator().get("attachments").len(), 2);
    }

    fn detach(&self, lab: &Lab) {
        for pod in [&self.a, &self.b] {
            lab.del("blue", pod, "eth0").nothing();
        }
        lab.assert_clean_slate();
    }
}

/// The points of a program that none of these flows passes.
///
/// # Panics
/// When a flow does not come to its end.
#[must_use]
pub fn points_of_no_flow(flows: &[Flow]) -> BTreeSet<String> {
    let mut points = BTreeSet::from_iter(kill_points(flows[0].program));
    let (mut lab, residents) = begin();
    for flow in flows {
        for passed in rehearse(&mut lab, &residents, *flow) {
            points.remove(&passed);
        }
    }
    residents.detach(&lab);
    points
}

/// Kills the program at each point of the flow, amid many calls.
///
/// # Panics
/// When something confirmed is lost, or anything is left.
pub fn every_point_of_the_flow_kills(flow: Flow) {
    let (mut lab, residents) = begin();
    let points = rehearse(&mut lab, &residents, flow);
    for point in &points {
        kill_at(&mut lab, &residents, flow, point);
    }
    residents.detach(&lab);
    figure(points.len(), "kill points tried under load");
}

/// Kills the program at each point of those beginnings that a card reset has it pass.
///
/// # Panics
/// When a pod does not get its VF back, or no point that is passed begins like that.
pub fn every_point_after_a_card_reset_kills(program: &str, own: &[&str]) {
    let (mut lab, residents) = begin();
    let trace = lab.trace(program);
    lab.reset_card();
    residents.assert_back(&lab);
    let passed = fs::read_to_string(&trace).unwrap();
    fs::remove_file(&trace).unwrap();
    for own in own {
        assert!(passed.lines().any(|point| point.starts_with(own)), "{own} is not in {passed}");
    }
    let is_own = |point: &&str| own.iter().any(|own| point.starts_with(own));
    let points: BTreeSet<_> = passed.lines().filter(is_own).collect();
    for point in &points {
        let armed = lab.arm(program, "kill", point);
        lab.reset_card();
        wait_for(&format!("{point} to kill {program}"), LIMIT, || (!armed.exists()).then_some(()));
        if program == SERVICE {
            lab.service_ends();
            lab.start_service();
        } else {
            lab.agent_ends();
            lab.start_agent();
        }
        residents.assert_back(&lab);
    }
    residents.detach(&lab);
    figure(points.len(), "kill points tried after a card reset");
}

fn begin() -> (Lab, Residents) {
    let pool = CALLERS + OTHERS;
    let settings = Settings { proxied: true, vfs: pool + 1, pool, ..Settings::default() };
    let lab = Lab::start(&settings);
    let residents = Residents::attach(&lab);
    (lab, residents)
}

/// Has the flow happen once, and returns its own points.
fn rehearse(lab: &mut Lab, residents: &Residents, flow: Flow) -> BTreeSet<String> {
    let mut trace = None;
    let started = {
        let stage = Stage { lab, residents };
        (flow.cause)(&stage, &mut || trace = Some(lab.trace(flow.program)))
    };
    replace(lab, flow.program, started);
    lab.wait_until_good();
    residents.assert_reach();
    residents.assert_alone(lab);
    let trace = trace.unwrap();
    let passed = fs::read_to_string(&trace).unwrap();
    fs::remove_file(&trace).unwrap();
    let is_own = |point: &&str| flow.own.iter().any(|own| point.starts_with(own));
    passed.lines().filter(is_own).map(str::to_owned).collect()
}

fn replace(lab: &mut Lab, name: &str, started: Option<Program>) {
    let Some(started) = started else { return };
    if name == SERVICE { lab.service = started } else { lab.agent = started }
}

fn kill_at(lab: &mut Lab, residents: &Residents, flow: Flow, point: &str) {
    let (crowd, revived) = amid_a_crowd(lab, flow.crowd, |lab| {
        let running = if flow.program == SERVICE { &lab.service } else { &lab.agent };
        let revive = || {
            if flow.program == SERVICE { lab.another_service() } else { lab.another_agent() }
        };
        let armed = OnceLock::new();
        let arm = || {
            let was_over = running.is_over();
            armed.set((lab.arm(flow.program, "kill", point), was_over)).expect("armed once");
        };
        let dies_under_it = || {
            let spent = |(file, was_over): &(PathBuf, bool)| !was_over && !file.exists();
            armed.get().is_some_and(spent) && running.is_over()
        };
        thread::scope(|scope| {
            let cause = scope.spawn(|| (flow.cause)(&Stage { lab, residents }, &mut { arm }));
            wait_for("a cause or a death", TIME_LIMIT, || {
                (cause.is_finished() || dies_under_it()).then_some(())
            });
            // A call of the cause waits for the next agent.
            let early = (!cause.is_finished()).then(revive);
            let started = cause.join().unwrap();
            let dying = started.as_ref().unwrap_or(running);
            wait_for_death(dying, flow, point, &armed.get().unwrap().0);
            early.unwrap_or_else(revive)
        })
    });
    replace(lab, flow.program, Some(revived));
    lab.wait_until_good();
    residents.assert_kept(lab);
    of_each(&crowd, |member| member.attach_again(lab));
    lab.assert_invariants();
    of_each(&crowd, |member| member.detach(lab));
    residents.assert_alone(lab);
}

fn wait_for_death(program: &Program, flow: Flow, point: &str, armed: &Path) {
    let what = format!("{point} to kill {} during {}", flow.program, flow.name);
    wait_for(&what, LIMIT, || (!armed.exists() && program.is_over()).then_some(()));
    assert!(program.is_killed(), "{} ended by itself after {point}", flow.program);
}
