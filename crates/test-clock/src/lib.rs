//! The clock of the tests: time without that in which the machine had no processor for them.
//!
//! A machine that does something else as well keeps a test from running, and each bound of so many seconds becomes a
//! bet on the machine. The kernel counts the time for which some task waited for a processor (`/proc/pressure/cpu`,
//! Documentation/accounting/psi.rst). [`Stopwatch::elapsed`] subtracts that time, down to a quarter of the wall time.
//! So a wait of one second ends after one to four seconds. Where the kernel does not count, a third of the wall time
//! elapses, and the wait ends after three seconds.
//!
//! Use [`Stopwatch::elapsed`] for upper bounds, [`Stopwatch::wall`] for lower bounds and measurements, and the functions
//! for waits. Nothing here is locked or shared; any number of threads may wait at once.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod asynchronous;
mod stopwatch;
mod wait;

pub use asynchronous::{wait_until_async, within};
pub use stopwatch::Stopwatch;
pub use wait::{LIMIT, eventually, pause, wait_for, wait_until};
