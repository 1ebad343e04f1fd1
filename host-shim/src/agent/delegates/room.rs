//! [`Delegates`] has interfaces made by other plugins, looked at and taken back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use offload_proto::{
    Failure, FindingCode, Reason,
    v1::{self, Finding},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    catalogue::{Catalogue, Meaning},
    failed,
    folders::Folders,
    interface, outcome,
    plugins::Plugins,
    record::{Delegated, Store},
    settings::DelegateSettings,
    wishes::Delegation,
};
use crate::{
    agent::{
        clock::microseconds,
        kill_points::KillPoint,
        vfs::{Phase, PodNetns},
    },
    cni::version::Version,
    mover::Shared,
    protocol::{AddRequest, CallerFolders, ExpectedInterface, Key},
};

/// The interfaces that other plugins make.
#[derive(Debug)]
pub(in crate::agent) struct Delegates {
    /// Without a folder of the agent's own, other plugins make no network. Interfaces that they made before are still removed.
    folders: Folders,
    plugins: Plugins,
    store: Store,
    /// Why plugins have not taken back what they were called for last.
    troubles: Mutex<BTreeMap<Key, String>>,
    /// Interfaces whose deletion is about to be repeated: the keeper may run a pass before it ends.
    again: watch::Sender<BTreeSet<Key>>,
}

/// Guard of a repeated deletion; dropping it ends the mark.
#[derive(Debug)]
#[must_use = "it is noted only as long as this is"]
pub(in crate::agent) struct Again {
    all: watch::Sender<BTreeSet<Key>>,
    key: Key,
}

impl Drop for Again {
    fn drop(&mut self) {
        self.all.send_modify(|all| {
            all.remove(&self.key);
        });
    }
}

impl Delegates {
    /// Those of an agent with these settings, which keeps what it makes in `folder`.
    ///
    /// # Errors
    /// When what is kept can't be listed.
    pub(in crate::agent) fn open(
        settings: Option<DelegateSettings>,
        folder: PathBuf,
    ) -> io::Result<Self> {
        let folders = Folders::new(settings.as_ref().map(|settings| settings.networks.clone()));
        let plugins = Plugins::new(settings.unwrap_or_default());
        let store = Store::open(folder)?;
        Ok(Self {
            folders,
            plugins,
            store,
            troubles: Mutex::default(),
            again: watch::Sender::default(),
        })
    }

    /// Takes out of an ADD the further interfaces that other plugins make, and has those that files say are the DPU's
    /// be of the network that they name. Waits for the files until `deadline` at most.
    ///
    /// # Errors
    /// The network's file, or the request, has something that is not supported.
    pub(in crate::agent) async fn take_out(
        &self,
        mut add: AddRequest,
        deadline: Instant,
    ) -> Result<(AddRequest, Vec<Delegation>), Failure> {
        let catalogue = self.folders.own(deadline).await;
        let namespace = add.pod.namespace.clone();
        // A pod that asks for no further network has to do without the files if they can't be read.
        let catalogue =
            if add.further.is_empty() { catalogue.unwrap_or_default() } else { catalogue? };
        match self.meaning(&catalogue, &add.key, &namespace, &add.interface.network)? {
            Some(Meaning::Plugins(chain)) => return Err(leads(&add.key, &chain.network)),
            Some(Meaning::Dpu(network)) => add.interface.network = network,
            None => {}
        }
        // Only for further networks: the folder of a runtime has the configuration of this very ADD, too.
        let catalogue = match add.further.is_empty() {
            true => catalogue,
            false => self.folders.with_callers(catalogue, &add.folders, deadline).await,
        };
        let mut delegations = Vec::new();
        let mut own = Vec::new();
        let all = std::mem::take(&mut add.further);
        for (place, mut further) in all.iter().cloned().enumerate() {
            let key = Key { interface_name: further.interface_name.clone(), ..add.key.clone() };
            match self.meaning(&catalogue, &key, &namespace, &further.interface.network)? {
                Some(Meaning::Plugins(chain)) => {
                    delegations.push(Delegation::new(&add, place, &all, chain)?);
                    continue;
                }
                Some(Meaning::Dpu(network)) => further.interface.network = network,
                None => {}
            }
            own.push(further);
        }
        add.further = own;
        Ok((add, delegations))
    }

