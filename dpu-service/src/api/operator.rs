//! The operators' gRPC service.

use std::sync::Arc;

use futures::stream::BoxStream;
use jiff::Timestamp;
use offload_proto::{Failure, Reason, v1};
use tonic::{Request, Response, Status};
use traces::Instrument;

use super::{
    authorise::cause, convert::read, convert::show, debug_info::debug_info, doctor, watch,
};
use crate::{
    attachments::{AttachmentFilter, EnginePhases, NetworkView},
    condition_sources::conditions,
    sessions::HostView,
    shared::Shared,
};
use model::ResourceVersion;

#[derive(Clone, Debug)]
pub(crate) struct OperatorApi(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl v1::operator_server::Operator for OperatorApi {
    async fn get_dpu(
        &self,
        _request: Request<v1::GetDpuRequest>,
    ) -> Result<Response<v1::Dpu>, Status> {
        let engine = &self.0.engine;
        let host = |view: &HostView| {
            let rights = engine.hosts().rights(&view.name);
            let maintenance = self.0.configuration.lock().maintenance.contains(&view.name);
            show::host(view, rights, maintenance)
        };
        let configuration_digest = self.0.configuration.lock().in_force.digest();
        Ok(Response::new(v1::Dpu {
            name: self.0.dpu(),
            version: env!("CARGO_PKG_VERSION").into(),
            eswitch_driver: engine.programmer().eswitch_name().into(),
            fabric_driver: engine.programmer().fabric_name().into(),
            capabilities: engine.programmer().capabilities().iter().map(show::capability).collect(),
            hosts: engine.hosts().list().iter().map(host).collect(),
            attachments: show::count(engine.operators().attachment_count()),
            started_at: self.0.started_at.to_string(),
            cards: engine.programmer().cards().iter().map(show::card).collect(),
            configuration_digest,
            conditions: conditions(&self.0).await.iter().map(show::condition).collect(),
            refused_peers: self.0.refused_peers.all().into_iter().map(show::refused_peer).collect(),
        }))
    }

    async fn list_vfs(
        &self,
        _request: Request<v1::ListVfsRequest>,
    ) -> Result<Response<v1::ListVfsResponse>, Status> {
        let vfs = self.0.engine.operators().vfs().await?.iter().map(show::vf_status).collect();
        Ok(Response::new(v1::ListVfsResponse { vfs }))
    }

    async fn list_attachments(
        &self,
        request: Request<v1::ListAttachmentsRequest>,
    ) -> Result<Response<v1::ListAttachmentsResponse>, Status> {
        let v1::ListAttachmentsRequest { network, host } = request.into_inner();
        let found = self.0.engine.operators().attachments(&filter(network, host)?);
        let attachments = found.iter().map(show::attachment).collect();
        Ok(Response::new(v1::ListAttachmentsResponse { attachments }))
    }

    async fn get_attachment(
        &self,
        request: Request<v1::GetAttachmentRequest>,
    ) -> Result<Response<v1::AttachmentDetail>, Status> {
        let id = read::id_prefix(&request.into_inner().id)?;
        let detail = self.0.engine.operators().attachment(&id).await?;
        Ok(Response::new(show::detail(&self.0.dpu(), &detail)))
    }

    async fn list_traffic(
        &self,
        request: Request<v1::ListTrafficRequest>,
    ) -> Result<Response<v1::ListTrafficResponse>, Status> {
        let v1::ListTrafficRequest { network, host } = request.into_inner();
        let traffic = self.0.engine.operators().traffic(&filter(network, host)?).await;
        // Taken after the counters: clients compute rates from the time between two answers.
        let time = Timestamp::now().to_string();
        let attachments = traffic.attachments.iter().map(show::attachment_traffic).collect();
        let unknown = traffic.unknown.unwrap_or_default();
        Ok(Response::new(v1::ListTrafficResponse { time, attachments, unknown }))
    }

    async fn list_phases(
        &self,
        _request: Request<v1::ListPhasesRequest>,
    ) -> Result<Response<v1::ListPhasesResponse>, Status> {
        let EnginePhases { attach, detach } = &self.0.engine.phases;
        let phases = show::phases("attach", attach).chain(show::phases("detach", detach)).collect();
        Ok(Response::new(v1::ListPhasesResponse { time: Timestamp::now().to_string(), phases }))
    }

    async fn list_networks(
        &self,
        _request: Request<v1::ListNetworksRequest>,
    ) -> Result<Response<v1::ListNetworksResponse>, Status> {
        let views = self.0.engine.networks().list();
        Ok(Response::new(v1::ListNetworksResponse { networks: self.statuses(&views) }))
    }

    async fn list_pools(
        &self,
        _request: Request<v1::ListPoolsRequest>,
    ) -> Result<Response<v1::ListPoolsResponse>, Status> {
        let pools = self.0.engine.operators().pools().iter().map(show::pool).collect();
        Ok(Response::new(v1::ListPoolsResponse { pools }))
    }

    async fn apply_network(
        &self,
        request: Request<v1::ApplyNetworkRequest>,
    ) -> Result<Response<v1::ApplyNetworkResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let v1::ApplyNetworkRequest { network, dry_run, resource_version, .. } =
            request.into_inner();
        let (network, read) = (read::network(network)?, ResourceVersion::read(resource_version));
        let (view, applied) =
            self.0.engine.networks().by(&cause).apply(network, read, dry_run).await?;
        Ok(Response::new(v1::ApplyNetworkResponse {
            network: self.statuses(&[view]).pop(),
            outcome: show::outcome(applied),
        }))
    }

    async fn change_subnets(
        &self,
        request: Request<v1::ChangeSubnetsRequest>,
    ) -> Result<Response<v1::ChangeSubnetsResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let v1::ChangeSubnetsRequest { network, add, remove, .. } = request.into_inner();
        let (name, change) = (read::network_name(network)?, read::subnet_change(&add, &remove)?);
        let (view, applied) =
            self.0.engine.networks().by(&cause).change_subnets(name, change).await?;
        Ok(Response::new(v1::ChangeSubnetsResponse {
            network: self.statuses(&[view]).pop(),
            outcome: show::outcome(applied),
        }))
    }

    async fn rename_network(
        &self,
        request: Request<v1::RenameNetworkRequest>,
    ) -> Result<Response<v1::RenameNetworkResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let v1::RenameNetworkRequest { name, new_name, .. } = request.into_inner();
        let (name, new_name) = (read::network_name(name)?, read::network_name(new_name)?);
        let view = self.0.engine.networks().by(&cause).rename(name, new_name).await?;
        let network = self.statuses(&[view]).pop();
        Ok(Response::new(v1::RenameNetworkResponse { network }))
    }

    async fn delete_network(
        &self,
        request: Request<v1::DeleteNetworkRequest>,
    ) -> Result<Response<v1::DeleteNetworkResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let v1::DeleteNetworkRequest { name, force, .. } = request.into_inner();
        let name = read::network_name(name)?;
        self.0.engine.networks().by(&cause).delete(name, force).await?;
        Ok(Response::new(v1::DeleteNetworkResponse {}))
    }

    async fn release_attachment(
        &self,
        request: Request<v1::ReleaseAttachmentRequest>,
    ) -> Result<Response<v1::ReleaseAttachmentResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let v1::ReleaseAttachmentRequest { id, forget, .. } = request.into_inner();
        let (id, reason) = (read::attachment_id(&id)?, cause.reason.clone());
        let view = self.0.engine.operators().by(&cause).release(id, forget, reason).await?;
        let attachment = Some(show::attachment(&view));
        Ok(Response::new(v1::ReleaseAttachmentResponse { attachment }))
    }

    async fn clear_quarantine(
        &self,
        request: Request<v1::ClearQuarantineRequest>,
    ) -> Result<Response<v1::ClearQuarantineResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let vf = read::vf(request.into_inner().vf)?;
        let view = self.0.engine.operators().by(&cause).clear_quarantine(vf).await?;
        Ok(Response::new(v1::ClearQuarantineResponse { vf: Some(show::vf_status(&view)) }))
    }

    async fn examine(
        &self,
        request: Request<v1::ExamineRequest>,
    ) -> Result<Response<v1::Diagnosis>, Status> {
        let limit = read::wait_limit(request.get_ref().wait_ms)?;
        Ok(Response::new(doctor::examine(&self.0, limit).await?))
    }

    async fn repair(
        &self,
        request: Request<v1::RepairRequest>,
    ) -> Result<Response<v1::Diagnosis>, Status> {
        let cause = cause(&request, &request.get_ref().reason)?;
        let limit = read::wait_limit(request.get_ref().wait_ms)?;
        let shared = Arc::clone(&self.0);
        let repair = async move { doctor::repair(&shared, limit, &cause).await };
        // A task of its own: if the caller goes away, the audit entry is still written.
        let repaired = tokio::spawn(repair.in_current_span()).await;
        let broken_off =
            |error| Failure::new(Reason::Internal, format!("the repair was aborted: {error}"));
        Ok(Response::new(repaired.map_err(broken_off)??))
    }

    async fn get_debug_info(
        &self,
        _request: Request<v1::GetDebugInfoRequest>,
    ) -> Result<Response<v1::DebugInfo>, Status> {
        Ok(Response::new(debug_info(&self.0).await?))
    }

    async fn list_events(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        let filter = read::event_filter(request.into_inner().filter)?;
        let all = self.0.engine.events();
        let ((events, end), dropped) = (all.list(&filter), all.dropped());
        let dpu = self.0.dpu();
        let events = events.iter().map(|event| show::event(&dpu, event)).collect();
        Ok(Response::new(v1::ListEventsResponse {
            events,
            end: Some(show::cursor(end)),
            dropped: dropped.number,
            dropped_since: dropped.since.map(|since| since.to_string()).unwrap_or_default(),
        }))
    }

    async fn list_audit(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Result<Response<v1::ListAuditResponse>, Status> {
        let filter = read::audit_filter(request.into_inner())?;
        let entries = self.0.engine.audit(&filter);
        let entries = entries.iter().map(|entry| show::audit_entry(entry)).collect();
        Ok(Response::new(v1::ListAuditResponse { entries }))
    }

    type WatchStream = BoxStream<'static, Result<v1::Event, Status>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(watch::watch(&self.0, request.into_inner())?))
    }
}

impl OperatorApi {
    /// Networks with their outdated attachments.
    fn statuses(&self, views: &[NetworkView]) -> Vec<v1::NetworkStatus> {
        let outdated = self.0.engine.networks().outdated(views.iter().map(|view| &view.network));
        let status =
            |view: &NetworkView| show::network_status(view, outdated.get(&view.network.name));
        views.iter().map(status).collect()
    }
}

fn filter(network: String, host: String) -> Result<AttachmentFilter, Failure> {
    let (network, host) = (read::optional_network(network)?, read::optional_host(host)?);
    Ok(AttachmentFilter { network, host })
}
