//! Address pools: pure allocation, no I/O, no clock of its own.
//!
//! A [`Pool`] hands out the addresses of one subnet of either family, to keys of the caller's choice.
//! It goes round: the next address is the first free one after the last, so that an address given
//! back is unused for as long as possible. Its cool-down ends early only when no other address is
//! free. Times are seconds of one clock of the caller's choice.
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
