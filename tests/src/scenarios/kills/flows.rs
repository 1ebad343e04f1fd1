//! Flows that make the programs pass all their points.

use serde_json::{Value, json};

use super::permanent_pods::{LIMIT, PermanentPods};
use crate::{
    Call, Fault, FaultAction, Lab, Netns, Program, fabric, netns_of,
    process::kill_points,
    run,
    scenarios::{
        crowd::{CALLERS, CallPattern},
        several,
    },
    wait_for,
};
/// A network of another plugin.
pub(super) const OF_OTHERS: &str = "other";
/// Further networks of a flow's pod.
const NETWORKS: &str = "green,wire,other";

/// VFs of the permanent pods and for the flows.
pub(super) const OTHERS: u32 = 6;

/// An event that makes a program pass some of its points.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Description for display.
    pub name: &'static str,
    pub(super) program: &'static str,
    /// Causes the event after calling the given function. Returns a program that it started to replace the ended one.
    pub(super) cause: Cause,
    /// Concurrent calls, which pass none of the flow's own points.
    pub(super) crowd: CallPattern,
    /// Prefixes of the flow's own points.
    pub(super) own: &'static [&'static str],
}

/// Surroundings of a flow.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) lab: &'a Lab,
    pub(super) permanent_pods: &'a PermanentPods,
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
pub const OF_THE_AGENT: [Flow; 8] = [
    of_the_agent("attach and detach", come_and_go, CallPattern::ComeAndGo, ANY),
    of_the_agent("undo", fail_to_attach, CallPattern::ComeAndGo, &["undo-"]),
    of_the_agent("put back", fall_out_of_a_pod, CallPattern::Go, ANY),
    of_the_agent("restore", end_a_pod, CallPattern::Come, ANY),
    of_the_agent("start", start_the_agent, CallPattern::ComeAndGo, ANY),
    of_the_agent(
        "session",
        lose_the_session,
        CallPattern::ComeAndGo,
        &["session-", "inventory-", "pass-"],
    ),
    of_the_agent("reset", change_an_interface, CallPattern::ComeAndGo, &["reset-"]),
    of_the_agent(
        "attach and detach without CNI",
        come_and_go_without_cni,
        CallPattern::ComeAndGo,
        &["attach-", "release-", "detach-"],
    ),
];

pub(super) const SERVICE: &str = "dpu-service";
const AGENT: &str = "host-shim-agent";

pub(super) type Cause = fn(&Stage<'_>, &mut dyn FnMut()) -> Option<Program>;

const fn of_the_service(name: &'static str, cause: Cause, own: &'static [&'static str]) -> Flow {
    Flow { name, program: SERVICE, cause, crowd: CallPattern::ComeAndGo, own }
}

const fn of_the_agent(
    name: &'static str,
    cause: Cause,
    crowd: CallPattern,
    own: &'static [&'static str],
) -> Flow {
    Flow { name, program: AGENT, cause, crowd, own }
}

fn come_and_go(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    let pod = Netns::new("victim");
    let _ = several::add(stage.lab, &pod, NETWORKS);
    // Twice: the second DEL finds no record.
    for _ in 0..2 {
        let _ = stage.lab.del("blue", &pod, "eth0");
    }
    None
}

/// The caller notices the agent's death by the end of its connection. What it cannot detach ends with its namespace.
fn come_and_go_without_cni(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    let pod = Netns::new("victim");
    let caller = stage.lab.workloads();
    let _ = caller.attach(&pod, "eth0");
    for _ in 0..2 {
        let _ = caller.detach(pod.name(), Some(netns_of(&pod, "eth0")));
    }
    None
}

fn fail_to_attach(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    let points = kill_points(AGENT);
    let last = points.iter().filter_map(|point| point.strip_prefix("undo-")).next_back();
    stage.lab.arm(AGENT, FaultAction::Fail, last.unwrap());
    let pod = Netns::new("victim");
    let _ = several::add(stage.lab, &pod, NETWORKS);
    None
}

/// Unprograms a representor, and puts one without an attachment into the bridge.
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

/// An operator releases a pod's attachment.
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

/// The VF of a pod returns to the host, as after a card reset.
fn fall_out_of_a_pod(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    arm();
    stage.fall_out();
    None
}

fn end_a_pod(stage: &Stage<'_>, arm: &mut dyn FnMut()) -> Option<Program> {
    let pod = Netns::new("victim");
    let _ = several::add(stage.lab, &pod, NETWORKS).result();
    arm();
    drop(pod);
    None
}

/// A pod changes its VF before it ends.
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
        let of_b = &self.permanent_pods.representor;
        let vswitch = self.lab.vswitch.as_ref();
        fabric::take_out(dpu, vswitch, of_b);
        dpu.ip(&["link", "set", of_b, "down", "mtu", "1400", "group", "8"]);
        let _ = run(dpu.command("tc").args(["qdisc", "del", "dev", of_b, "root"]));
        let _ = run(dpu.command("tc").args(["qdisc", "del", "dev", of_b, "clsact"]));
        let of_no_pool = format!("pf0vf{}", CALLERS + OTHERS);
        fabric::put_in(dpu, vswitch, &of_no_pool);
        dpu.ip(&["link", "set", &of_no_pool, "up"]);
    }

    fn fall_out(&self) {
        let host = self.lab.card.host.path();
        let home = ["link", "set", "eth0", "netns", host.to_str().unwrap(), "name", "fallen"];
        self.permanent_pods.b.ip(&home);
    }
}
