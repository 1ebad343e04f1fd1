//! Address pools: pure allocation, no I/O, no clock.
#![deny(missing_docs)]
