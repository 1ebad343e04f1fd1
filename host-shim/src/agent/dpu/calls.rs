//! The calls that the agent makes to its DPU.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use offload_proto::{
    Failure, Reason,
    v1::{
        AttachAllRequest, AttachRequest, Attachment, AttachmentKey, AwaitPortRequest, CheckRequest,
        CollectRequest, DetachRequest, StatusRequest, StatusResponse,
    },
};
use tonic::{Request, Status};
use traces::Instrument;

use super::{
    established::Established,
    failure::{failure_of, is_final},
    pending_detaches::PendingDetaches,
    reports::Reports,
    session::Session,
    vf_offers::offer_message,
};
use crate::{
    agent::{clock::nanoseconds_since_boot, config::Timeouts, vfs::Vfs},
    protocol::{AddRequest, GcRequest, Key},
    vf_source::identity_of,
};

/// Calls to the DPU, and pending detaches of calls without an answer.
#[derive(Debug)]
pub(in crate::agent) struct Calls {
    timeouts: Timeouts,
    vfs: Arc<Vfs>,
    session: Arc<Session>,
    reports: Arc<Reports>,
    pending_detaches: PendingDetaches,
}

impl Calls {
    pub(super) fn new(
        timeouts: Timeouts,
        vfs: Arc<Vfs>,
        session: Arc<Session>,
        reports: Arc<Reports>,
    ) -> Self {
        Self { timeouts, vfs, session, reports, pending_detaches: PendingDetaches::default() }
    }

    /// Requests an attachment for each request until `deadline`, all or none; repeats the call on the next session when
    /// one ends. There is at least one request; the first has the group key.
    ///
    /// # Errors
    /// The DPU's refusal, or why it is unreachable. Nothing of the attachments is left, or the next session's hello
    /// releases them.
    pub(in crate::agent) async fn attach(
        &self,
        requests: &[AddRequest],
        mut session: Arc<Established>,
        deadline: Instant,
    ) -> Result<Vec<Attachment>, Failure> {
        let deadline = deadline.min(Instant::now() + self.timeouts.attach());
        let reconnect = self.timeouts.reconnect();
        loop {
            let asked = session.attach(requests, deadline).instrument(traces::call("Attach"));
            let status = match asked.await {
                Ok(attachments) => {
                    let checked = check_all(requests, &attachments);
                    if checked.is_err() {
                        self.detach_by_key(&requests[0].key).await;
                    }
                    return checked.map(|()| attachments);
                }
                Err(status) => status,
            };
            let failure = failure_of(&status);
            if is_final(&status) {
                return Err(failure);
            }
            // The session ended without an answer: only a call in the next session shows whether the DPU made the
            // attachments.
            let next = self.session.other_than(&session.id, reconnect).await;
            session = match next {
                Ok(next) if Instant::now() < deadline => next,
                _ => {
                    self.detach_by_key(&requests[0].key).await;
                    return Err(failure);
                }
            };
        }
    }

    /// Releases what a call without an answer may have left for a key and its group members, at once or later. Only the
    /// inventory says where the VF is: if records were lost, a pod may have it.
    pub(in crate::agent) async fn detach_by_key(&self, key: &Key) {
        if self.vfs.records().by_key(key).is_some() {
            return;
        }
        let request = detach_request_by_key(key);
        let limit = self.timeouts.reconnect();
        if let Err(failure) = self.detach_within(limit, request.clone()).await {
            self.detach_later(request, &failure);
        }
        self.reports.inventory_wanted();
    }

    /// Releases an attachment.
    ///
    /// # Errors
    /// The DPU's refusal, or why it is unreachable.
    pub(in crate::agent) async fn detach(&self, request: DetachRequest) -> Result<(), Failure> {
        self.detach_within(self.timeouts.detach(), request).await
    }

    async fn detach_within(&self, limit: Duration, request: DetachRequest) -> Result<(), Failure> {
        let session = self.session.current(self.timeouts.reconnect()).await?;
        let deadline = Instant::now() + limit;
        let call = session.detach(request, deadline).instrument(traces::call("Detach"));
        match call.await {
            Ok(()) => Ok(()),
            Err(status) => match failure_of(&status) {
                // The DPU has released the attachment already, for example by a call whose answer was lost.
                failure if failure.reason == Reason::AttachmentUnknown => Ok(()),
                failure => Err(failure),
            },
        }
    }

