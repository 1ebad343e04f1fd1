//! The CNI error object.

use offload_proto::Failure;
use serde_json::{Value, json};

use super::version::Version;

/// Error codes of the CNI specification that the plugin raises. [`offload_proto::Reason`] has the others.
pub mod code {
    /// The configuration's `cniVersion` is not supported, or does not allow the verb.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field asks for something that the plugin cannot do. The message has its key and value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// An environment variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Standard input cannot be read.
    pub const IO_FAILURE: u32 = 5;
    /// Standard input is malformed.
    pub const UNDECODABLE: u32 = 6;
    /// The network configuration is invalid.
    pub const INVALID_CONFIGURATION: u32 = 7;
    /// `CNI_NETNS` is the plugin's own namespace.
    pub const INVALID_NETNS: u32 = 8;
    /// An ADD cannot be served.
    pub const NOT_AVAILABLE: u32 = 50;
    /// An ADD cannot be served, and running containers may have limited connectivity.
    pub const NOT_AVAILABLE_AND_LIMITED: u32 = 51;
}

/// The longest message, in bytes. Messages repeat the caller's input and become part of pods' events. An event has
/// 1,024 bytes, which include the details and the runtime's and kubelet's own words.
const LONGEST_MESSAGE: usize = 448;

/// Why a call failed, for the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The specification's code, or ours from 100 on.
    pub code: u32,
    /// One sentence: what failed, on what, why.
    pub message: String,
    /// `<CODE>: <advice>`, or other help. Empty: none.
    pub details: String,
}

impl CniError {
    /// Creates an error; the message is put into one line and cut.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        // Events are read line by line.
        let in_a_line = message.into().replace(char::is_control, " ");
        let message = bootstrap::cut(in_a_line, LONGEST_MESSAGE);
        Self { code, message, details: String::new() }
    }

    /// Sets the details.
    #[must_use]
    pub fn with_details(self, details: impl Into<String>) -> Self {
        Self { details: details.into(), ..self }
    }

    /// Converts the error to the specification's error object of `version`.
    #[must_use]
    pub fn to_json(&self, version: Version) -> Value {
        let mut object = json!({
            "cniVersion": version.as_str(),
            "code": self.code,
            "msg": self.message,
        });
        if !self.details.is_empty() {
            object["details"] = self.details.as_str().into();
        }
        object
    }
}

/// The error for malformed input.
pub(super) fn invalid(message: impl Into<String>) -> CniError {
    CniError::new(code::INVALID_CONFIGURATION, message)
}

impl From<Failure> for CniError {
    fn from(Failure { reason, message, .. }: Failure) -> Self {
        let details = format!("{reason}: {}", reason.advice());
        Self::new(reason.cni_code(), message).with_details(details)
    }
}

/// An error and the version that its document follows.
#[derive(Debug)]
pub struct Refusal {
    /// The configuration's version, or the newest version if it is unknown.
    pub version: Version,
    /// The error.
    pub error: CniError,
}

impl From<CniError> for Refusal {
    fn from(error: CniError) -> Self {
        Self { version: Version::NEWEST, error }
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::Reason;

    use super::*;

    #[test]
    fn cni_error_keeps_the_failures_reason() {
        let failure = Failure::new(Reason::VfsExhausted, "pool default");
        let object = CniError::from(failure).to_json(Version::V1_0_0);
        assert_eq!(object["cniVersion"], "1.0.0");
        assert_eq!(object["code"], 102);
        assert_eq!(object["msg"], "pool default");
        assert!(object["details"].as_str().unwrap().starts_with("VFS_EXHAUSTED: "));
    }

    #[test]
    fn cni_error_message_is_cut() {
        let error = CniError::new(code::UNDECODABLE, "x".repeat(1024 * 1024));
        assert!(error.message.len() < 500 && error.message.ends_with("of 1048576 bytes"));
    }

    /// The event's text with containerd 1.6 and kubelet 1.20 and the longest network name.
    fn event(error: &CniError) -> String {
        format!(
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox \
             \"{}\": plugin type=\"host-shim\" name=\"{}\" failed (add): {}; {}",
            "0".repeat(64),
            "n".repeat(63),
            error.message,
            error.details
        )
    }

    #[test]
    fn pod_event_has_cause_and_advice_uncut() {
        for &reason in Reason::ALL {
            let message = format!("the kernel said:\n\t{}", "no\r\n".repeat(1000));
            let event = event(&Failure::new(reason, message).into());
            assert!(!event.contains(char::is_control), "{event:?}");
            assert!(event.len() <= 1024, "{reason}: {}", event.len());
            assert!(
                event.contains("the kernel said:") && event.ends_with(reason.advice()),
                "{event}"
            );
            assert_eq!(event.matches(reason.as_str()).count(), 1, "{event}");
        }
    }

    #[test]
    fn empty_error_details_are_omitted() {
        let object = CniError::new(code::UNDECODABLE, "not JSON").to_json(Version::NEWEST);
        assert_eq!(object.to_string(), r#"{"cniVersion":"1.1.0","code":6,"msg":"not JSON"}"#);
    }
}
