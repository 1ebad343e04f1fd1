//! A client of OVSDB, the protocol of Open vSwitch's database (RFC 7047), over a Unix socket.
//!
//! A [`Database`] is one connection. Its reader thread receives all messages, keeps a replica of the monitored tables
//! and delivers answers to the waiting callers. So calls overlap, and reads of the replica need no request. The server
//! sends the update of a change before it answers the transaction that made it. When [`Database::transact`] returns,
//! the replica therefore shows its effects.
//!
//! Locks: `state` (replica and waiting calls), held during a read or an update, and `writer`, held for one message. No
//! thread holds both.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod database;
mod datum;
mod error;
mod message;
mod operation;
mod replica;

pub use database::{Database, MonitoredTable, Settings};
pub use datum::Datum;
pub use error::Error;
pub use operation::{Operation, Outcome};
pub use replica::{Replica, Row};