    /// What a name stands for. What was made of it stays what it was for a repeat of its ADD, whatever became of the
    /// file.
    fn meaning(
        &self,
        catalogue: &Catalogue,
        key: &Key,
        namespace: &str,
        network: &str,
    ) -> Result<Option<Meaning>, Failure> {
        if let Some(made) = self.store.by_key(key).filter(|made| made.network() == network) {
            return Ok(Some(Meaning::Plugins(made.chain.clone())));
        }
        catalogue.look_up(namespace, network)
    }

    /// The interfaces that the attachment of this key leads.
    pub(in crate::agent) fn led_by(&self, lead: &Key) -> Vec<Arc<Delegated>> {
        let is_led = |one: &Arc<Delegated>| {
            one.key.container_id == lead.container_id && one.group_interface == lead.interface_name
        };
        self.store.all().into_iter().filter(is_led).collect()
    }

    /// The interface of this key.
    pub(in crate::agent) fn by_key(&self, key: &Key) -> Option<Arc<Delegated>> {
        self.store.by_key(key)
    }

    /// All of them.
    pub(in crate::agent) fn all(&self) -> Vec<Arc<Delegated>> {
        self.store.all()
    }

    /// Has an interface created in a pod, with the addresses of a lease if there is one, and records it as unanswered.
    ///
    /// # Errors
    /// Why it was not. What has come of it is taken back by [`Self::delete`].
    pub(in crate::agent) async fn add(
        &self,
        delegation: Delegation,
        lease: Option<v1::FurtherLease>,
        netns: &PodNetns,
        deadline: Instant,
    ) -> Result<Arc<Delegated>, Failure> {
        let begun = Instant::now();
        let deadline = deadline.min(self.plugins.deadline());
        let calls = self.store.lock_calls(&delegation.key, deadline).await?;
        let key = delegation.key.clone();
        let delegated = match self.begin(delegation, lease, netns, &calls, deadline).await {
            Ok(delegated) => delegated,
            Err(failure) => {
                self.store.remove(&key);
                return Err(failure);
            }
        };
        KillPoint::DelegateRecorded.pass();
        let called = Instant::now();
        let mut result = self.plugins.make(&delegated, &calls, deadline).await?;
        let in_plugins = called.elapsed();
        KillPoint::DelegateMade.pass();
        let link = interface::link_in_pod(&delegated).await?.ok_or_else(|| {
            let name = &delegated.key.interface_name;
            failed(
                &delegated.chain,
                &format!("its plugins have made no interface {name} in the pod"),
            )
        })?;
        delegated.default_routes.replace_in(&mut result);
        let attachment = outcome::attachment(&delegated, &result, &link)?;
        let made = Delegated {
            result: Some(result),
            attachment: Some(attachment),
            ..Delegated::clone(&delegated)
        };
        let made = self.store.write(made)?;
        log(&made, in_plugins, begun.elapsed());
        Ok(made)
    }

    /// Sets on an interface what its network has us set beside what its plugins do. The caller holds the pod's lock.
    ///
    /// # Errors
    /// Why it can't be. What is set is taken back by [`Self::delete`].
    pub(in crate::agent) async fn complete(
        &self,
        delegated: Arc<Delegated>,
    ) -> Result<Arc<Delegated>, Failure> {
        let Some(added) = delegated.to_be_added() else { return Ok(delegated) };
        let added = interface::make_way(&delegated, added).await?;
        // Record it first: a later deletion must know what to remove from the pod.
        let delegated = self.store.write(delegated.with(added.clone()))?;
        interface::set(&delegated, &added).await?;
        Ok(delegated)
    }

