//! The `[tracing]` table: export of spans.

use serde::{Deserialize, Serialize};
#[cfg(feature = "otlp")]
use tonic::{codegen::http::uri::Authority, transport::Uri};

/// The `[tracing]` table of the agent's and the service's configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracingSettings {
    /// The collector for OTLP over gRPC. `None`: spans are not exported.
    pub otlp_endpoint: Option<String>,
    /// The share of recorded traces, from 0 to 1. It applies to traces that begin here, and to those that the caller of
    /// a call records.
    pub sampling_ratio: f64,
}

impl Default for TracingSettings {
    fn default() -> Self {
        Self { otlp_endpoint: None, sampling_ratio: 1.0 }
    }
}

impl TracingSettings {
    /// Invalid settings: one sentence each, without a final stop.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let ratio = self.sampling_ratio;
        let wrong_ratio = (!(0.0..=1.0).contains(&ratio))
            .then(|| format!("`tracing.sampling_ratio` is {ratio}, but must be 0.0 to 1.0"));
        let wrong_endpoint = self.otlp_endpoint.as_deref().and_then(refuse_endpoint);
        wrong_endpoint.into_iter().chain(wrong_ratio).collect()
    }
}

/// Why an endpoint is refused.
#[cfg(feature = "otlp")]
fn refuse_endpoint(endpoint: &str) -> Option<String> {
    let is_valid = |uri: &Uri| {
        uri.scheme_str() == Some("http")
            && uri.authority().is_some_and(is_host_with_port)
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    };
    if endpoint.parse().is_ok_and(|uri| is_valid(&uri)) {
        return None;
    }
    Some(format!(
        "`tracing.otlp_endpoint` is {endpoint:?}: write the URL of a collector for OTLP over gRPC without TLS, such as \
         \"http://127.0.0.1:4317\""
    ))
}

/// Whether it is a host with an optional port. The parser accepts any text as port.
#[cfg(feature = "otlp")]
fn is_host_with_port(authority: &Authority) -> bool {
    let (host, written) = (authority.host(), authority.as_str());
    let has_port = |port: u16| written.strip_prefix(host) == Some(&format!(":{port}"));
    !host.is_empty() && (written == host || authority.port_u16().is_some_and(has_port))
}

#[cfg(not(feature = "otlp"))]
fn refuse_endpoint(endpoint: &str) -> Option<String> {
    Some(format!(
        "`tracing.otlp_endpoint` is {endpoint:?}: this program was built without the feature `otlp`, and exports no \
         traces: leave the key out, or take the program of a package"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        toml::from_str::<TracingSettings>(text).unwrap().problems()
    }

    #[test]
    fn no_endpoint_records_no_traces() {
        let settings: TracingSettings = toml::from_str("").unwrap();
        assert_eq!(settings, TracingSettings::default());
        assert_eq!((settings.otlp_endpoint, settings.sampling_ratio), (None, 1.0));
        assert_eq!(problems(""), [""; 0]);
    }

    #[test]
    fn a_ratio_is_from_0_to_1() {
        for ratio in ["0.0", "0.25", "1.0"] {
            assert_eq!(problems(&format!("sampling_ratio = {ratio}")), [""; 0]);
        }
        for ratio in ["-0.1", "1.1", "nan", "inf"] {
            let shown = problems(&format!("sampling_ratio = {ratio}"));
            assert!(shown.len() == 1 && shown[0].ends_with("but must be 0.0 to 1.0"), "{shown:?}");
        }
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn endpoint_is_http_url_without_path() {
        for valid in ["http://127.0.0.1:4317", "http://[::1]:4317/", "http://collector.example"] {
            assert_eq!(problems(&format!("otlp_endpoint = {valid:?}")), [""; 0], "{valid}");
        }
        for wrong in [
            "",
            "127.0.0.1:4317",
            "https://a:4317",
            "http://",
            "http://:4317",
            "http://a/v1/traces",
            "http://a:b",
            "http://user:secret@a:4317",
            "http://a:4317/?token=secret",
            "grpc://a:4317",
        ] {
            let shown = problems(&format!("otlp_endpoint = {wrong:?}"));
            assert!(
                shown.len() == 1 && shown[0].ends_with("\"http://127.0.0.1:4317\""),
                "{shown:?}"
            );
        }
    }

    #[cfg(not(feature = "otlp"))]
    #[test]
    fn a_program_that_exports_nothing_says_so() {
        let shown = problems("otlp_endpoint = 'http://127.0.0.1:4317'");
        assert!(shown[0].contains("feature `otlp`"), "{shown:?}");
    }
}
