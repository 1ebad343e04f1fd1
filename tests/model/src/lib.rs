//! A model of the protocol between hosts and their DPU. The explorer visits every reachable state.
//!
//! The model divides the work of agents and service into steps. Between two steps anything else can happen: another
//! step, a message that arrives late or never, the death of a program at any durable write, of a pod's namespace,
//! or of a host. [`explorer`] tries all orders within [`bounds`]: the numbers of hosts, VFs, containers, addresses,
//! calls of ADD and faults. A fault may strike at any moment; everything else continues until nothing is left to
//! do.
//! | module | what it models |
//! | --- | --- |
//! | [`names`], [`host`], [`system`] | the state, under the programs' names |
//! | [`service`] | the service's attachments, sessions and reconciler; [`service::memory`] is its memory |
//! | [`agent`] | the agent's records, tasks, session and reconciler; [`agent::memory`] is its memory |
//! | [`runtime`] | the calls of container runtimes: ids are reused, ADD is repeated, DEL is owed |
//! | [`wire`] | calls, which overtake each other, and sessions' messages, which do not |
//! | [`faults`] | what can break, when, and the consequences |
//! | [`protection`] | the protocol's protections, each of which can be removed |
//! | [`properties`] | what must hold in every state, at every step and in the end |
//! | [`parts`] | the state of one host: no step at another may change it |
//! | [`protocol`] | all of it as one model |
//!
//! Each transition has the name of the function that it stands for, so a counterexample reads as the programs'
//! work. Comments give the function with its file, such as `verbs/attach.rs::ask_for`. Paths begin in
//! `host-shim/src/agent`, `dpu-service/src` or `crates`; `tests/names.rs` checks that each function exists.
//!
//! # What is not modelled
//!
//! - What does not decide who holds what: networks and their settings, the steps of a saga, a pod's changes to its
//!   VF and the VF's reset, and `Reattach`, which only hastens the agent's reconciler.
//! - Cool-downs: a freed address is free at once, which is the hardest case.
//! - Failing disks, resets of the card, certificates, several DPUs.
//! - Several interfaces of one pod, VFs chosen by a pod or the kubelet, and several pools. All free VFs are
//!   offered.
//! - Time. An abandoned call and a dying namespace are faults; no other timeout exists. The service therefore
//!   remembers tombstones while older calls are in flight, where the program uses one minute. An agent that retries
//!   may give up at any time.
//! - A lying host: clocks only advance within a boot, and inventories are true.
//! - More than the bounds of the tests: one or two hosts, containers, calls of ADD and faults. The program's
//!   `--each` gives each of two hosts its own calls and faults. With `--offers` the DPU offers VFs; in all tests
//!   that would take minutes.
//!
//! Hosts share the pool of addresses and the service's life. Tests with two hosts look at these, and check at every
//! step that it does not change the other host's state. Tests with one host try more faults. No check tells whether
//! a step *reads* another host's state: that would show as a broken property, or not at all.
//!
//! # How to add something
//!
//! - *A state*: a field of [`host::Host`], [`agent::memory::Agent`], [`service::memory::Service`] or
//!   [`system::Dpu`]. Assign it to a host in [`parts`], unless it is in `Host`. If it is a time on a host's clock,
//!   let `tidy.rs` visit it. Clear what no later step reads: each remaining value makes more states.
//! - *A step*: a variant of [`agent::AgentAction`] or [`service::ServiceAction`], the condition for it
//!   ([`agent::AgentSide::actions`], [`service::ServiceSide::actions`]), and its effect. One step is what nothing
//!   can interrupt: at most one durable write, one change in the kernel, one message.
//! - *A fault*: a variant of [`bounds::Breakage`], which allows it, and one of [`faults::Fault`], which is the
//!   event.
//! - *A protection*: a variant of [`protection::Protection`], queried where it acts, and a test in
//!   `tests/counterexamples.rs` that shows the consequence of its absence.
//! - *A property*: a line of [`properties::INVARIANTS`], or a part of [`properties::is_settled`].
//!
//! A correct addition leaves the tests in `tests/holds.rs` passing. A failing one prints the shortest path to the
//! broken property: either the programs have the same defect, or the model differs from them.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod agent;
pub mod bounds;
pub mod explorer;
pub mod faults;
pub mod host;
pub mod names;
pub mod parts;
pub mod properties;
pub mod protection;
pub mod protocol;
pub mod runtime;
pub mod service;
pub mod system;
mod tidy;
pub mod wire;
