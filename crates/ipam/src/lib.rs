//! Address pools: pure allocation, no I/O, no clock of its own.
//!
//! A [`Pool`] hands out the addresses of one subnet of either family, to keys of the caller's choice.
//! It goes round: the next address is the first free one after the last, so that an address given
//! back rests as long as can be, and for its cool-down at least. Times are seconds of whatever clock
//! the caller uses, as long as it is always the same one.
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
pub use pool::Pool;
pub use spec::{Reservation, SpecError, SubnetSpec};
pub use usage::Usage;
