//! What a test's disk is made of: see [`Journal::open_with`](crate::Journal::open_with).

pub use redb::{BackendError, StorageBackend, backends::FileBackend};
