//! Check (CNI's CHECK): compares an attachment with its record and the kernel.

use bootstrap::Chain;
use offload_proto::{Failure, Reason};

use super::{engine::Engine, examine::describe_step, releasing, unknown};
use model::{AttachmentId, AttachmentKey, AttachmentState, AttachmentView};

impl Engine {
    /// Compares an attachment's record with what the kernel has.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`], [`Reason::Releasing`] or [`Reason::CheckFailed`].
    pub async fn check(
        &self,
        key: AttachmentKey,
        id: Option<AttachmentId>,
    ) -> Result<AttachmentView, Failure> {
        // Locked, so that no attach or detach of the key is half done.
        let _key = self.keys.lock(&key).await;
        let record = self.record_of(&key).filter(|record| id.is_none_or(|id| id == record.id));
        let record = record.ok_or_else(|| unknown(&key))?;
        let view = self.view(&record)?;
        if view.state == AttachmentState::Releasing {
            return Err(releasing(&record));
        }
        let inspected = self
            .ports
            .inspect(&record)
            .await
            .map_err(|error| Failure::new(Reason::CheckFailed, Chain(&error).to_string()))?;
        match inspected.steps.into_iter().find(|step| !step.in_place) {
            Some(step) => {
                let message = format!("{}: {}", record.key, describe_step(&step, &record.vf));
                Err(Failure::new(Reason::CheckFailed, message))
            }
            None => Ok(view),
        }
    }
}
