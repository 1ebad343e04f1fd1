//! Address pools. Pure: no I/O, no clock.
//!
//! A [`Pool`] allocates addresses of one IPv4 or IPv6 subnet to keys of the caller's choice. It goes round: the
//! next address is the first free one after the last, so that a freed address stays unused for as long as possible.
//! A cool-down ends early only when no other address is free. Times are seconds of one clock of the caller's
//! choice.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod addresses;
mod cooling;
mod error;
mod pool;
mod spans;
mod spec;
mod subnet;
mod usage;

pub use error::{AllocateError, RequestError, ResizeError, RestoreError};
pub use pool::{Pool, SHORTEST_COOL_DOWN};
pub use spec::{Reservation, SpecError, SubnetSpec};
pub use usage::Usage;
