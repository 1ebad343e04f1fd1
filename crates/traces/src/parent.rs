//! The header `traceparent` of W3C Trace Context.

use std::{env, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};

/// The header's name in HTTP and gRPC metadata.
pub const HEADER: &str = "traceparent";
/// The environment variable's name.
pub const VARIABLE: &str = "TRACEPARENT";

/// The supported version, which is also written.
const VERSION: &str = "00";
const NO_VERSION: &str = "ff";
/// Length of version 00. Later versions start with the same parts.
const LENGTH: usize = 55;
/// The only known flag: the trace's creator records it.
const SAMPLED: u8 = 1;

/// A span that work belongs to, possibly of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: u128,
    /// The span within it.
    pub span_id: u64,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Parses the header in any version. `None`: it is malformed and must be ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let mut parts = known.split('-');
        let mut part = |length| parts.next().filter(|part| is_hex(part, length));
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let is_whole = match version {
            VERSION => rest.is_empty(),
            NO_VERSION => false,
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
        let span_id = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & SAMPLED != 0;
        is_whole.then_some(Self { trace_id, span_id, is_sampled })
    }

    /// The context in the process's environment, if its caller has set one.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        Self::parse(&env::var(VARIABLE).ok()?)
    }
}

/// Upper case is malformed.
fn is_hex(part: &str, length: usize) -> bool {
    part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id, is_sampled } = self;
        write!(out, "{VERSION}-{trace_id:032x}-{span_id:016x}-{:02x}", u8::from(*is_sampled))
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Deserializes a context; for serde's `deserialize_with`. A malformed one becomes `None`, because it must not fail a
/// call.
///
/// # Errors
/// The errors of the document itself.
pub fn lenient<'de, D: Deserializer<'de>>(input: D) -> Result<Option<TraceParent>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Other(IgnoredAny),
    }
    Ok(match Value::deserialize(input)? {
        Value::Text(text) => TraceParent::parse(&text),
        Value::Other(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_read_is_written_alike() {
        let parent = TraceParent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((parent.span_id, parent.is_sampled), (0xb7ad_6b71_6920_3331, true));
        assert_eq!(parent.to_string(), GOOD);
        let unsampled = GOOD.replace("-01", "-00");
        assert_eq!(TraceParent::parse(&unsampled).unwrap().to_string(), unsampled);
    }

    #[test]
    fn only_known_flags_are_forwarded() {
        for (flags, written) in [("03", "01"), ("ff", "01"), ("02", "00"), ("fe", "00")] {
            let parent = TraceParent::parse(&GOOD.replace("-01", &format!("-{flags}")));
            assert_eq!(parent.unwrap().to_string(), GOOD.replace("-01", &format!("-{written}")));
        }
    }

    #[test]
    fn later_trace_version_is_parsed() {
        let later = GOOD.replacen("00", "cc", 1);
        for text in [later.clone(), format!("{later}-"), format!("{later}-what-will-be-like.1")] {
            assert_eq!(TraceParent::parse(&text), TraceParent::parse(GOOD), "{text}");
        }
        assert_eq!(TraceParent::parse(&format!("{later}.x")), None);
    }

    #[test]
    fn what_is_malformed_is_none() {
        let (no_trace, no_span) = ("0".repeat(32), "0".repeat(16));
        for text in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-"),
            &format!("{GOOD}-00"),
            &format!(" {GOOD}"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replacen("00", "0g", 1),
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            &GOOD.replace("0af7", "0ä7"),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &no_trace),
            &GOOD.replace("b7ad6b7169203331", &no_span),
            &GOOD.replace("-01", "-0x"),
            &GOOD.replace("-01", "-+1"),
            &"é".repeat(40),
        ] {
            assert_eq!(TraceParent::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn malformed_trace_parent_is_skipped_leniently() {
        let good = lenient(json!(GOOD)).unwrap().unwrap();
        assert_eq!(serde_json::to_value(good).unwrap(), GOOD);
        for shown in [json!("x"), json!(null), json!(7), json!({ "a": [] })] {
            assert_eq!(lenient(&shown).unwrap(), None, "{shown}");
        }
    }
}