    /// Has the DPU compare an attachment with its eswitch.
    ///
    /// # Errors
    /// The difference, or why the DPU is unreachable.
    pub(in crate::agent) async fn check(&self, key: &Key, id: &str) -> Result<(), Failure> {
        let session = self.session.current(self.timeouts.reconnect()).await?;
        let deadline = Instant::now() + self.timeouts.detach();
        let request = CheckRequest { key: Some(key.clone().into()), attachment_id: id.to_owned() };
        let asked = async {
            let request = timed(request, deadline);
            session.bounded(deadline, session.client().check(request)).await
        };
        let checked = asked.instrument(traces::call("Check")).await;
        checked.map(drop).map_err(|status| failure_of(&status))
    }

    /// Has the DPU release all attachments of a network except the `valid` ones.
    ///
    /// # Errors
    /// The DPU's refusal, or why it is unreachable.
    pub(in crate::agent) async fn collect(
        &self,
        request: &GcRequest,
        valid: Vec<Key>,
    ) -> Result<Vec<Attachment>, Failure> {
        let session = self.session.current(self.timeouts.reconnect()).await?;
        let deadline = Instant::now() + self.timeouts.detach();
        let request = CollectRequest {
            network: request.network.clone(),
            valid: valid.into_iter().map(Into::into).collect(),
        };
        let collected =
            session.bounded(deadline, session.client().collect(timed(request, deadline))).await;
        collected.map(|answer| answer.released).map_err(|status| failure_of(&status))
    }

    /// Asks the DPU whether it serves Attach, and about the state of a network if one is named.
    ///
    /// # Errors
    /// The DPU is unreachable, or has no such network.
    pub(in crate::agent) async fn status(
        &self,
        session: &Arc<Established>,
        network: Option<&str>,
        deadline: Instant,
    ) -> Result<StatusResponse, Failure> {
        let request = timed(StatusRequest { network: network.map(str::to_owned) }, deadline);
        let answer = session.bounded(deadline, session.client().status(request)).await;
        answer.map_err(|status| failure_of(&status))
    }

    /// Waits until the port of an attachment forwards: before, the pod's first frames would be lost. Waits no longer
    /// than for a carrier once the DPU has looked. Returns at once if the DPU said that the port does not follow the
    /// VF. A port that does not forward is the fabric's problem, like a missing carrier; it fails no ADD.
    pub(in crate::agent) async fn await_port(&self, attachment: &Attachment) {
        if !attachment.port_follows_vf {
            return;
        }
        match self.ask_for_port(&attachment.id).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    attachment = attachment.id,
                    "the attachment's port does not forward yet"
                );
            }
            Err(failure) => {
                let attachment = &attachment.id;
                tracing::warn!(attachment, %failure, "cannot ask whether the attachment's port forwards");
            }
        }
    }

    /// Asks again on the next session if one ends: dpu-service may have restarted since it made the attachment.
    async fn ask_for_port(&self, id: &str) -> Result<bool, Failure> {
        let reconnect = self.timeouts.reconnect();
        let deadline = Instant::now() + self.timeouts.carrier() + reconnect;
        let limit_ms = u32::try_from(self.timeouts.carrier().as_millis()).unwrap_or(u32::MAX);
        let mut session = self.session.current(reconnect).await?;
        loop {
            let request = AwaitPortRequest { attachment_id: id.to_owned(), limit_ms };
            let request = timed(request, deadline);
            let status = match session.bounded(deadline, session.client().await_port(request)).await
            {
                Ok(answer) => return Ok(answer.forwards),
                Err(status) => status,
            };
            let failure = failure_of(&status);
            let left = deadline.saturating_duration_since(Instant::now());
            if is_final(&status) || left.is_zero() {
                return Err(failure);
            }
            let next = self.session.other_than(&session.id, reconnect.min(left)).await;
            session = next.map_err(|_| failure)?;
        }
    }

    /// Stores a failed Detach for later, unless the DPU cannot hold such an attachment.
    pub(in crate::agent) fn detach_later(&self, request: DetachRequest, failure: &Failure) {
        let key: Key = request.key.clone().unwrap_or_default().into();
        if is_of_nothing(&key, failure) {
            return;
        }
        tracing::info!(%key, %failure, "the detach is pending");
        self.note_pending(request);
    }

    /// Makes pending detaches, as far as the DPU answers.
    pub(in crate::agent) async fn deliver_detaches(&self) {
        for key in self.pending_detaches.keys() {
            // With the key locked no new ADD of the key can be hit by this detach.
            let _key = self.vfs.keys().lock(&key).await;
            let Some(request) = self.pending_detaches.get(&key) else { continue };
            // With a record the key is attached again: the detach is obsolete.
            if self.vfs.records().by_key(&key).is_none() {
                match self.detach(request).await {
                    Ok(()) => self.reports.inventory_wanted(),
                    Err(failure) if is_of_nothing(&key, &failure) => {}
                    Err(failure) => {
                        return tracing::info!(%key, %failure, "the detach is still pending");
                    }
                }
            }
            self.pending_detaches.forget(&key);
        }
    }

    pub(in crate::agent) fn pending_detach_keys(&self) -> Vec<Key> {
        self.pending_detaches.keys()
    }

    /// Leaves the DPU's state of a key to an ADD that waits for the key's lock. The stored detach waits for the lock
    /// after that ADD, and is dropped if the ADD left a record.
    pub(in crate::agent) fn leave_to_repeat(&self, detach: DetachRequest) {
        self.note_pending(detach);
    }

    fn note_pending(&self, detach: DetachRequest) {
        self.pending_detaches.note(detach);
        self.vfs.signals().ask_for_pass();
    }
}

