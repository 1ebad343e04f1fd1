//! The backend traits for a test's disk: see [`Journal::open_with`](crate::Journal::open_with).

pub use redb::{BackendError, StorageBackend, backends::FileBackend};
