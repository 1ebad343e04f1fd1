//! What the agent does unasked, and for the DPU and its operators.
//!
//! Five parts, one above the other: the [`Provider`](provide::Provider) gives PFs as many VFs as the DPU wants;
//! the [`Keeper`](keeper::Keeper) compares records with the kernel, one or all (a *pass*), and has the provider do
//! its part in each pass; [`HostPorts`](host_ports::HostPorts) has the attachments made that the host itself is
//! configured to have; the [`Watcher`](watcher::Watcher) has the keeper look when the kernel tells of a change;
//! the [`Examiner`](examine::Examiner) looks at everything for an operator, and before that repairs what it can, if
//! asked, with a pass among other things.
//!
//! # Who races
//!
//! All of it comes at any time, also amid an ADD. Four locks order this room's own work; their places among all
//! are on the page of [`vfs`](super::vfs):
//!
//! - `examining`: one operator's look at a time. It may take long, and two would repair the same VFs.
//! - `passing`: one pass at a time, whoever wants it. A pass that is asked for during another begins after it,
//!   since what caused the wish may have come behind the other's back.
//! - `comparing`: one comparison of the host's ports with the configuration at a time, between whoever reloads
//!   it, the timer and an operator.
//! - `keeping`: one record at a time is looked for. A pass over a thousand records takes one of the two turns at
//!   looking, so that an inventory or a CHECK never waits behind it.
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
