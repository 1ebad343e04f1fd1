//! The connection to the DPU.

use std::time::Duration;

use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use mtls::{Connector, LiveCredentials, Role};
use offload_proto::{
    MESSAGE_LIMIT,
    v1::{Event, WatchRequest, operator_client::OperatorClient},
};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap, transport::Channel};

use crate::{arguments::Options, config::Config, error::CallError};

/// Lists are longer than the messages of other services may be: an attachment takes about 1 kB.
const ANSWER_LIMIT: usize = 64 * MESSAGE_LIMIT;

/// A connection to a DPU's `Operator` service.
#[derive(Debug)]
pub(crate) struct Client {
    operator: OperatorClient<Channel>,
    timeout: Duration,
    /// The DPU's clock at its latest answer.
    answered_at: Option<Timestamp>,
}

impl Client {
    /// Connects with `options`, which override the configuration.
    pub(crate) async fn connect(options: &Options) -> Result<Self, CallError> {
        let config = Config::load(options.config.as_deref())?;
        let endpoint = options.endpoint.as_ref().or(config.endpoint.as_ref());
        let endpoint = endpoint.ok_or(CallError::Unset("endpoint"))?;
        let dpu = options.dpu.as_ref().or(config.dpu.as_ref()).ok_or(CallError::Unset("dpu"))?;
        let credentials = LiveCredentials::load(&config.tls, &[Role::Operator, Role::Viewer])?;
        let connector = Connector::new(credentials, endpoint, dpu, options.timeout())?;
        let operator =
            OperatorClient::new(connector.connect().await?).max_decoding_message_size(ANSWER_LIMIT);
        Ok(Self { operator, timeout: options.timeout(), answered_at: None })
    }

    /// Makes one call, such as `client.call(OperatorClient::get_dpu, GetDpuRequest {})`.
    pub(crate) async fn call<Q, A>(
        &mut self,
        method: impl AsyncFnOnce(
            &mut OperatorClient<Channel>,
            Request<Q>,
        ) -> Result<Response<A>, Status>,
        question: Q,
    ) -> Result<A, CallError> {
        let mut request = Request::new(question);
        request.set_timeout(self.timeout);
        let answered = method(&mut self.operator, request).await;
        let answer = answered.map_err(|status| self.failed(status))?;
        self.answered_at = time_of(answer.metadata());
        Ok(answer.into_inner())
    }

    /// The DPU's clock at its latest answer, or the local clock before the first. Ages are relative to it, so that they
    /// are right even if the two clocks differ.
    pub(crate) fn now(&self) -> Timestamp {
        self.answered_at.unwrap_or_else(Timestamp::now)
    }

    /// Opens the stream of events. A stream has no end and so no time limit.
    pub(crate) async fn watch(
        &mut self,
        request: WatchRequest,
    ) -> Result<Streaming<Event>, CallError> {
        let watched = self.operator.watch(request).await;
        watched.map(Response::into_inner).map_err(|status| self.failed(status))
    }

    pub(crate) fn failed(&self, status: Status) -> CallError {
        CallError::from_status(status, self.timeout)
    }
}

/// When the answer was sent (RFC 9110, section 6.6.1). `None`: a proxy has removed the header.
fn time_of(answer: &MetadataMap) -> Option<Timestamp> {
    let date = answer.get("date")?.to_str().ok()?;
    DateTimeParser::new().parse_timestamp(date).ok()
}
