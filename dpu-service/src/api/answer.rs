//! Responses that hold their calls' permits until the peer has read them.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::FutureExt as _;
use http::Response;
use hyper::body::{Body as HttpBody, Frame};
use offload_proto::Failure;
use tonic::{Status, body::Body};

use super::call_limits::CallPermit;

/// Body of a response. Its call counts as under way until the stream has ended and all bytes are written.
pub(super) struct Answer {
    body: Body,
    /// The first frame, unless it was already returned or is not ready.
    first: Option<Result<Frame<Bytes>, Status>>,
    permit: Arc<CallPermit>,
}

impl Answer {
    /// Encodes the response at once: the decoded message takes a multiple of its memory. A stream has no first frame
    /// yet.
    ///
    /// # Errors
    /// [`Reason::Overloaded`](offload_proto::Reason::Overloaded): the peer has not read earlier responses.
    pub(super) fn hold(
        answer: Response<Body>,
        mut permit: CallPermit,
    ) -> Result<Response<Body>, Failure> {
        let (head, mut body) = answer.into_parts();
        let first = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let first = first.now_or_never().flatten();
        let data = first.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        permit.hold_answer(data.map_or(0, Bytes::len))?;
        let permit = Arc::new(permit);
        Ok(Response::from_parts(head, Body::new(Self { body, first, permit })))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut self.body).poll_frame(context),
        };
        // Every frame holds the permit: it is returned when the last byte is written, not when the stream ends.
        let hold = |data| Bytes::from_owner(Held { data, _permit: Arc::clone(&self.permit) });
        frame.map_ok(|frame| frame.map_data(hold))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }
}

/// Bytes of a response that are not yet written.
struct Held {
    data: Bytes,
    _permit: Arc<CallPermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
