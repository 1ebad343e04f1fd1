//! The agent is restarted while callers work, and no call fails.

use std::{
    fs,
    os::unix::{fs::MetadataExt, net::UnixListener},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use e2e::{Call, Lab, Netns, Program, Settings, Stopwatch, Timeouts, scenarios::figure, wait_for};
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(60);
/// Callers that attach, check and detach pods.
const CALLERS: usize = 3;
/// Answered calls between two restarts.
const CALLS: u32 = 8;
/// Signals of the restarts.
const ENDS: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGKILL,
    Signal::SIGTERM,
    Signal::SIGKILL,
    Signal::SIGTERM,
    Signal::SIGKILL,
];

/// Without cool-down of addresses.
fn lab() -> Lab {
    Lab::start(&Settings { cool_down: 0, ..Settings::default() })
}

/// Callers work while the agent is restarted, and no call may fail.
fn assert_calls_survive_restarts(lab: &mut Lab) {
    assert_calls_survive(lab, |lab, running, signal| {
        running.signal(signal);
        wait_for("the agent's end", LIMIT, || running.is_over().then_some(()));
        lab.another_agent()
    });
}

/// Callers work while one agent replaces another, and no call may fail.
fn assert_calls_survive(lab: &mut Lab, replace: impl Fn(&Lab, &Program, Signal) -> Program) {
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
            agent = Some(replace(here, running, signal));
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
fn restarts_with_own_socket_fail_no_call() {
    assert_calls_survive_restarts(&mut lab());
}

/// Waits until the log has this number of lines that end with these words.
fn wait_until_said(lab: &Lab, words: &str, times: usize) {
    wait_for(&format!("{words:?} in the log"), LIMIT, || {
        (lab.agent.log().matches(words).count() >= times).then_some(())
    });
}

#[test]
fn standby_takeover_fails_no_call() {
    let mut lab = lab();
    let handovers = AtomicU32::new(0);
    assert_calls_survive(&mut lab, |lab, running, signal| {
        let next = lab.agent_on_standby();
        let before = handovers.fetch_add(1, Ordering::Relaxed) as usize;
        wait_until_said(lab, "standing by", before + 1);
        assert!(!running.is_over(), "the one before goes on");
        running.signal(signal);
        wait_until_said(lab, "\"ready\"", before + 2);
        next
    });
}

#[test]
fn agent_without_valid_certificates_does_not_take_over() {
    let lab = lab();
    let file = lab.path().join("host-shim.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("certificate = \"", "certificate = \"/missing")).unwrap();
    let mut next = lab.agent_on_standby();
    let end = wait_for("its end", LIMIT, || next.ended());
    assert_eq!(end.code(), Some(78), "{}", next.log());
    lab.status().nothing();
}

#[test]
fn standby_agent_stops_or_starts() {
    let mut lab = lab();
    let mut next = lab.agent_on_standby();
    wait_until_said(&lab, "standing by", 1);
    assert!(next.stop().success());
    lab.status().nothing();
    lab.agent.crash();
    lab.agent = lab.agent_on_standby();
    lab.wait_until_good();
    lab.assert_clean_slate();
}

#[test]
fn restarts_with_held_socket_fail_no_call() {
    let mut lab = lab();
    lab.hold_socket();
    let inode = |lab: &Lab| fs::metadata(lab.socket()).unwrap().ino();
    let before = inode(&lab);
    assert_calls_survive_restarts(&mut lab);
    assert_eq!(inode(&lab), before, "it is systemd's");
}

#[test]
fn held_socket_queues_calls_without_agent() {
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
fn held_socket_queues_calls_during_shutdown() {
    // The session continues while the service is suspended.
    let service = "[limits]\nheartbeat_ms = 60000".into();
    let mut lab = Lab::start(&Settings { service, ..Settings::default() });
    lab.hold_socket();
    let pods = ["a", "b"].map(Netns::new);
    let begin = |pod: &Netns| {
        let add = Call::new("ADD", &lab.configuration("blue"));
        add.of(pod.name(), Some(&pod.path()), "eth0").begin(&lab.card.host)
    };
    lab.service.signal(Signal::SIGSTOP);
    let before = lab.calls();
    let under_way = begin(&pods[0]);
    lab.wait_for_call(&before);
    lab.agent.signal(Signal::SIGTERM);
    // The first start is by `hold_socket`, which restarts the agent.
    wait_until_said(&lab, "SIGTERM received", 2);
    let waiting = begin(&pods[1]);
    wait_for("the agent's end", LIMIT, || lab.agent.is_over().then_some(()));
    lab.start_agent();
    lab.service.signal(Signal::SIGCONT);
    for add in [waiting, under_way] {
        let output = add.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    lab.wait_until_good();
    lab.assert_invariants();
}

#[test]
fn calls_wait_for_agent_as_configured() {
    let mut lab = lab();
    lab.agent.stop();
    let pod = Netns::new("pod");
    let mut configuration = lab.configuration("blue");
    configuration["agentReturnSeconds"] = 60.into();
    let add = Call::new("ADD", &configuration);
    let mut add = add.of(pod.name(), Some(&pod.path()), "eth0").begin(&lab.card.host);
    // Takes as long as a call waits without any message.
    lab.status().fails(50, &["AGENT_UNREACHABLE"]);
    assert!(add.try_wait().unwrap().is_none(), "it waits longer");
    // The agent releases the VF of an ended namespace itself, and a kubelet may have many calls.
    for netns in [None, Some(Path::new("/run/netns/ended"))] {
        let (ended, begun) =
            (Call::new("DEL", &configuration).of("ended", netns, "eth0"), Stopwatch::start());
        lab.execute(&ended).fails(11, &["AGENT_UNREACHABLE"]);
        assert!(begun.unstalled() < Duration::from_secs(4), "{netns:?}: {:?}", begun.unstalled());
    }
    lab.execute(&Call::new("STATUS", &configuration)).nothing();
    lab.start_agent();
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lab.wait_until_good();
    lab.agent.crash();
    lab.execute(&Call::new("STATUS", &configuration)).fails(50, &["AGENT_UNREACHABLE"]);
}

#[test]
fn status_reports_missing_agent_soon() {
    let mut lab = lab();
    lab.agent.stop();
    let begun = Stopwatch::start();
    lab.status().fails(50, &["AGENT_UNREACHABLE"]);
    assert!(begun.unstalled() < Duration::from_secs(10), "{:?}", begun.unstalled());
    let _held = UnixListener::bind(lab.socket()).unwrap();
    let begun = Stopwatch::start();
    lab.status().fails(50, &["AGENT_UNREACHABLE", "in time"]);
    assert!(begun.unstalled() < Duration::from_secs(10), "{:?}", begun.unstalled());
}

/// As in an upgrade of the host while the DPU boots.
#[test]
fn restarted_agent_inherits_the_grace() {
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
