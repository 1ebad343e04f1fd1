//! The DPU, as the agent speaks with it: one value for each ([`Dpu`]).
//!
//! [`Session`](session) keeps the one connection, and knows nobody: whoever keeps it gives it its hello, and hears
//! what comes. [`Calls`](calls) go by the session that there is, and none is begun without one;
//! [`Reports`](reports) are what the DPU is told unasked.
//!
//! # Who races
//!
//! Nothing of this room is locked for longer than a look into memory; whoever makes a call for an attachment holds
//! its key, verbs and late releases (`deliver_detaches`) alike. What orders calls is on the DPU: Attach and
//! Detach name the session that they are made in, and are refused once another has begun; and they tell when they
//! were made, so that an Attach which a later Detach of its key has overtaken reserves nothing.
//!
//! - *A call with the end of its session.* Whether the DPU has done what it was asked is not known then. An
//!   Attach is asked for once more in the next session, or taken back (`disown`); a Detach without a
//!   record is kept (`detach_later`), and one with a record is the record's own business.
//! - *A hello with an ADD.* It lists what is under way before what is recorded, so that an ADD which passes from
//!   one to the other meanwhile is in one of both lists.
//! - *A hello with an ADD that takes a promised VF.* The promises of a session are closed before the next hello lists
//!   what is in use.
//! - *An inventory with an Attach that names a promised VF.* It may be heard first, and lists the VF as taken, which
//!   the promise outlasts.
//! - *An `Untaken` with such an Attach.* The VF is told again with another number, so that an Attach which comes late
//!   is refused. One that came first has given the VF already, and what it has made of the key is given back.
//! - *An inventory with a Detach.* It is as of a time before it was listed, and the DPU believes whichever of the
//!   two is the later ([`clock`](super::clock)).

mod calls;
mod dial;
mod established;
mod failure;
mod inventory;
mod networks;
mod pod_findings;
mod promises;
mod reports;
mod room;
mod session;
mod undelivered;
mod welcomed;

pub(super) use calls::{detach_request, disowning};
pub(super) use dial::credentials_and_connector;
pub(super) use established::Established;
pub(super) use room::Dpu;
pub(super) use session::{FromDpu, Standing};

#[cfg(test)]
pub(super) use room::tests;
