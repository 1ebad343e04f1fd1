//! The gRPC API of dpu-offload, package `offload.v1`, and the reason codes of its errors.
//!
//! The messages serialise to protobuf's JSON form (`pbjson`) with 64-bit numbers as JSON numbers, which is what
//! `dpuctl -o json` prints and `dpuctl apply` reads.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod capability;
mod codec;
pub mod condition;
pub mod event;
pub mod failure;
pub mod finding;
pub mod form;
pub mod kubelet;
pub mod log_event;
mod number;
mod size_limit;
pub mod sysctls;
pub mod workloads;

pub use condition::ConditionReason;
pub use failure::{Failure, Reason};
pub use finding::FindingCode;
pub use size_limit::{encoded_len, first_that_fit};

/// Generated from `offload/v1/*.proto`, where every message and field is documented.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    missing_debug_implementations,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("offload.v1");
    include!(concat!(env!("OUT_DIR"), "/offload.v1.serde.rs"));

    /// The descriptors of this package, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/offload.v1.descriptors"));
}

/// The highest version of the session protocol that this build speaks.
pub const PROTOCOL_HIGHEST: u32 = 1;
/// The lowest version of the session protocol that this build speaks.
pub const PROTOCOL_LOWEST: u32 = 1;
/// Longest gRPC message either side accepts, in bytes.
pub const MESSAGE_LIMIT: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::v1::{Attachment, DpuMessage, ExaminedVf, Heartbeat, HostMessage, VfPlace};

    /// Appends a text field of the given number, as a later version would.
    fn with_later_field(mut message: Vec<u8>, number: u8) -> Vec<u8> {
        const TEXT: &[u8] = b"later";
        prost::encoding::encode_key(
            number.into(),
            prost::encoding::WireType::LengthDelimited,
            &mut message,
        );
        prost::encoding::encode_varint(TEXT.len() as u64, &mut message);
        message.extend(TEXT);
        message
    }

    #[test]
    fn later_fields_are_ignored() {
        let beat = Heartbeat { sequence: 7 };
        let read = Heartbeat::decode(with_later_field(beat.encode_to_vec(), 99).as_slice());
        assert_eq!(read, Ok(beat));
        // A session message that this version does not know decodes as none.
        let later = with_later_field(Vec::new(), 77);
        assert_eq!(HostMessage::decode(later.as_slice()).unwrap().message, None);
        assert_eq!(DpuMessage::decode(later.as_slice()).unwrap().message, None);
        let place = ExaminedVf { place: 99, ..ExaminedVf::default() };
        let read = ExaminedVf::decode(place.encode_to_vec().as_slice()).unwrap();
        assert_eq!(read.place(), VfPlace::Unspecified);
    }

    #[test]
    fn empty_fields_are_written_and_optional() {
        let written = serde_json::to_value(Attachment::default()).unwrap();
        assert_eq!(written["vlan"], 0);
        assert_eq!(written["addresses"], serde_json::json!([]));
        assert_eq!(serde_json::from_value::<Attachment>(written).unwrap(), Attachment::default());
        assert_eq!(serde_json::from_str::<Attachment>("{}").unwrap(), Attachment::default());
    }
}