impl Established {
    /// Requests an attachment for each request: one by Attach, several by AttachAll.
    async fn attach(
        &self,
        requests: &[AddRequest],
        deadline: Instant,
    ) -> Result<Vec<Attachment>, Status> {
        let mut client = self.client();
        if let [request] = requests {
            let message = timed(attach_request(request, &self.id), deadline);
            let answer = self.bounded(deadline, client.attach(message)).await?;
            return Ok(answer.attachment.into_iter().collect());
        }
        let requests = requests.iter().map(|request| attach_request(request, &self.id)).collect();
        let message = timed(AttachAllRequest { requests }, deadline);
        Ok(self.bounded(deadline, client.attach_all(message)).await?.attachments)
    }

    /// Releases an attachment in this session: if a newer one begins first, the DPU refuses the call, and it cannot hit
    /// a newer attachment.
    async fn detach(&self, request: DetachRequest, deadline: Instant) -> Result<(), Status> {
        let request = DetachRequest { session_id: self.id.clone(), ..request };
        self.bounded(deadline, self.client().detach(timed(request, deadline))).await.map(drop)
    }
}

/// Adds the deadline and the current span to a call.
pub(super) fn timed<M>(message: M, deadline: Instant) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(deadline.saturating_duration_since(Instant::now()));
    let parent = traces::current().and_then(|parent| parent.to_string().parse().ok());
    if let Some(parent) = parent {
        request.metadata_mut().insert(traces::HEADER, parent);
    }
    request
}

/// Builds a Detach. With `vf_returned` it states that the VF is back as of now. The session is filled in when the call
/// is made.
pub(in crate::agent) fn detach_request(
    key: Option<AttachmentKey>,
    attachment_id: String,
    vf_returned: bool,
) -> DetachRequest {
    let as_of_ns = nanoseconds_since_boot();
    DetachRequest { key, attachment_id, vf_returned, as_of_ns, ..DetachRequest::default() }
}

/// A Detach of everything that the DPU has for a key and its group members. It says nothing about the VF.
pub(in crate::agent) fn detach_request_by_key(key: &Key) -> DetachRequest {
    detach_request(Some(key.clone().into()), String::new(), false)
}

/// Whether the DPU rejects the Detach as malformed, so that it cannot hold such an attachment.
fn is_of_nothing(key: &Key, failure: &Failure) -> bool {
    let is_malformed = failure.reason == Reason::InvalidRequest;
    if is_malformed {
        tracing::warn!(%key, %failure, "the DPU rejects the detach; nothing is held");
    }
    is_malformed
}

