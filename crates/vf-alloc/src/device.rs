//! Devices: names of functions on their hosts.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// A function's stable name on its host, such as the PCI address `0000:03:00.2`. It does not depend on the name or
/// namespace of the function's link. A device of the auxiliary bus (a scalable function) or the vDPA bus also fits.
///
/// The text is taken as it is; code that reads it from outside checks its form. The default is empty: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Device(Arc<str>);

impl Device {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the device is unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.0)
    }
}

impl From<&str> for Device {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Device {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_stored_as_its_text() {
        let device = Device::from("0000:03:00.2");
        let stored = serde_json::to_string(&device).unwrap();
        assert_eq!(stored, "\"0000:03:00.2\"");
        assert_eq!(serde_json::from_str::<Device>(&stored).unwrap(), device);
    }

    #[test]
    fn device_is_shown_as_its_text() {
        let device = Device::from("0000:03:00.2");
        assert_eq!(device.as_str(), "0000:03:00.2");
        assert_eq!(format!("{device:<14}|"), "0000:03:00.2  |");
        assert!(!device.is_empty() && Device::default().is_empty());
    }
}
