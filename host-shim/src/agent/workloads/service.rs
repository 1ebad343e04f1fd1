//! The gRPC service.

use std::sync::Arc;

use offload_proto::{
    Failure,
    workloads::{
        AttachRequest, AttachResponse, DetachRequest, DetachResponse, StatusRequest,
        StatusResponse, workload_networking_server::WorkloadNetworking,
    },
};
use tonic::{Code, Request, Response, Status};

use super::{Workloads, request};
use crate::agent::{
    caller::{Answer, Caller},
    dispatcher::refused,
};
use crate::cni::{environment::Verb, error::CniError};

#[tonic::async_trait]
impl WorkloadNetworking for Workloads {
    async fn attach(
        &self,
        request: Request<AttachRequest>,
    ) -> Result<Response<AttachResponse>, Status> {
        let asked = request.into_inner();
        let attach = async move |workloads: Self, caller: Arc<Caller>| {
            let attached = match request::add(asked, &workloads.network) {
                Ok(request) => workloads.attach_once(request, &caller).await,
                Err(failure) => Err(failure),
            };
            attached.err().map(refused)
        };
        let attachments =
            self.dispatch(Verb::Add, attach).await.map_err(with_details_in_message)?;
        Ok(Response::new(AttachResponse { ip: request::addresses(&attachments) }))
    }

    async fn detach(
        &self,
        request: Request<DetachRequest>,
    ) -> Result<Response<DetachResponse>, Status> {
        let asked = request.into_inner();
        let detach =
            async move |workloads: Self, _caller| Some(workloads.serve_detach(asked).await);
        self.dispatch(Verb::Del, detach).await.map_err(with_details_in_message)?;
        Ok(Response::new(DetachResponse {}))
    }

    async fn status(
        &self,
        _request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let status =
            async move |workloads: Self, _caller| Some(workloads.status(&workloads.network).await);
        let outcome = self.dispatch(Verb::Status, status).await;
        outcome
            .map_err(|failure| with_details_in_message(failure).into_status(Code::Unavailable))?;
        Ok(Response::new(StatusResponse {}))
    }
}

impl Workloads {
    async fn serve_detach(&self, asked: DetachRequest) -> Answer {
        let workload = match request::workload(&asked.workload_id) {
            Ok(workload) => workload.to_owned(),
            Err(failure) => return refused(failure),
        };
        let named = request::named(&asked);
        let netns = asked.netns.unwrap_or_default().netns_path;
        self.detach(&workload, named, &netns).await;
        Answer::Done
    }
}

/// Appends the details that the plugin prints: clients show only the message.
fn with_details_in_message(failure: Failure) -> Failure {
    let reason = failure.reason;
    let CniError { message, details, .. } = failure.into();
    Failure::new(reason, format!("{message}: {details}"))
}
