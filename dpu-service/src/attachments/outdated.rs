//! Attachments with older settings of their network than those in force: pods keep the settings they were attached
//! with.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::networks::Networks;
use model::{Network, Record};

/// How many attachments of a network are listed.
const NAMED: usize = 5;

#[derive(Clone, Debug, Default)]
pub struct Outdated {
    pub number: usize,
    /// Up to [`NAMED`] of them, oldest first.
    pub first: Vec<Arc<Record>>,
}

impl Networks<'_> {
    /// The attachments with other settings than `networks`, by network name. Networks without such attachments are left
    /// out.
    pub(crate) fn outdated<'a>(
        self,
        networks: impl Iterator<Item = &'a Arc<Network>>,
    ) -> BTreeMap<String, Outdated> {
        let networks: HashMap<&str, _> = networks.map(|it| (it.name.as_str(), it)).collect();
        let mut found = BTreeMap::<String, Outdated>::new();
        // Compared without the registry's lock: after a restart each record has its own copy of the network, and
        // comparing all of them takes long.
        for record in self.records_of_others(&networks) {
            let network = networks[record.network.name.as_str()];
            if is_outdated(&record, network) {
                let outdated = found.entry(network.name.clone()).or_default();
                outdated.number += 1;
                if outdated.first.len() < NAMED {
                    outdated.first.push(record);
                }
            }
        }
        found
    }

    /// The records whose network is another value than the given one, oldest first.
    fn records_of_others(self, networks: &HashMap<&str, &Arc<Network>>) -> Vec<Arc<Record>> {
        let is_of_other = |record: &Arc<Record>| {
            let network = networks.get(record.network.name.as_str());
            network.is_some_and(|network| !Arc::ptr_eq(network, &record.network))
        };
        let mut records = self.0.registry().entries().held();
        records.retain(is_of_other);
        records.sort_by_key(|record| record.id);
        records
    }
}

fn is_outdated(record: &Record, network: &Network) -> bool {
    *record.network != *network
        && record.network.given_to(&record.leases) != network.given_to(&record.leases)
}
