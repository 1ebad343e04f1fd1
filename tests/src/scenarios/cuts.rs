//! The network between host and DPU fails after each single record of a call.
//!
//! A run tries a third of the records, and all with `OFFLOAD_TEST_WHOLE=1`.

use std::time::Duration;

use offload_proto::log_event;
use serde_json::{Value, json};

use super::{figure, outages::ids};
use crate::{
    Answer, Call, Fault, Lab, Netns, Settings, Stopwatch, eventually, sample::Sample, wait_for,
};

/// Timeout for background work.
const LIMIT: Duration = Duration::from_secs(30);

/// Limit of any call during network failures: far below the timeouts of runtimes.
const FAST: Duration = Duration::from_secs(10);

/// More records than any call takes.
const MOST_RECORDS: usize = 100;

/// The call during which the network fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeCall {
    /// ADD of a new pod.
    Add,
    /// DEL, then ADD of the same container.
    Del,
    /// CHECK.
    Check,
    /// GC of a pod that is not listed.
    Collect,
    /// No call: the agent opens its session again.
    Hello,
}

/// Cuts the network after 0, 1, 2 … records until the call needs no more. Skips numbers that this run does not select.
///
/// # Panics
/// If a call takes too long, or an invariant is violated after the network is restored.
pub fn network_fails_after_each_record(wish: RuntimeCall, fault: Fault) {
    let settings = Settings {
        proxied: true,
        service: "[limits]\nheartbeat_ms = 1000".into(),
        timeouts: "reconnect_ms = 300\nconnect_s = 1".into(),
        ..Settings::default()
    };
    let lab = Lab::start(&settings);
    let resident = Netns::new("resident");
    let _ = lab.add("wire", &resident, "eth0").result();
    let case = Case { lab: &lab, resident: &resident, fault };
    let (first, step) = Sample::of_this_run().stride(MOST_RECORDS);
    let mut failures = 0;
    let ended = (first..MOST_RECORDS).step_by(step).any(|records| {
        let struck = case.try_once(wish, records);
        failures += usize::from(struck);
        !struck
    });
    assert!(ended, "the call does not end");
    if failures == 0 {
        assert!(case.try_once(wish, 0), "the network never failed");
        failures = 1;
    }
    lab.del("wire", &resident, "eth0").nothing();
    lab.assert_clean_slate();
    figure(failures, "failures of the network between host and DPU");
}

struct Case<'a> {
    lab: &'a Lab,
    resident: &'a Netns,
    fault: Fault,
}

impl Case<'_> {
    /// Whether the network failed before the call was over.
    fn try_once(&self, wish: RuntimeCall, records: usize) -> bool {
        match wish {
            RuntimeCall::Add => self.add(records),
            RuntimeCall::Del => self.delete(records),
            RuntimeCall::Check => self.check(records),
            RuntimeCall::Collect => self.collect(records),
            RuntimeCall::Hello => self.hello(records),
        }
    }

    fn add(&self, records: usize) -> bool {
        let pod = Netns::new("pod");
        let (first, struck) = self.amid_failure(records, || self.lab.add("blue", &pod, "eth0"));
        let first = self.is_done(&first).then(|| first.result());
        let second = self.added(&pod);
        if let Some(first) = first {
            assert_eq!(second, first, "after {records} records");
        }
        self.assert_attached(2);
        self.lab.del("blue", &pod, "eth0").nothing();
        self.assert_attached(1);
        struck
    }

    fn delete(&self, records: usize) -> bool {
        let pod = Netns::new("pod");
        let _ = self.added(&pod);
        let (deleted, struck) = self.amid_failure(records, || self.lab.del("blue", &pod, "eth0"));
        deleted.nothing();
        // Delayed records arrive now. They must not affect the same container's next attachment.
        let _ = self.added(&pod);
        self.assert_attached(2);
        self.lab.del("blue", &pod, "eth0").nothing();
        self.assert_attached(1);
        struck
    }

    fn check(&self, records: usize) -> bool {
        let pod = Netns::new("pod");
        let mut configuration = self.lab.configuration("blue");
        configuration["prevResult"] = self.added(&pod);
        let call = Call::new("CHECK", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
        let (checked, struck) = self.amid_failure(records, || self.lab.execute(&call));
        let _ = self.is_done(&checked);
        self.finally("a good CHECK", || self.lab.execute(&call));
        self.lab.del("blue", &pod, "eth0").nothing();
        self.assert_attached(1);
        struck
    }

    fn collect(&self, records: usize) -> bool {
        let pod = Netns::new("pod");
        let _ = self.added(&pod);
        let mut configuration = self.lab.configuration("blue");
        configuration["cni.dev/valid-attachments"] = json!([]);
        let call = Call::new("GC", &configuration);
        let (collected, struck) = self.amid_failure(records, || self.lab.execute(&call));
        let _ = self.is_done(&collected);
        self.finally("a good GC", || self.lab.execute(&call));
        self.assert_attached(1);
        struck
    }

    fn hello(&self, records: usize) -> bool {
        let sessions_opened = || self.lab.agent.events(log_event::SESSION_OPENED);
        let before = sessions_opened();
        self.lab.proxy().strike(Fault::Cut);
        let (_, struck) = self.amid_failure(records, || {
            let met = || {
                let struck = self.lab.proxy().has_struck();
                (struck || sessions_opened() > before).then_some(())
            };
            wait_for("a session, or the failure of its network", LIMIT, met);
        });
        let session = || (sessions_opened() > before).then_some(());
        wait_for("a session once the network is well", LIMIT, session);
        // The delayed session's records arrive, and the agent keeps its present session.
        let opened = sessions_opened() - before;
        assert!(opened == 1 || !matches!(self.fault, Fault::Late(_)), "{opened} sessions");
        self.assert_attached(1);
        struck
    }

    /// Runs `work` during the failure and restores the network afterwards.
    fn amid_failure<T>(&self, records: usize, work: impl FnOnce() -> T) -> (T, bool) {
        let proxy = self.lab.proxy();
        proxy.plan(records, self.fault);
        let begun = Stopwatch::start();
        let done = work();
        let taken = begun.unstalled();
        assert!(taken < FAST, "{taken:?} after {records} records and {:?}", self.fault);
        let struck = proxy.has_struck();
        proxy.heal();
        self.lab.wait_until_good();
        (done, struck)
    }

    fn added(&self, pod: &Netns) -> Value {
        self.finally("an ADD", || self.lab.add("blue", pod, "eth0")).result()
    }

    /// Repeats a call until it succeeds, as runtimes do.
    fn finally(&self, what: &str, mut call: impl FnMut() -> Answer) -> Answer {
        wait_for(what, LIMIT, || Some(call()).filter(|answer| self.is_done(answer)))
    }

    fn assert_attached(&self, count: usize) {
        let mut left = Vec::new();
        let settled = eventually(LIMIT, || {
            left = ids(self.lab);
            (left.len() == count).then_some(())
        });
        assert!(settled.is_some(), "{left:?}");
        self.lab.assert_invariants();
        assert!(self.resident.json("ip", &["link"]).iter().any(|link| link["ifname"] == "eth0"));
    }

    /// Whether the call succeeded. If not, its error must say that it can be repeated. A mere delay must not make calls
    /// fail.
    fn is_done(&self, answer: &Answer) -> bool {
        let done = answer.status.success();
        if !done {
            let (code, text) = answer.error();
            assert_eq!(code, 11, "{text}");
            assert!(!matches!(self.fault, Fault::Late(_)), "{text}");
        }
        done
    }
}
