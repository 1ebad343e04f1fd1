//! The versions of the CNI specification that the plugin supports.

use serde_json::{Value, json};

/// A version of the CNI specification, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.3.0
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0: adds CHECK.
    V0_4_0,
    /// 1.0.0: results no longer state an address's family.
    V1_0_0,
    /// 1.1.0: adds GC and STATUS.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// The newest version.
    pub const NEWEST: Self = Self::V1_1_0;

    /// The version as the specification writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Parses a version. `None`: the plugin does not support it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Whether results of this version have MTUs, PCI addresses and routes' attributes. Earlier ones state each
    /// address's family instead.
    #[must_use]
    pub fn has_details(self) -> bool {
        self >= Self::V1_0_0
    }

    /// All versions, separated by commas, for messages.
    #[must_use]
    pub fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

/// The answer to VERSION.
#[must_use]
pub fn answer() -> Value {
    json!({
        "cniVersion": Version::NEWEST.as_str(),
        "supportedVersions": Version::ALL.map(Version::as_str),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_back_and_are_ordered() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        assert!(Version::ALL.is_sorted());
    }

    #[test]
    fn unsupported_cni_versions_are_unknown() {
        for text in ["", "0.1.0", "0.2.0", "1.1", "1.2.0", "v1.1.0", " 1.1.0"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn version_answer_lists_all_versions() {
        assert_eq!(
            answer().to_string(),
            r#"{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#
        );
    }
}
