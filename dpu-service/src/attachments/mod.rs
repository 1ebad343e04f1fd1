//! Attachments: who holds which VF and which addresses, from the first request to the last trace.

mod hello;
mod settings;
mod views;

use std::sync::Arc;

use offload_proto::{Failure, Reason};
use vf_alloc::VfId;

pub use hello::{Hello, Inventory, LiveAttachment, PhysicalFunction, VfCondition, VirtualFunction};
pub use settings::{Configuration, Settings};
pub use views::{
    Applied, AttachmentDetail, AttachmentFilter, AttachmentState, AttachmentView, NetworkView,
    Origin, PoolView, SubnetUsage, VfView,
};

use crate::{
    eswitch::Capability,
    events::Events,
    model::{AttachSpec, AttachmentId, AttachmentKey, HostName, Network},
    programmer::Programmer,
    records::{OpenError, Records},
    sessions::{HostView, Session, SessionId},
};

/// The engine. Cloning it is cheap and gives the same one.
#[derive(Clone, Debug)]
pub struct Attachments {
    programmer: Programmer,
    events: Arc<Events>,
}

fn later() -> Failure {
    Failure::new(Reason::Internal, "not there yet")
}

#[allow(unused_variables, clippy::unused_async, missing_docs, clippy::needless_pass_by_value)]
impl Attachments {
    /// An engine with what the journal holds. Nothing is programmed yet: the reconciler does that.
    ///
    /// # Errors
    /// The journal can't be read, or the configuration can't be.
    pub fn open(
        records: Records,
        programmer: Programmer,
        configuration: Configuration,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        Ok(Self { programmer, events: Arc::default() })
    }

    pub async fn attach(
        &self,
        spec: AttachSpec,
        session: SessionId,
    ) -> Result<AttachmentView, Failure> {
        Err(later())
    }

    pub async fn detach(
        &self,
        key: AttachmentKey,
        id: Option<AttachmentId>,
        vf_returned: bool,
    ) -> Result<(), Failure> {
        Err(later())
    }

    pub async fn check(
        &self,
        key: AttachmentKey,
        id: Option<AttachmentId>,
    ) -> Result<AttachmentView, Failure> {
        Err(later())
    }

    pub async fn collect(
        &self,
        host: HostName,
        network: Option<String>,
        valid: Vec<AttachmentKey>,
    ) -> Result<Vec<AttachmentView>, Failure> {
        Err(later())
    }

    /// Why Attach can't be served, one sentence each. Empty: it can.
    pub async fn status(&self) -> Vec<String> {
        Vec::new()
    }

    /// Opens a session for the host. Returns once everything that its words settle is settled.
    pub async fn hello(&self, host: HostName, hello: Hello) -> Result<Session, Failure> {
        Err(later())
    }

    /// The host said that the pod has the VF.
    pub async fn host_attached(&self, host: HostName, session: SessionId, id: AttachmentId) {}

    /// The host said what it has now.
    ///
    /// # Errors
    /// It names a PF of another host.
    pub async fn inventory(
        &self,
        host: HostName,
        session: SessionId,
        inventory: Inventory,
    ) -> Result<(), Failure> {
        Err(later())
    }

    /// The host's session ended.
    pub fn goodbye(&self, host: &HostName, session: SessionId) {}

    /// Takes an attachment away from its pod, for an operator.
    pub async fn release(
        &self,
        id: AttachmentId,
        reason: String,
    ) -> Result<AttachmentView, Failure> {
        Err(later())
    }

    /// Gives a quarantined VF back to its pools.
    pub async fn clear_quarantine(&self, vf: VfId) -> Result<VfView, Failure> {
        Err(later())
    }

    /// Creates a network or replaces it.
    pub async fn apply_network(
        &self,
        network: Network,
        dry_run: bool,
    ) -> Result<(NetworkView, Applied), Failure> {
        Err(later())
    }

    pub async fn delete_network(&self, name: String, force: bool) -> Result<(), Failure> {
        Err(later())
    }

    /// Takes a changed configuration file over: all of it or, when something in it can't be, nothing.
    pub async fn load_configuration(&self, configuration: Configuration) -> Result<(), Failure> {
        Err(later())
    }

    /// Refuses new attachments, for that reason, or takes them again.
    pub fn set_draining(&self, reason: Option<String>) {}

    #[must_use]
    pub fn networks(&self) -> Vec<NetworkView> {
        Vec::new()
    }

    #[must_use]
    pub fn pools(&self) -> Vec<PoolView> {
        Vec::new()
    }

    pub async fn vfs(&self) -> Result<Vec<VfView>, Failure> {
        Err(later())
    }

    #[must_use]
    pub fn attachments(&self, filter: &AttachmentFilter) -> Vec<AttachmentView> {
        Vec::new()
    }

    /// The attachment whose id is `id`, or begins so: at least 4 characters.
    pub async fn attachment(&self, id: String) -> Result<AttachmentDetail, Failure> {
        Err(later())
    }

    #[must_use]
    pub fn attachment_count(&self) -> usize {
        0
    }

    /// The hosts of the configuration, by name.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostView> {
        Vec::new()
    }

    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Names and capabilities of the drivers.
    #[must_use]
    pub fn programmer(&self) -> &Programmer {
        &self.programmer
    }

    /// What kernel and card can do, as probed at start.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Capability> {
        self.programmer.capabilities()
    }

    /// The kernel reported a change of links: wakes the reconciler.
    pub fn kernel_changed(&self) {}

    /// Lets what is under way finish, then closes the journal.
    pub async fn close(self) {}
}
