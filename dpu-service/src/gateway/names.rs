//! The names by which the gateways' objects in the kernel are known.

use std::ffi::CStr;

pub(super) const TABLE: &str = "dpu-offload";

/// The name of the set of gateways' links.
pub(super) const GATEWAYS: &CStr = c"gateways";

/// Our routing protocol number, as `ip route` shows it. The kernel and iproute2 have no name for it.
pub(super) const PROTOCOL: u8 = 213;