    /// Gives a pod back what it has lost of that. Tells what it was. The caller holds the pod's lock.
    ///
    /// # Errors
    /// Why it can't be given back.
    pub(in crate::agent) async fn repair(
        &self,
        delegated: &Delegated,
    ) -> Result<Option<String>, Failure> {
        let lost = interface::lost(delegated).await?;
        if let (Some(_), Some(added)) = (&lost, &delegated.added) {
            interface::set(delegated, added).await?;
        }
        Ok(lost)
    }

    /// Records what is about to be made, unless it can be seen beforehand that it can't.
    async fn begin(
        &self,
        delegation: Delegation,
        lease: Option<v1::FurtherLease>,
        netns: &PodNetns,
        calls: &File,
        deadline: Instant,
    ) -> Result<Arc<Delegated>, Failure> {
        let Delegation { key, group_interface, chain, arguments, wishes, default_routes, .. } =
            delegation;
        let mut delegated = Delegated {
            key,
            group_interface,
            netns: netns.clone(),
            phase: Phase::Attaching,
            chain,
            version: String::new(),
            arguments,
            wishes,
            default_routes,
            lease,
            result: None,
            attachment: None,
            added: None,
        };
        delegated.version = self.plugins.version_for(&delegated, calls, deadline).await?.into();
        interface::refuse_taken_name(&delegated).await?;
        self.store.write(delegated)
    }

    /// Keeps an interface from now on, or does not.
    ///
    /// # Errors
    /// [`Reason::RecordsUnavailable`]: it is kept as before.
    pub(in crate::agent) fn note(
        &self,
        delegated: &Delegated,
        phase: Phase,
    ) -> Result<(), Failure> {
        self.store.write(Delegated { phase, ..delegated.clone() }).map(drop)
    }

