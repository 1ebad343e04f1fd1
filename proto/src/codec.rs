//! How messages are put on the wire: as prost's codec does, in buffers that begin small.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// How much room a call has for messages of each direction when it begins, in bytes: as much as a heartbeat takes. A
/// session keeps it for as long as it lasts.
const BUFFER: usize = 512;

/// How much is put together for the connection at a time: tonic's own default.
const AT_A_TIME: usize = 32 * 1024;

/// A codec for the generated code.
#[derive(Debug)]
pub(crate) struct LeanCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for LeanCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for LeanCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, AT_A_TIME))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, AT_A_TIME))
    }
}
