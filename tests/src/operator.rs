//! `dpuctl`, run as an operator does.

use std::{
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

use crate::{Netns, program, run, wait_for};

/// Somebody with a `dpuctl` configuration.
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
    /// When it fails.
    #[must_use]
    pub fn says(&self, arguments: &[&str]) -> String {
        let output = self.dpuctl(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "dpuctl {arguments:?}: {error}");
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
        let described = self.says(&["describe", "dpu"]);
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
        let text = self.says(&["get", kind, "-o", "json"]);
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list[kind].as_array().unwrap_or_else(|| panic!("no list: {text}")).clone()
    }

    /// Waits until a host answers the DPU. That both know of their session then neither the DPU's
    /// word for it proves, which comes before its welcome, nor the agent's STATUS, which forgives outages.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for_host(&self, name: &str, limit: Duration) {
        wait_for(&format!("an answer of {name}"), limit, || {
            let output = self.dpuctl(&["doctor", "-o", "json"]);
            let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
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
