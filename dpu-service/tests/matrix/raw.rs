//! gRPC calls by name with encoded messages.

use prost::bytes::{Buf, BufMut};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::Channel,
};

/// Whether the call was admitted and answered.
pub(crate) type Outcome = Result<(), Status>;

/// Makes a call with one message and returns the start of its answer.
pub(crate) async fn call(channel: Channel, path: &str, message: Vec<u8>) -> Outcome {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let path: PathAndQuery = format!("/{path}").parse().unwrap();
    let is_session = path.path().ends_with("/Session");
    let messages = tokio_stream::once(message);
    let mut answers = client.streaming(Request::new(messages), path, Bytes).await?.into_inner();
    // A refused session reports it in its first message; other streams may have nothing to send yet.
    if is_session {
        answers.message().await?;
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
