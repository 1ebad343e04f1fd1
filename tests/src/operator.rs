//! `dpuctl`, run as an operator does, and its library in the test's own process.
//!
//! A test asks for lists and states again and again, and a process for each of these questions takes longer than the
//! answer. [`Operator::json`] and what uses it call the library, each time with a connection and credentials of its
//! own, as `dpuctl` does. What a test says about `dpuctl` itself, it says of the program.

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

/// A user of `dpuctl` with a configuration of its own.
#[derive(Debug)]
pub struct Operator<'a> {
    /// Where it runs.
    pub(crate) netns: &'a Netns,
    /// Its `DPUCTL_CONFIG`.
    pub(crate) configuration: PathBuf,
}

impl<'a> Operator<'a> {
    /// One with a `DPUCTL_CONFIG`, in a namespace.
    #[must_use]
    pub fn new(netns: &'a Netns, configuration: PathBuf) -> Self {
        Self { netns, configuration }
    }

    /// `dpuctl` with these arguments, run to its end.
    #[must_use]
    pub fn dpuctl(&self, arguments: &[&str]) -> Output {
        run(self.command().args(arguments))
    }

    /// What `dpuctl` prints.
    ///
    /// # Panics
    /// When it fails. A condition that is false is no failure of it.
    #[must_use]
    pub fn says(&self, arguments: &[&str]) -> String {
        let output = self.dpuctl(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(has_answered(&output), "dpuctl {arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Whether the fabric limits what pods send: not every kernel can.
    ///
    /// # Panics
    /// When `dpuctl` does not tell.
    #[must_use]
    pub fn has_egress_limits(&self) -> bool {
        self.dpu_can("egress-limit")
    }

    /// Whether the DPU can do that, as `dpuctl` tells.
    ///
    /// # Panics
    /// When it does not tell.
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

    /// What `dpuctl` complains when it has to fail.
    ///
    /// # Panics
    /// When it succeeds.
    #[must_use]
    pub fn is_refused(&self, arguments: &[&str]) -> String {
        let output = self.dpuctl(arguments);
        assert!(!output.status.success(), "dpuctl {arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    /// The items of `dpuctl get <kind> -o json`.
    ///
    /// # Panics
    /// When it fails or prints something else.
    #[must_use]
    pub fn get(&self, kind: &str) -> Vec<Value> {
        let list = self.json(&["get", kind]);
        list[kind].as_array().unwrap_or_else(|| panic!("no list: {list}")).clone()
    }

    /// What `dpuctl` prints for these arguments and `-o json`, asked from this process.
    ///
    /// # Panics
    /// When it fails or prints no JSON. A condition that is false is no failure of it.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let (printed, outcome) = self.ask(&[arguments, &["-o", "json"]].concat());
        let is_answer = matches!(outcome, Ok(()) | Err(CallError::PodsAffected(_)));
        assert!(is_answer, "dpuctl {arguments:?}: {outcome:?}");
        serde_json::from_str(&printed).expect("JSON")
    }

    /// The conditions of the DPU that are not true.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn faults(&self) -> Vec<Value> {
        let status = self.json(&["status"]);
        let all = status["conditions"].as_array().expect("a list").iter();
        all.filter(|it| it["status"] != "CONDITION_STATUS_TRUE").cloned().collect()
    }

    /// The condition that is not true for that reason, of any object.
    ///
    /// # Panics
    /// When the DPU does not answer.
    #[must_use]
    pub fn fault(&self, reason: &str) -> Option<Value> {
        self.faults().into_iter().find(|it| it["reason"] == reason)
    }

    /// Does what `dpuctl` does with these arguments, and returns what it prints. On a thread of its own: the caller's
    /// may have an executor already.
    fn ask(&self, arguments: &[&str]) -> (String, Result<(), CallError>) {
        let configuration = self.configuration.to_str().expect("UTF-8");
        let all =
            ["dpuctl", "--config", configuration].into_iter().chain(arguments.iter().copied());
        let arguments = Arguments::try_parse_from(all).expect("arguments");
        let work = || self.netns.run(|| do_here(arguments));
        thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
    }

    /// Waits until a host answers the DPU, which shows that both know of their session. The DPU reports a host as
    /// connected before the host has its welcome, and the agent's STATUS is good during short outages.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for_host(&self, name: &str, limit: Duration) {
        wait_for(&format!("an answer of {name}"), limit, || {
            // It fails if there are differences, and prints them all the same.
            let (printed, _) = self.ask(&["doctor", "-o", "json"]);
            let found: Value = serde_json::from_str(&printed).unwrap_or_default();
            let host = found["hosts"].as_array()?.iter().find(|host| host["name"] == name)?;
            (host["connected"] == true && host["problem"] == "").then_some(())
        });
    }

    /// A `dpuctl` command to be given arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.netns.command(program("dpuctl"));
        command.env("DPUCTL_CONFIG", &self.configuration);
        command
    }
}

/// Whether the DPU has answered `dpuctl`, be its conditions true or not.
#[must_use]
pub fn has_answered(output: &Output) -> bool {
    matches!(output.status.code(), Some(0 | 5))
}

/// Does it in the namespace of the calling thread, to which the sockets belong.
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
