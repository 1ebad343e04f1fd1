//! How many VFs the DPU wants the host to have.

use std::{collections::BTreeMap, sync::Arc};

use offload_proto::v1::WantedVfs;
use parking_lot::Mutex;
use vf_alloc::PfId;

use crate::{agent::vfs::Vfs, vf_source::ProvideError};

/// What the DPU wants.
#[derive(Debug, Default)]
struct Wanted(BTreeMap<PfId, Wish>);

#[derive(Clone, Debug)]
struct Wish {
    count: u32,
    /// Why it is not fulfilled, as it was told last. `None`: it is, or was not tried yet.
    obstacle: Option<String>,
}

/// Gives the PFs as many VFs as the DPU wants.
#[derive(Debug)]
pub(super) struct Provider {
    vfs: Arc<Vfs>,
    wanted: Mutex<Wanted>,
}

impl Provider {
    /// Nothing is wanted yet.
    pub(super) fn new(vfs: Arc<Vfs>) -> Self {
        Self { vfs, wanted: Mutex::default() }
    }

    /// The DPU wants a PF to have so many VFs.
    pub(super) fn want(&self, wanted: &WantedVfs) {
        let &WantedVfs { controller, pf, count } = wanted;
        let Ok(id) = PfId::from_numbers(controller, pf) else {
            return tell(controller, pf, count, &ProvideError::UnknownPf);
        };
        self.wanted.lock().0.insert(id, Wish { count, obstacle: None });
        self.vfs.signals().ask_for_pass();
    }

    /// The DPU may no longer want what it wanted.
    pub(super) fn forget(&self) {
        self.wanted.lock().0.clear();
    }

    /// Whether something was in the way of a wish when it was tried last. A VF that is free again may have
    /// been that.
    pub(super) fn is_any_in_the_way(&self) -> bool {
        self.wanted.lock().0.values().any(|wish| wish.obstacle.is_some())
    }

    /// Gives the PFs as many VFs as the DPU wants, where no VF is in use.
    pub(super) async fn provide(&self) {
        let wanted: Vec<_> =
            self.wanted.lock().0.iter().map(|(pf, wish)| (*pf, wish.count)).collect();
        if wanted.is_empty() {
            return;
        }
        match self.vfs.numbers().provide(wanted).await {
            Ok(provided) => provided.into_iter().for_each(|(pf, outcome)| self.note(pf, outcome)),
            Err(error) => tracing::error!(%error, "cannot change the number of VFs"),
        }
    }

    /// Remembers what is in the way of a wish, and tells it when it is new.
    fn note(&self, pf: PfId, outcome: Result<bool, ProvideError>) {
        let mut wanted = self.wanted.lock();
        let Some(wish) = wanted.0.get_mut(&pf) else { return };
        let PfId { controller, pf } = pf;
        let obstacle = outcome.as_ref().err().map(|error| bootstrap::Chain(error).to_string());
        match outcome {
            Ok(true) => {
                tracing::info!(
                    controller,
                    pf,
                    vfs = wish.count,
                    "the number of the PF's VFs was changed"
                );
            }
            Ok(false) => {}
            Err(_) if obstacle == wish.obstacle => {}
            Err(error) => tell(controller, pf.into(), wish.count, &error),
        }
        wish.obstacle = obstacle;
    }
}

/// A card whose VFs are fixed does what it can.
fn tell(controller: u32, pf: u32, wanted: u32, error: &ProvideError) {
    let why = bootstrap::Chain(error);
    match error {
        ProvideError::Fixed => {
            tracing::info!(controller, pf, wanted, %why, "the number of VFs stays");
        }
        _ => tracing::warn!(controller, pf, wanted, %why, "the number of VFs is not as wanted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::vfs::tests::vfs;

    #[tokio::test]
    async fn fixed_vf_count_waits_for_no_attach() {
        let (vfs, _folder) = vfs();
        let provider = Arc::new(Provider::new(Arc::clone(&vfs)));
        provider.want(&WantedVfs { controller: 0, pf: 1, count: 16 });
        let _attach_under_way = vfs.numbers().vfs_stay().await;
        provider.provide().await;
        let told = provider.wanted.lock().0[&PfId::local(1)].obstacle.clone();
        assert!(told.is_some_and(|told| told.contains("number of VFs")));
        assert!(provider.is_any_in_the_way());
    }

    #[tokio::test]
    async fn wanted_vf_count_holds_for_a_session() {
        let (vfs, _folder) = vfs();
        let provider = Provider::new(vfs);
        provider.want(&WantedVfs { controller: 0, pf: 1, count: 16 });
        provider.forget();
        assert!(provider.wanted.lock().0.is_empty());
    }
}
