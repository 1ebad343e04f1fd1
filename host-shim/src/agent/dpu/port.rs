//! The DPU's word that a VF's port forwards, where that comes only after the VF is up.

use std::time::{Duration, Instant};

use offload_proto::{Failure, v1};

use super::{calls::timed, failure::failure_of, room::Dpu};

/// How long the DPU's answer may be on its way besides.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

impl Dpu {
    /// Waits for the port of an attachment whose VF is up, and no longer than for a carrier: before it
    /// forwards, the pod's first frames would be lost. Where the DPU has said that the port does not
    /// follow the VF, there is nothing to wait for. A port that does not forward is the fabric's matter,
    /// like a carrier that does not come.
    pub(in crate::agent) async fn await_port(&self, attachment: &v1::Attachment) {
        if !attachment.port_follows_vf {
            return;
        }
        let limit = self.config.timeouts.carrier();
        match self.call_await_port(&attachment.id, limit).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(attachment = attachment.id, "its port does not forward yet");
            }
            Err(failure) => {
                let attachment = &attachment.id;
                tracing::warn!(attachment, %failure, "whether its port forwards is not known");
            }
        }
    }

    async fn call_await_port(&self, id: &str, limit: Duration) -> Result<bool, Failure> {
        let session = self.session.current(Duration::ZERO).await?;
        let deadline = Instant::now() + limit + ON_ITS_WAY;
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let request = v1::AwaitPortRequest { attachment_id: id.to_owned(), limit_ms };
        let call = session.client();
        let answer = { call }.await_port(timed(request, deadline)).await;
        answer.map(|answer| answer.into_inner().forwards).map_err(|status| failure_of(&status))
    }
}
