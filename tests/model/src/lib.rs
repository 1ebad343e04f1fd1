//! The protocol between hosts and their DPU, as a model whose every reachable state is visited.
//!
//! What the agents and the service do is cut into the steps between which something else can happen:
//! another step, a message that arrives late or never, the death of a program at every durable write,
//! of a pod's namespace, of a host. [`explorer`] tries all orders of them, within [`bounds`]: how many
//! hosts, VFs, containers, addresses, calls of ADD and faults there are. A fault may strike at every
//! moment; all else goes on until nothing is left to do.
//!
//! | module | what it models |
//! | --- | --- |
//! | [`names`], [`host`], [`system`] | all there is, under the names that the programs give it |
//! | [`service`] | the service's attachments, sessions and reconciler; [`service::memory`] is what it knows |
//! | [`agent`] | the agent's records, tasks, session and keeper; [`agent::memory`] is what it knows |
//! | [`runtime`] | what container runtimes ask: ids of containers are used again, ADD is repeated, DEL is owed |
//! | [`wire`] | calls, which overtake each other, and the messages of sessions, which do not |
//! | [`faults`] | what can break, when, and what follows |
//! | [`protection`] | what keeps the promises, and can be taken out to see that it is missed |
//! | [`properties`] | what must hold at every moment and at every step, and what it means that all is in order |
//! | [`parts`] | what is one host's own: no step at another may touch it |
//! | [`protocol`] | all of that as one model |
//!
//! Each transition bears the name of the function that it stands for, so that a counterexample reads
//! as what the programs would do. Comments give it with its file, such as `verbs/attach.rs::ask_for`, whose
//! path begins in `host-shim/src/agent`, `dpu-service/src` or `crates`; `tests/names.rs` looks for each.
//!
//! # What is not modelled
//!
//! - What decides nothing about who holds what: networks and their settings, the steps of a saga, what a
//!   pod has changed of its VF and how it is made anew, and `Reattach`, which only hastens what the agent's
//!   keeper does anyway.
//! - Cool-downs: an address is given out again at once, which is the hardest case.
//! - Disks that refuse, resets of the card, certificates, several DPUs.
//! - Several interfaces of one pod, VFs that a pod or the kubelet has chosen, and several pools. All free VFs are
//!   promised.
//! - Time. A call is given up or a namespace dies as a fault; nothing else runs out. So the service
//!   remembers overtaken calls for as long as they are under way, where the program does for a minute.
//!   Whoever asks the DPU patiently may lose patience at any time.
//! - A host that lies: clocks go on within a boot, and an inventory tells what is so.
//! - More than the bounds of the tests: one or two hosts, containers, calls of ADD and faults.
//!   `--each` of the program gives each of two hosts its own calls and faults. `--promises` has the DPU promise
//!   VFs: in all tests, that would take minutes.
//!
//! What hosts share is the pool of addresses and the service's life. Tests with two hosts look at these,
//! and at every step for whether it changes what is the other host's; those with one host try more
//! faults. Whether a step only *looks* at what is another host's is not checked as such: it would show as
//! a broken promise, or not at all.
//!
//! # How to add something
//!
//! - *A state*: a field of [`host::Host`], [`agent::memory::Agent`], [`service::memory::Service`] or
//!   [`system::Dpu`]. Say in [`parts`] whose it is, unless it lies in `Host`; if it is a time on a host's
//!   clock, have `tidy.rs` visit it. What no later step looks at is to be cleared: each value that stays
//!   makes more states.
//! - *A step*: a variant of [`agent::AgentAction`] or [`service::ServiceAction`], when it can happen
//!   ([`agent::AgentSide::actions`], [`service::ServiceSide::actions`]), and what it does. One step is what nothing can
//!   come in between of: at most one durable write, one change in the kernel, one message.
//! - *A fault*: a variant of [`bounds::Breakage`], which is allowed, and one of [`faults::Fault`], which
//!   happens.
//! - *A protection*: a variant of [`protection::Protection`], asked for where it acts, and a test in
//!   `tests/counterexamples.rs` that shows what happens without.
//! - *A promise*: a line of [`properties::INVARIANTS`], or part of [`properties::is_settled`].
//!
//! A new state that is right leaves the tests in `tests/holds.rs` passing. When one fails, it prints the
//! shortest way to the broken promise: either the programs would go it, too, and are to be mended, or the
//! model differs from them.
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
