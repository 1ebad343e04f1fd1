//! The clock of the tests: wall time without that in which some task of the machine waited for a processor.
//!
//! On a busy machine a test that is right can take longer than a bound of so many seconds. The kernel counts the time in
//! which at least one task of the machine waited for a processor (`some` in `/proc/pressure/cpu`,
//! Documentation/accounting/psi.rst). The task may be any: the test, the programs it runs, another test of the same run,
//! another program. [`Stopwatch::unstalled`] subtracts that time, down to a quarter of the wall time. So a wait of one
//! second ends after one to four seconds. Where the kernel does not count, a third of the wall time counts, and the
//! wait ends after three seconds.
//!
//! Use [`Stopwatch::unstalled`] for upper bounds, [`Stopwatch::elapsed`] for lower bounds and measurements, and the
//! functions for waits. Nothing here is locked or shared; any number of threads may wait at once.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod asynchronous;
mod stopwatch;
mod wait;

pub use asynchronous::{wait_until_async, within};
pub use stopwatch::Stopwatch;
pub use wait::{DEFAULT_TIMEOUT, eventually, sleep_until_moment, wait_for, wait_until};
