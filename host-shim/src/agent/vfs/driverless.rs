//! VFs that have no driver, and so no link.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use tokio::time::timeout;

use crate::agent::{Agent, upkeep::vfs_abroad::Obstacles};
use crate::vf_source::{OtherVf, Whereabouts};

/// How long VFs are waited for that are being made anew: these have no driver meanwhile.
const PATIENCE: Duration = Duration::from_secs(20);

impl Agent {
    /// Gives them to the drivers that they are kept for or that know them. Whoever took a driver away
    /// may have had a reason, so only an operator asks for that. Tells which VFs no driver took.
    pub(in crate::agent) async fn find_drivers(self: &Arc<Self>) -> Obstacles {
        let Ok(_none_is_made_anew) = timeout(PATIENCE, self.renewing.lock()).await else {
            tracing::info!("VFs are being made anew: none is given to a driver now");
            return Obstacles::new();
        };
        // Meanwhile nobody changes the number of VFs.
        let _vfs_stay = self.vfs_stay.read().await;
        let agent = Arc::clone(self);
        self.look(move || agent.find_drivers_now()).await.unwrap_or_else(|error| {
            tracing::error!(%error, "giving VFs to their drivers failed");
            Obstacles::new()
        })
    }

    fn find_drivers_now(&self) -> Obstacles {
        let others = self.source.other_vfs(&|_| false).into_iter();
        let mut obstacles = Obstacles::new();
        for OtherVf { identity, .. } in others.filter(|vf| vf.whereabouts == Whereabouts::Unbound) {
            match self.source.find_driver(&identity.pci_address) {
                Ok(()) => {
                    self.repairs.note(&self.subject_of(&identity), "it has a driver again".into());
                }
                Err(error) => {
                    obstacles.insert(self.subject_of(&identity), Chain(&error).to_string());
                }
            }
        }
        obstacles
    }
}