fn attach_request(request: &AddRequest, session_id: &str) -> AttachRequest {
    AttachRequest {
        session_id: session_id.to_owned(),
        key: Some(request.key.clone().into()),
        pod: Some(request.pod.clone()),
        offered: request.offered.as_ref().map(offer_message),
        as_of_ns: nanoseconds_since_boot(),
        further_leases: request.further_leases.clone(),
        ..request.interface.clone().into()
    }
}

/// Refuses an attachment that the pod could not run with. Kubernetes uses the addresses of eth0 as the pod's: without
/// any, the runtime recreates the pod endlessly.
fn check_usable(request: &AddRequest, attachment: &Attachment) -> Result<(), Failure> {
    let is_pods_own = !request.pod.name.is_empty() && request.key.interface_name == "eth0";
    if !is_pods_own || !attachment.addresses.is_empty() {
        return Ok(());
    }
    let why = "eth0 of a Kubernetes pod needs an address, and the network gives none: name another network, or ask for an IP \
               family";
    Err(Failure::new(Reason::Unsupported, why))
}

fn check_all(requests: &[AddRequest], attachments: &[Attachment]) -> Result<(), Failure> {
    if attachments.len() != requests.len() {
        let (asked, answered) = (requests.len(), attachments.len());
        let message = format!("the DPU was asked for {asked} attachments and answered {answered}");
        return Err(Failure::new(Reason::Internal, message));
    }
    requests.iter().zip(attachments).try_for_each(|(request, attachment)| {
        check_complete(attachment)?;
        check_usable(request, attachment)
    })
}

/// Checks that an attachment has what the agent relies on.
fn check_complete(attachment: &Attachment) -> Result<(), Failure> {
    let has_vf = attachment.vf.as_ref().is_some_and(|vf| !vf.device.is_empty());
    identity_of(attachment.vf.as_ref())?;
    if has_vf && attachment.key.is_some() && !attachment.id.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Reason::Internal, "the DPU answered Attach without id, key or VF"))
}

#[cfg(test)]
mod tests {
    use traces::TraceParent;
    use tracing::Span;

    use super::*;
    use crate::agent::{
        dpu::tests::dpu,
        vfs::{record, tests::keep},
    };

    #[tokio::test]
    async fn disowned_attach_reports_no_returned_vf() {
        let (dpu, _folder) = dpu();
        let key = record("a", "c").key();
        dpu.calls().detach_by_key(&key).await;
        assert!(!dpu.calls().pending_detaches.get(&key).unwrap().vf_returned);
        assert!(dpu.reports().is_inventory_wanted(), "the inventory is reported again");
    }

    #[tokio::test]
    async fn rejected_detach_is_not_repeated() {
        let (dpu, _folder) = dpu();
        let key = record("a", "c").attachment.key;
        let failure = Failure::new(Reason::InvalidRequest, "the container's id is too long");
        dpu.calls().detach_later(detach_request(key, String::new(), false), &failure);
        assert!(dpu.calls().pending_detaches.keys().is_empty());
    }

    #[tokio::test]
    async fn detaches_wait_until_key_is_attached() {
        let (dpu, _folder) = dpu();
        let detach_of = |container: &str| DetachRequest {
            key: record("a", container).attachment.key,
            ..Default::default()
        };
        dpu.calls().pending_detaches.note(detach_of("alone"));
        dpu.calls().deliver_detaches().await;
        assert_eq!(dpu.calls().pending_detaches.keys().len(), 1);
        keep(dpu.calls().vfs.records(), record("a", "alone"));
        dpu.calls().deliver_detaches().await;
        assert!(dpu.calls().pending_detaches.keys().is_empty());
    }

    #[test]
    fn call_carries_its_deadline() {
        let request = timed((), Instant::now() + Duration::from_secs(30));
        let limit = request.metadata().get("grpc-timeout").unwrap().to_str().unwrap();
        assert!(limit.starts_with("29") || limit.starts_with("30"), "{limit}");
    }

    #[tokio::test]
    async fn call_carries_the_plugins_trace() {
        let sent = || timed((), Instant::now()).into_parts().0.into_headers().remove("traceparent");
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let traced = traces::follow(Span::none(), TraceParent::parse(parent), async { sent() });
        assert_eq!(traced.await.unwrap(), parent);
        assert_eq!(sent(), None);
    }
}
