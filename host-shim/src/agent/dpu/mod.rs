//! The DPU as the agent uses it ([`Dpu`], one value for each DPU).
//!
//! [`Session`](session) keeps the connection: it sends a hello and passes on what the DPU sends. [`Calls`](calls) use
//! the current session, and none starts without one. [`Reports`](reports) are the messages that the agent sends
//! unasked.
//!
//! # Locks and races
//!
//! The room's own locks are held only for memory operations. The caller of a call for an attachment holds the
//! attachment's key, in verbs and in late releases (`deliver_detaches`) alike. The DPU orders calls: Attach and Detach
//! name their session and are refused after a newer one began. They also carry the time when they were made. An Attach
//! that arrives after a later Detach of its key reserves nothing.
//!
//! - *A call and the end of its session.* The agent does not know whether the DPU served the call. It repeats an Attach
//!   in the next session or takes it back (`disown`). It keeps a Detach without a record (`detach_later`); a Detach
//!   with a record is retried from the record.
//! - *A hello and an ADD.* The hello lists calls in progress before records, so that an ADD that moves from one to the
//!   other is in at least one list.
//! - *A hello and an ADD that takes a VF offer.* A session's offers are closed before the next hello lists the VFs in
//!   use.
//! - *An inventory and an Attach with a VF offer.* The inventory may arrive first and list the VF as held; the offer
//!   stays valid.
//! - *A declined offer and a late Attach with it.* The DPU offers the VF again with another number, so that the late
//!   Attach is refused. If the Attach came first, the VF is given already, and its attachment is released.
//! - *An inventory and a Detach.* An inventory is dated before its VFs are listed, and the DPU believes the later of
//!   the two ([`clock`](super::clock)).

mod acceptance_note;
mod calls;
mod dial;
mod established;
mod failure;
mod inventory;
mod networks;
mod pending_detaches;
mod pod_findings;
mod reports;
mod room;
mod session;
mod vf_offers;

pub(super) use calls::{detach_request, disowning};
pub(super) use dial::credentials_and_connector;
pub(super) use established::Established;
pub(super) use room::Dpu;
pub(super) use session::{FromDpu, Standing};

#[cfg(test)]
pub(super) use room::tests;