    /// Asks the plugins of a further network whether they can serve, and tells which network of the DPU's it relies
    /// on: itself, or where its addresses are from. `None`: on none that is known.
    ///
    /// # Errors
    /// The network's file has something that is not supported, or its plugins refuse.
    pub(in crate::agent) async fn asked_of_dpu(
        &self,
        network: &str,
        folders: &CallerFolders,
        deadline: Instant,
    ) -> Result<Option<String>, Failure> {
        let own = self.folders.own(deadline).await?;
        let catalogue = self.folders.with_callers(own, folders, deadline).await;
        match catalogue.look_up("", network) {
            Ok(Some(Meaning::Plugins(chain))) => {
                let chain = chain.of_caller(folders);
                let leased = chain.leased_network().map(str::to_owned);
                self.plugins.trouble(&chain, deadline).await.map_or(Ok(leased), Err)
            }
            Ok(Some(Meaning::Dpu(network))) => Ok(Some(network)),
            Ok(None) => Ok(Some(network.to_owned())),
            // The network is for pods of one namespace, and this request names no pod.
            Err(failure) if failure.reason == Reason::NetworkNotAllowed => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Takes what is set beside an interface out of its pod, but for what `others` of the pod bring, too. The caller
    /// holds the pod's lock.
    pub(in crate::agent) async fn remove_routing(&self, delegated: &Delegated, others: Shared) {
        interface::take_off_added(delegated, others).await;
    }

    /// Has an interface deleted by its plugins, with the arguments of its creation. Without `in_pod` they get no
    /// namespace, because the interface's name belongs to another one by now. Waits up to `patience` for a call of an
    /// earlier agent. Does nothing without a record.
    ///
    /// # Errors
    /// Why the plugins have not. It stays kept, so that they are called again; but the pod has it no more, where it
    /// is of a kind that can be deleted.
    pub(in crate::agent) async fn delete(
        &self,
        key: &Key,
        in_pod: bool,
        patience: Duration,
    ) -> Result<(), Failure> {
        let Some(delegated) = self.store.by_key(key) else { return Ok(()) };
        if delegated.phase == Phase::Live {
            self.store.give_up(&delegated);
        }
        let delegated = if in_pod { delegated } else { Arc::new(delegated.without_netns()) };
        let taken_back = match self.store.lock_calls(key, Instant::now() + patience).await {
            Ok(calls) => self.plugins.take_back(&delegated, &calls).await,
            Err(still_called) => Err(still_called),
        };
        self.note_trouble(key, taken_back.as_ref().err());
        // What plugins have half made, can't be asked to take back, or leave though they say that it is gone.
        interface::delete_link(&delegated).await;
        taken_back?;
        KillPoint::DelegateDeleted.pass();
        self.store.remove(key);
        Ok(())
    }

    fn note_trouble(&self, key: &Key, failure: Option<&Failure>) {
        let mut troubles = self.troubles.lock();
        match failure {
            Some(failure) => troubles.insert(key.clone(), failure.message.clone()),
            None => troubles.remove(key),
        };
    }

    /// What plugins have not taken back.
    pub(in crate::agent) fn findings(&self) -> Vec<Finding> {
        let told = |(key, why): (&Key, &String)| FindingCode::DelegateLeft.of(key, why);
        self.troubles.lock().iter().map(told).collect()
    }

    /// With the folders whose files define networks, too, if a network is unknown that an ADD has `asked` for.
    pub(in crate::agent) fn with_folder(&self, failure: Failure, asked: &AddRequest) -> Failure {
        self.folders.with_folders(failure, asked)
    }

    /// Whether an interface has addresses of a lease, or may get them by a plugin that still runs.
    pub(in crate::agent) async fn holds_lease(&self, delegated: &Delegated) -> bool {
        if delegated.lease.is_none() {
            return false;
        }
        if self.store.lock_calls(&delegated.key, Instant::now()).await.is_err() {
            return true;
        }
        // A pod that has ended has no interfaces. One that can't be looked at may have this one.
        delegated.netns.living().is_some()
            && !matches!(interface::link_in_pod(delegated).await, Ok(None))
    }

    /// Marks a repeated deletion. `None`: another task has marked it.
    pub(in crate::agent) fn begin_again(&self, key: &Key) -> Option<Again> {
        let is_first = self.again.send_if_modified(|all| all.insert(key.clone()));
        is_first.then(|| Again { all: self.again.clone(), key: key.clone() })
    }

    /// Waits until no deletion is about to be repeated, at most as long as plugins' calls may take.
    pub(in crate::agent) async fn nobody_again(&self) {
        // The sender is in `self`, so that it is there.
        let _ = self.again.subscribe().wait_for(BTreeSet::is_empty).await;
    }

    /// Has an interface looked at by its plugins, and compares it with what the runtime was promised.
    ///
    /// # Errors
    /// What is found, or that it is not kept as it should be.
    pub(in crate::agent) async fn check(
        &self,
        delegated: &Delegated,
        promise: &ExpectedInterface,
    ) -> Result<(), Failure> {
        let is_checked_by_plugins = Version::parse(&delegated.version) >= Some(Version::V0_4_0)
            && !delegated.chain.is_unchecked;
        if is_checked_by_plugins {
            let calls = self.store.lock_calls(&delegated.key, self.plugins.deadline()).await?;
            self.plugins.check(delegated, &calls).await?;
        }
        interface::compare(delegated, promise).await
    }
}

fn log(made: &Delegated, in_plugins: Duration, total: Duration) {
    tracing::info!(
        key = %made.key,
        network = made.network(),
        plugins_us = microseconds(in_plugins),
        total_us = microseconds(total),
        "made by other plugins"
    );
}

/// A pod's first interface is the DPU's.
fn leads(key: &Key, network: &str) -> Failure {
    let message = format!(
        "network {network} is made by other plugins, which {} cannot use: only a pod's further interfaces can",
        key.interface_name
    );
    Failure::new(Reason::Unsupported, message)
}
