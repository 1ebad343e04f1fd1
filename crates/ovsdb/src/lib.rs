//! A client of OVSDB, the protocol of Open vSwitch's database (RFC 7047), over a Unix socket.
//!
//! A [`Database`] is one connection. A thread of its own reads all that the server says, keeps a replica of the
//! tables that are wanted, and hands answers to whoever waits for them. So calls overlap, and a look at what there is
//! asks nobody. The server tells of a change before it answers the transaction that made it: once
//! [`Database::transact`] returns, the replica shows what it did.
//!
//! Two locks: that of the state (the replica, and who waits), which is held for as long as a look takes, or those of
//! all who wait for something in the replica, and that of the writing side, held for one message. The reader takes
//! either alone; nobody takes one while he has the other.
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
