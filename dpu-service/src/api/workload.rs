//! The hosts' gRPC service.

use std::{sync::Arc, time::Duration};

use futures::{future::join_all, stream::BoxStream};
use offload_proto::{Failure, Reason, v1};
use tonic::{Request, Response, Status, Streaming};

use super::{
    authorise::{calling_host, peer},
    convert::read,
    convert::show,
    session,
};
use crate::shared::Shared;
use model::AttachmentView;

#[derive(Clone, Debug)]
pub(crate) struct WorkloadApi(pub(crate) Arc<Shared>);

impl WorkloadApi {
    /// The attachment, with what its host must know about the DPU's ports.
    async fn answer(&self, view: &AttachmentView) -> v1::Attachment {
        let host_keeps_port = !self.0.engine.programmer().has_representors();
        let port_follows_vf = !self.0.engine.forwards(view.record.id).await;
        v1::Attachment { host_keeps_port, port_follows_vf, ..show::attachment(view) }
    }
}

#[tonic::async_trait]
impl v1::workload_network_server::WorkloadNetwork for WorkloadApi {
    async fn attach(
        &self,
        request: Request<v1::AttachRequest>,
    ) -> Result<Response<v1::AttachResponse>, Status> {
        let host = calling_host(&request)?;
        let (spec, asked) = read::attach(&host, request.into_inner())?;
        let view = self.0.engine.attach(spec, asked).await?;
        Ok(Response::new(v1::AttachResponse { attachment: Some(self.answer(&view).await) }))
    }

    async fn attach_all(
        &self,
        request: Request<v1::AttachAllRequest>,
    ) -> Result<Response<v1::AttachAllResponse>, Status> {
        let host = calling_host(&request)?;
        let (specs, asked) = read::attach_all(&host, request.into_inner().requests)?;
        let views = self.0.engine.attach_all(specs, asked).await?;
        let attachments = join_all(views.iter().map(|view| self.answer(view))).await;
        Ok(Response::new(v1::AttachAllResponse { attachments }))
    }

    async fn await_port(
        &self,
        request: Request<v1::AwaitPortRequest>,
    ) -> Result<Response<v1::AwaitPortResponse>, Status> {
        let host = calling_host(&request)?;
        let v1::AwaitPortRequest { attachment_id, limit_ms } = request.into_inner();
        let id = read::attachment_id(&attachment_id)?;
        let limit = Duration::from_millis(limit_ms.into());
        let forwards = self.0.engine.await_port(&host, id, limit).await?;
        Ok(Response::new(v1::AwaitPortResponse { forwards }))
    }

    async fn detach(
        &self,
        request: Request<v1::DetachRequest>,
    ) -> Result<Response<v1::DetachResponse>, Status> {
        let host = calling_host(&request)?;
        self.0.engine.detach(read::detach(&host, request.into_inner())?).await?;
        Ok(Response::new(v1::DetachResponse {}))
    }

    async fn check(
        &self,
        request: Request<v1::CheckRequest>,
    ) -> Result<Response<v1::CheckResponse>, Status> {
        let host = calling_host(&request)?;
        let v1::CheckRequest { key, attachment_id } = request.into_inner();
        let key = read::key(&host, key)?;
        let id = read::optional_attachment_id(&attachment_id)?;
        let view = self.0.engine.check(key, id).await?;
        Ok(Response::new(v1::CheckResponse { attachment: Some(show::attachment(&view)) }))
    }

    async fn collect(
        &self,
        request: Request<v1::CollectRequest>,
    ) -> Result<Response<v1::CollectResponse>, Status> {
        let host = calling_host(&request)?;
        let v1::CollectRequest { network, valid } = request.into_inner();
        let network = read::optional_network(network)?;
        let valid = read::keys(&host, valid)?;
        let released = self.0.engine.collect(host, network, valid).await?;
        let released = released.iter().map(show::attachment).collect();
        Ok(Response::new(v1::CollectResponse { released }))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let host = calling_host(&request)?;
        let standing = |network: String| {
            let prefixes = self.0.engine.networks().prefixes_of(&host, &network)?;
            let prefixes = prefixes.iter().map(ToString::to_string).collect();
            Ok::<_, Failure>(v1::NetworkPrefixes { prefixes })
        };
        let network = request.into_inner().network.map(standing).transpose()?;
        // Expired certificates are no obstacle here: they end the session, and hosts then wait for their grace period.
        let obstacles = self.0.engine.obstacles();
        let reason =
            obstacles.first().map(|failure| failure.reason.to_string()).unwrap_or_default();
        let problems = obstacles.into_iter().map(|failure| failure.message).collect();
        Ok(Response::new(v1::StatusResponse { problems, network, reason }))
    }

    type SessionStream = BoxStream<'static, Result<v1::DpuMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::HostMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        if self.0.stopping.is_cancelled() {
            return Err(Failure::new(Reason::Draining, "the service is stopping").into());
        }
        let peer = peer(request.extensions())?.clone();
        Ok(Response::new(session::open(self.0.clone(), peer, request.into_inner())))
    }
}
