//! `dpuctl`, as a program and as a library in the test's process.
//!
//! Tests read lists and states very often, and a process takes longer than the answer. [`Operator::json`] and
//! everything based on it call the library, with a new connection and credentials each time, as `dpuctl` does. Tests of
//! `dpuctl` itself run the program.

use std::{
    io,
    path::PathBuf,
    process::{Command, Output},
    thread,
    time::Duration,
};

use clap::Parser as _;
use dpuctl::{Arguments, CallError, Console};
use serde_json::Value;
use tokio::runtime;

use crate::{Netns, program, run, wait_for};

/// A user of `dpuctl` with an own configuration.
#[derive(Debug)]
pub struct Operator<'a> {
    /// Namespace.
    pub(crate) netns: &'a Netns,
    /// Value of `DPUCTL_CONFIG`.
    pub(crate) configuration: PathBuf,
}

impl<'a> Operator<'a> {
    /// A user in a namespace with this `DPUCTL_CONFIG`.
    #[must_use]
    pub fn new(netns: &'a Netns, configuration: PathBuf) -> Self {
        Self { netns, configuration }
    }

    /// Runs `dpuctl` with these arguments to completion.
    #[must_use]
    pub fn dpuctl(&self, arguments: &[&str]) -> Output {
        run(self.command().args(arguments))
    }

    /// The output of `dpuctl`.
    ///
    /// # Panics
    /// If it fails. A false condition is not a failure.
    #[must_use]
    pub fn output(&self, arguments: &[&str]) -> String {
        let output = self.dpuctl(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(has_answered(&output), "dpuctl {arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Whether the fabric limits what pods send: not every kernel can.
    ///
    /// # Panics
    /// If `dpuctl` does not report it.
    #[must_use]
    pub fn has_egress_limits(&self) -> bool {
        self.dpu_can("egress-limit")
    }

    /// Whether the DPU has this ability, as `dpuctl` reports.
    ///
    /// # Panics
    /// If `dpuctl` does not report it.
    #[must_use]
    pub fn dpu_can(&self, capability: &str) -> bool {
        let (described, outcome) = self.ask(&["describe", "dpu"]);
        assert!(outcome.is_ok(), "{outcome:?}");
        let mut rows = described.lines().map(|line| line.split_whitespace().skip(1));
        let row =
            rows.find_map(|mut row| row.next().filter(|name| *name == capability).and(Some(row)));
        let done = row.and_then(|mut row| row.next());
        done.unwrap_or_else(|| panic!("no {capability}: {described}")) != "no"
    }

    /// The error output of a `dpuctl` call that must fail.
    ///
    /// # Panics
    /// If it succeeds.
    #[must_use]
    pub fn is_refused(&self, arguments: &[&str]) -> String {
        let output = self.dpuctl(arguments);
        assert!(!output.status.success(), "dpuctl {arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    /// The items of `dpuctl get <kind> -o json`.
    ///
    /// # Panics
    /// If it fails or prints something else.
    #[must_use]
    pub fn get(&self, kind: &str) -> Vec<Value> {
        let list = self.json(&["get", kind]);
        list[kind].as_array().unwrap_or_else(|| panic!("no list: {list}")).clone()
    }

    /// The output of `dpuctl … -o json`, produced in this process.
    ///
    /// # Panics
    /// If it fails or prints no JSON. A false condition is not a failure.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let (printed, outcome) = self.ask(&[arguments, &["-o", "json"]].concat());
        let is_answer = matches!(outcome, Ok(()) | Err(CallError::PodsAffected(_)));
        assert!(is_answer, "dpuctl {arguments:?}: {outcome:?}");
        serde_json::from_str(&printed).expect("JSON")
    }

    /// The DPU's conditions that are not true.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn faults(&self) -> Vec<Value> {
        let status = self.json(&["status"]);
        let all = status["conditions"].as_array().expect("a list").iter();
        all.filter(|it| it["status"] != "CONDITION_STATUS_TRUE").cloned().collect()
    }

    /// The condition with this reason that is not true, of any object.
    ///
    /// # Panics
    /// If the DPU does not answer.
    #[must_use]
    pub fn fault(&self, reason: &str) -> Option<Value> {
        self.faults().into_iter().find(|it| it["reason"] == reason)
    }

    /// Runs `dpuctl`'s library with these arguments and returns the output. On an own thread: the caller's may have an
    /// executor.
    fn ask(&self, arguments: &[&str]) -> (String, Result<(), CallError>) {
        let configuration = self.configuration.to_str().expect("UTF-8");
        let all =
            ["dpuctl", "--config", configuration].into_iter().chain(arguments.iter().copied());
        let arguments = Arguments::try_parse_from(all).expect("arguments");
        let work = || self.netns.run(|| do_here(arguments));
        thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
    }

    /// Waits until a host answers the DPU, which shows that both know their session.
    ///
    /// Other signs are not enough: the DPU reports a host as connected before the host receives its hello reply, and
    /// the agent's STATUS succeeds during short outages.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn wait_for_host(&self, name: &str, limit: Duration) {
        wait_for(&format!("an answer of {name}"), limit, || {
            // It fails if there are differences, and still prints them.
            let (printed, _) = self.ask(&["doctor", "-o", "json"]);
            let found: Value = serde_json::from_str(&printed).unwrap_or_default();
            let host = found["hosts"].as_array()?.iter().find(|host| host["name"] == name)?;
            (host["connected"] == true && host["problem"] == "").then_some(())
        });
    }

    /// A `dpuctl` command without arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.netns.command(program("dpuctl"));
        command.env("DPUCTL_CONFIG", &self.configuration);
        command
    }
}

/// Whether the DPU answered `dpuctl`, with conditions true or false.
#[must_use]
pub fn has_answered(output: &Output) -> bool {
    matches!(output.status.code(), Some(0 | 5))
}

/// Runs in the namespace of the calling thread, to which its sockets belong.
fn do_here(arguments: Arguments) -> (String, Result<(), CallError>) {
    let (mut output, mut notes, mut input) = (Vec::new(), Vec::new(), io::empty());
    let mut console = Console {
        output: &mut output,
        notes: &mut notes,
        input: &mut input,
        interactive: false,
        is_screen: false,
        has_colours: false,
    };
    let executor = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let outcome = executor.block_on(dpuctl::run(arguments, &mut console));
    (String::from_utf8(output).expect("UTF-8"), outcome)
}
