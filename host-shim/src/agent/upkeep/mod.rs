//! What the agent does unasked, and for the DPU and its operators.
//!
//! Five parts; each uses those before it. The [`Provider`](provide::Provider) gives PFs the number of VFs that the DPU
//! requests. The [`Keeper`](keeper::Keeper) compares records with the kernel, one or all (a *pass*), and runs the
//! provider in each pass. [`HostPorts`](host_ports::HostPorts) attaches the configured host ports. The
//! [`Watcher`](watcher::Watcher) wakes the keeper after kernel events. The [`Examiner`](examine::Examiner) examines the
//! host for an operator, and first repairs what it can if asked.
//!
//! # Who races
//!
//! All of it comes at any time, also amid an ADD. Four locks order this module's own work; their places among all
//! are on the page of [`vfs`](super::vfs):
//!
//! - `examining`: one examination at a time. It may take long, and two would repair the same VFs.
//! - `passing`: one pass at a time. A pass that is requested during another starts after it, because the other may have
//!   missed the change.
//! - `comparing`: one comparison of host ports with the configuration at a time, by a reload, the timer or an operator.
//! - `keeping`: one record at a time is inspected. A pass over a thousand records takes one of two turns for reads, so
//!   that an inventory or a CHECK never waits for it.
//!
//! Against verbs each single attachment is guarded by its key: what was seen before the key was held is looked at
//! again.

mod examine;
mod host_ports;
mod keeper;
mod provide;
mod room;
mod watcher;

pub(super) use room::Upkeep;
