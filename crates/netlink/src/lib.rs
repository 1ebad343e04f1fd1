//! All that is said to the kernel about links, addresses, routes, queues and namespaces.
#![deny(missing_docs)]

mod mac;

pub use mac::{MacAddress, ParseMacError};
