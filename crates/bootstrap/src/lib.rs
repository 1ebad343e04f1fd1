//! What every program does before its work: configuration, logs, signals.
#![deny(missing_docs)]
