//! The VFs of this host: the records of who has which, and all that moves them.

pub(super) mod device_info;
mod driverless;
mod free_vfs;
pub(super) mod intake;
pub(super) mod move_failure;
pub(super) mod originals;
pub(super) mod pauses;
pub(super) mod place;
pub(super) mod proofs;
pub(super) mod records;
pub(super) mod renewal;
pub(super) mod stacked;
