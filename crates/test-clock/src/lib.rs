//! The clock of the tests: wall time minus the time in which some task of the machine waited for a processor.
//!
//! On a busy machine a correct test can exceed a limit in wall time. The kernel counts the time in which at least one
//! task waited for a processor (`some` in `/proc/pressure/cpu`, Documentation/accounting/psi.rst). The task may belong
//! to the test, to the programs that it runs, or to any other program. [`Stopwatch::unstalled`] subtracts that time,
//! down to a quarter of the wall time. So a wait of one second ends after one to four seconds. Without the kernel's
//! count a third of the wall time counts, and the wait ends after three seconds.
//!
//! Use [`Stopwatch::unstalled`] for upper bounds, [`Stopwatch::elapsed`] for lower bounds and measurements, and the
//! functions for waits. The crate has no locks and no shared state; any number of threads may wait concurrently.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod asynchronous;
mod stopwatch;
mod wait;

pub use asynchronous::{wait_until_async, within};
pub use stopwatch::Stopwatch;
pub use wait::{DEFAULT_TIMEOUT, eventually, sleep_until_moment, wait_for, wait_until};
