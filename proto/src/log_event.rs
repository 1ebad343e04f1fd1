//! Stable names of log lines, in the field `event`. Filters and tests find a line by its name, because the line's
//! sentence may change.

/// The service has found another machine that uses an attachment's address.
pub const ADDRESS_CONFLICT: &str = "AddressConflict";
/// The agent has an ended attachment's VF back and has deleted its record.
pub const DETACHED: &str = "Detached";
/// The agent has a session with the DPU.
pub const SESSION_OPENED: &str = "SessionOpened";
/// The agent resets a VF that differs from its baseline.
pub const VF_RESET: &str = "VfReset";
/// The agent ends before its background work has ended.
pub const WORK_LEFT: &str = "WorkLeft";
