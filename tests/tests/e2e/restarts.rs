//! The agent is restarted under its callers, and none of them sees it.

use std::{
    fs,
    os::unix::{fs::MetadataExt, net::UnixListener},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Call, Lab, Netns, Program, Settings, Timeouts, scenarios::figure, wait_for};
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(60);
/// Callers that attach, check and detach pods.
const CALLERS: usize = 3;
/// Calls that are answered between one restart and the next.
const CALLS: u32 = 8;
/// A restart each.
const ENDS: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGKILL,
    Signal::SIGTERM,
    Signal::SIGKILL,
    Signal::SIGTERM,
    Signal::SIGKILL,
];

/// Addresses that rest are no matter here.
fn lab() -> Lab {
    Lab::start(&Settings { cool_down: 0, ..Settings::default() })
}

/// Calls again and again while the agent is restarted, and none of the calls may fail.
fn nobody_sees_restarts(lab: &mut Lab) {
    let (over, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    let until_over = |mut call: Box<dyn FnMut() + '_>| {
        while !over.load(Ordering::Relaxed) {
            call();
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    let here: &Lab = lab;
    let last = thread::scope(|scope| {
        let end = OnDrop(&over);
        let come_and_go = || {
            let pod = Netns::new("pod");
            until_over(Box::new(|| come_and_go(here, &pod)));
        };
        let mut callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(come_and_go)).collect();
        callers.push(scope.spawn(|| until_over(Box::new(|| here.status().nothing()))));
        let mut agent: Option<Program> = None;
        for signal in ENDS {
            let before = answered.load(Ordering::Relaxed);
            wait_for("the callers to be answered", LIMIT, || {
                assert!(callers.iter().all(|caller| !caller.is_finished()), "a call failed");
                (answered.load(Ordering::Relaxed) >= before + CALLS).then_some(())
            });
            let running = agent.as_ref().unwrap_or(&here.agent);
            running.signal(signal);
            wait_for("the agent's end", LIMIT, || running.is_over().then_some(()));
            agent = Some(here.another_agent());
        }
        drop(end);
        for caller in callers {
            caller.join().unwrap();
        }
        agent.unwrap()
    });
    lab.agent = last;
    lab.wait_until_good();
    lab.assert_clean_slate();
    figure(ENDS.len(), "restarts of the agent that no caller saw");
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn come_and_go(lab: &Lab, pod: &Netns) {
    let result = lab.add("blue", pod, "eth0").result();
    let mut configuration = lab.configuration("blue");
    configuration["prevResult"] = result;
    let check = Call::new("CHECK", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    lab.execute(&check).nothing();
    lab.del("blue", pod, "eth0").nothing();
}

#[test]
fn no_caller_sees_restarts_of_an_agent_whose_socket_is_its_own() {
    nobody_sees_restarts(&mut lab());
}

#[test]
fn no_caller_sees_restarts_of_an_agent_whose_socket_systemd_holds() {
    let mut lab = lab();
    lab.hold_socket();
    let inode = |lab: &Lab| fs::metadata(lab.socket()).unwrap().ino();
    let before = inode(&lab);
    nobody_sees_restarts(&mut lab);
    assert_eq!(inode(&lab), before, "it is systemd's");
}

#[test]
fn calls_wait_in_a_held_socket_for_an_agent_that_is_away() {
    let mut lab = lab();
    lab.hold_socket();
    lab.agent.stop();
    let pod = Netns::new("pod");
    let add = Call::new("ADD", &lab.configuration("blue"));
    let add = add.of(pod.name(), Some(&pod.path()), "eth0").begin(&lab.card.host);
    lab.start_agent();
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lab.assert_invariants();
}

#[test]
fn calls_wait_for_an_agent_that_is_away_as_long_as_the_configuration_says() {
    let mut lab = lab();
    lab.agent.stop();
    let pod = Netns::new("pod");
    let mut configuration = lab.configuration("blue");
    configuration["agentReturnSeconds"] = 60.into();
    let add = Call::new("ADD", &configuration);
    let mut add = add.of(pod.name(), Some(&pod.path()), "eth0").begin(&lab.card.host);
    // Which takes as long as a call waits that is told nothing.
    lab.status().fails(50, &["AGENT_UNREACHABLE"]);
    assert!(add.try_wait().unwrap().is_none(), "it waits longer");
    lab.execute(&Call::new("STATUS", &configuration)).nothing();
    lab.start_agent();
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lab.wait_until_good();
    lab.agent.crash();
    lab.execute(&Call::new("STATUS", &configuration)).fails(50, &["AGENT_UNREACHABLE"]);
}

#[test]
fn status_says_soon_that_an_agent_is_gone() {
    let mut lab = lab();
    lab.agent.stop();
    let begun = Instant::now();
    lab.status().fails(50, &["AGENT_UNREACHABLE"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let _held = UnixListener::bind(lab.socket()).unwrap();
    let begun = Instant::now();
    lab.status().fails(50, &["AGENT_UNREACHABLE", "did not answer in time"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// As in an upgrade of the host while the DPU boots.
#[test]
fn an_agent_that_is_restarted_while_the_dpu_is_away_has_the_grace_of_its_predecessor() {
    let timeouts = Timeouts { grace: 300, ..Timeouts::default() };
    let mut lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    lab.service.stop();
    lab.status().nothing();
    lab.agent.stop();
    lab.start_agent();
    lab.status().nothing();
    lab.agent.stop();
    lab.new_boot_id("7d0c4ae0-0000-4000-8000-000000000002");
    lab.start_agent();
    lab.status().fails(50, &["DPU_UNREACHABLE"]);
}
