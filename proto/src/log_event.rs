//! Names of log lines, in the field `event`. Filters and tests find a line by its name; the sentence of a line may change.

/// The service has found that another machine uses an address of an attachment.
pub const ADDRESS_CONFLICT: &str = "AddressConflict";
/// The agent has the VF of an ended attachment back, and has forgotten the attachment.
pub const DETACHED: &str = "Detached";
/// The agent has a session with the DPU.
pub const SESSION_OPENED: &str = "SessionOpened";
/// The agent resets a VF that differs from its baseline.
pub const VF_RESET: &str = "VfReset";
/// The agent ends before all of its work has ended.
pub const WORK_LEFT: &str = "WorkLeft";
